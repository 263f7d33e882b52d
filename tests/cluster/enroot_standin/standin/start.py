"""`start`: arguments are checked outside, namespaces are made here, sandbox.py does the rest inside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import containers, sandbox, seccomp
from . import syscalls as sys
from .console import Exit, complain, fail, is_squashfs, log, need, real_path

PROGRAM = "enroot-nsenter"


@dataclass(frozen=True)
class Request:
    """What to start, and with what."""

    rootfs: Path
    command: tuple[str, ...]
    rc: Path | None
    conf: Path | None
    mounts: tuple[str, ...] = field(default=())
    environ: tuple[str, ...] = field(default=())


def _rootfs(name: str) -> Path:
    """A SquashFS file by its path, or the name of a container."""
    if not name:
        fail("Invalid argument")
    if Path(name).is_file() and is_squashfs(name):
        return real_path(name)
    return containers.existing(name)


def _script(path: str) -> Path | None:
    if not path:
        return None
    script = real_path(path)
    if not script.is_file():
        fail(f"No such file or directory: {script}")
    return script


def _checked_conf(path: str) -> Path | None:
    conf = _script(path)
    if conf is not None:
        checked = subprocess.run(["bash", "-n", str(conf)], stderr=subprocess.PIPE, text=True, check=False)
        for line in checked.stderr.splitlines():
            log("WARN", line)
        if checked.returncode:
            fail(f"Invalid argument: {conf}")
    return conf


def _matching(pattern: str, values: Sequence[str]) -> tuple[str, ...]:
    for value in values:
        if not re.fullmatch(pattern, value):
            fail(f"Invalid argument: {value}")
    return tuple(values)


def _map_identity(inside_root: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        sys.unshare(sys.CLONE_NEWUSER)
        for name, line in (
            ("setgroups", "deny"),
            ("gid_map", f"{0 if inside_root else gid} {gid} 1"),
            ("uid_map", f"{0 if inside_root else uid} {uid} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(line)
        if not inside_root:
            sys.keep_capabilities_over_exec()
    except OSError as error:
        complain(PROGRAM, "failed to create user namespace", error)


def _unshare(label: str, flag: int) -> None:
    try:
        sys.unshare(flag)
    except OSError as error:
        complain(PROGRAM, f"failed to create {label} namespace", error)


def _wait_for(child: int) -> None:
    """Stand for the container outside its PID namespace: pass signals on, end the way it ended."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: os.kill(child, received))
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        raise Exit(os.WEXITSTATUS(status))
    number = signal.Signals(os.WTERMSIG(status))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise Exit(128 + number)


def _enter_pid_namespace() -> None:
    _unshare("PID", sys.CLONE_NEWPID)
    parent = os.getpid()
    child = os.fork()
    if child:
        _wait_for(child)
    sys.prctl(sys.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (parent, 0):
        raise Exit(1)


def _enter_namespaces() -> None:
    env = os.environ
    _map_identity("ENROOT_REMAP_ROOT" in env)
    if "ENROOT_UNSHARE_PID" in env:
        _enter_pid_namespace()
    _unshare("mount", sys.CLONE_NEWNS)
    if "ENROOT_UNSHARE_NET" in env:
        _unshare("network", sys.CLONE_NEWNET)
        sys.loopback_up()
    if "ENROOT_UNSHARE_IPC" in env:
        _unshare("IPC", sys.CLONE_NEWIPC)
    if "ENROOT_UNSHARE_UTS" in env:
        _unshare("UTS", sys.CLONE_NEWUTS)
    seccomp.install()


def command(arguments: Sequence[str], options: dict[str, list[str]]) -> None:
    need("mountpoint", "awk", "grep", "sed", "flock")
    request = Request(
        rootfs=_rootfs(arguments[0]),
        command=tuple(arguments[1:]),
        mounts=_matching(r"[^\s]+(?::[^\s]+)*", options.get("mount", [])),
        environ=_matching(r"[A-Za-z_][A-Za-z0-9_]*(?:=.*)?", options.get("env", [])),
        rc=_script(options.get("rc", [""])[-1]),
        conf=_checked_conf(options.get("conf", [""])[-1]),
    )
    outside = os.geteuid()
    _enter_namespaces()
    sandbox.Sandbox(request, outside).start()
