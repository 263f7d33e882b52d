"""The last steps inside: what a login sets up, and the shell that runs the start script."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .console import Exit, complain

PROGRAM = "enroot-switchroot"
_DEFAULT_PATH = "/usr/bin:/bin"
_ROOT_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Account:
    name: str
    home: str
    shell: str


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="surrogateescape")
    except OSError:
        return ""


def _account(uid: int) -> Account | None:
    """Read by hand: the C library would load the image's own name service modules into this process."""
    for line in _read("/etc/passwd").splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[2] == str(uid):
            return Account(fields[0], fields[5], fields[6])
    return None


def _definitions() -> dict[str, str]:
    pattern = re.compile(r"^[ \t]*([^#\s=]+)[ \t=]+[\" \t=]*([^ \t\"\n]+)", re.M)
    return dict(pattern.findall(_read("/etc/login.defs")))


def _is_yes(value: str | None) -> bool:
    return value is not None and value.lower() in ("yes", "true")


def _login_environment(inside: int, outside: int, definitions: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {"TERM": "dumb"}
    me, original = _account(inside), _account(outside)
    if me is not None:
        found |= {"HOME": me.home, "SHELL": me.shell, "USER": me.name}
    if original is not None:
        found["LOGNAME"] = original.name
    path = definitions.get("ENV_PATH" if inside else "ENV_SUPATH", "").removeprefix("PATH=")
    found["PATH"] = path or (_DEFAULT_PATH if inside else _ROOT_PATH)
    return {name: value for name, value in found.items() if value}


def _log_in(environment: dict[str, str], inside: int, outside: int) -> None:
    definitions = _definitions()
    closed = definitions.get("NOLOGINS_FILE", "/etc/nologin")
    if inside and Path(closed).exists():
        print(_read(closed), end="", flush=True)
        raise Exit(0)
    for name, value in _login_environment(inside, outside, definitions).items():
        environment.setdefault(name, value)
    mask = definitions.get("UMASK", "")
    if re.fullmatch(r"0?[0-7]+", mask):
        os.umask(int(mask, 8))
    home = environment.get("HOME")
    if home:
        _enter(home, fatal=not _is_yes(definitions.get("DEFAULT_HOME")))


def _enter(home: str, *, fatal: bool) -> None:
    try:
        os.chdir(home)
    except OSError as error:
        try:
            complain(PROGRAM, f"failed to change directory: {home}", error)
        except Exit:
            if fatal:
                raise


def _arguments(argv0: str, rc: str, command: Sequence[str]) -> list[str]:
    if Path(rc).exists():
        return [argv0, rc, *command]
    if not command:
        return [argv0]
    first = command[0]
    if " " in first:
        return [argv0, "-c", first, argv0.lstrip("-"), *command[1:]]
    if not Path(first).exists() or os.access(first, os.R_OK | os.X_OK):
        return [argv0, "-c", 'exec "$@"', argv0.lstrip("-"), *command]
    return [argv0, *command]


def execute(environment: dict[str, str], rc: str, command: Sequence[str], *, inside: int, outside: int) -> None:
    """Become the image's shell. `rc` is the start script's path inside."""
    login = "ENROOT_LOGIN_SHELL" in os.environ
    if login:
        _log_in(environment, inside, outside)
    shell = environment.get("SHELL") or ""
    if not shell or not os.access(shell, os.R_OK | os.X_OK):
        shell = "/bin/sh"
    argv0 = ("-" if login else "") + Path(shell).name
    # Python ignores SIGPIPE; a program inside expects to die of it.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.execve(shell, _arguments(argv0, rc, command), environment)
    except OSError as error:
        complain(PROGRAM, f"failed to execute: {shell}", error)
