"""Enroot's configuration: the system's files, then the environment, which wins, then the defaults."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from .console import SHELL_DIR, Exit

SYSTEM = Path("/etc/enroot")
BUNDLED = Path(__file__).resolve().parent.parent / "sysconf"
VERSION = "4.1.2"

_KEY = re.compile(r"ENROOT_[A-Z_]+|(?:MELLANOX_|NVIDIA_).*|SSL_CERT_(?:DIR|FILE)|(?:all|no|http|https)_proxy")
_NO = re.compile(r"no?|N[oO]?|[fF](?:alse)?|FALSE")
_DIRECTIVE = re.compile(r"#\s*(?=ENROOT_)")


def _default(name: str, value: str) -> None:
    """An empty variable counts as unset."""
    if not os.environ.get(name):
        os.environ[name] = value


def expand(text: str) -> str:
    """One value as the shell would expand it; an unset variable prints an error and loses the value."""
    done = subprocess.run([str(SHELL_DIR / "expand.sh"), text], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.rstrip("\n")


def _load(text: str, *, overwrite: bool) -> None:
    for line in text.splitlines():
        match = re.fullmatch(r"[ \t]*([^ \t=]+)[ \t]*=?[ \t]*(.*?)[ \t]*", line)
        if match is None or not _KEY.fullmatch(match[1]):
            continue
        value = expand(match[2])
        if overwrite:
            os.environ[match[1]] = value
        else:
            _default(match[1], value)


def _drop_negatives() -> None:
    for name, value in list(os.environ.items()):
        if name.startswith("ENROOT_") and _NO.fullmatch(value):
            del os.environ[name]


def load_directives(script: Path) -> None:
    """`#ENROOT_NAME=value` lines of a --conf script count more than the environment."""
    lines = script.read_text(errors="surrogateescape").splitlines()
    _load("\n".join(_DIRECTIVE.sub("", line) for line in lines if _DIRECTIVE.match(line)), overwrite=True)
    _drop_negatives()


def _home() -> str:
    return os.environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir


def _paths() -> None:
    home = _home()
    for name, below in (("DATA_HOME", ".local/share"), ("CONFIG_HOME", ".config"), ("CACHE_HOME", ".cache")):
        _default(f"XDG_{name}", f"{home}/{below}")
    _default("XDG_RUNTIME_DIR", "/run")
    env = os.environ
    _default("ENROOT_LIBRARY_PATH", str(SHELL_DIR))
    _default("ENROOT_SYSCONF_PATH", str(SYSTEM if SYSTEM.is_dir() else BUNDLED))
    _default("ENROOT_RUNTIME_PATH", f"{env['XDG_RUNTIME_DIR']}/enroot")
    _default("ENROOT_CONFIG_PATH", f"{env['XDG_CONFIG_HOME']}/enroot")
    _default("ENROOT_CACHE_PATH", f"{env['XDG_CACHE_HOME']}/enroot")
    _default("ENROOT_DATA_PATH", f"{env['XDG_DATA_HOME']}/enroot")
    _default("ENROOT_TEMP_PATH", env.get("TMPDIR") or "/tmp")


def _settings() -> None:
    _default("ENROOT_GZIP_PROGRAM", "pigz" if shutil.which("pigz") else "gzip")
    _default("ENROOT_ZSTD_OPTIONS", "-1")
    _default("ENROOT_SQUASH_OPTIONS", "-comp lzo -noD -exit-on-error")
    _default("ENROOT_MAX_PROCESSORS", str(len(os.sched_getaffinity(0))))
    _default("ENROOT_MAX_CONNECTIONS", "10")
    _default("ENROOT_CONNECT_TIMEOUT", "30")
    _default("ENROOT_TRANSFER_TIMEOUT", "0")
    _default("ENROOT_TRANSFER_RETRIES", "0")
    _default("ENROOT_LOGIN_SHELL", "true")
    _default("ENROOT_NATIVE_OVERLAYFS", "true")


def load() -> None:
    """Complete os.environ; a switch is on when its variable is there at the end."""
    for file in [SYSTEM / "enroot.conf", *sorted((SYSTEM / "enroot.conf.d").glob("*.conf"))]:
        if file.is_file():
            _load(file.read_text(), overwrite=False)
    _paths()
    _settings()
    _drop_negatives()
    os.environ["ENROOT_VERSION"] = VERSION
    _make_directories()


def _make_directories() -> None:
    """Even `enroot version` fails where one of these cannot be made, with mkdir's own words."""
    paths = [os.environ[f"ENROOT_{name}_PATH"] for name in ("CACHE", "DATA", "RUNTIME")]
    if all(map(os.path.isdir, paths)):
        return
    previous = os.umask(0o077)
    returncode = subprocess.run(["mkdir", "-p", *paths], check=False).returncode
    os.umask(previous)
    if returncode:
        raise Exit(returncode)
