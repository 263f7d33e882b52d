"""The Linux calls Python 3.10 has no functions for."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_SYNCHRONOUS, MS_REMOUNT = 1, 2, 4, 8, 16, 32
MS_MANDLOCK, MS_DIRSYNC, MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_MOVE = 64, 128, 1024, 2048, 4096, 8192
MS_REC, MS_SILENT, MS_UNBINDABLE, MS_PRIVATE = 1 << 14, 1 << 15, 1 << 17, 1 << 18
MS_SLAVE, MS_SHARED, MS_RELATIME, MS_STRICTATIME, MS_LAZYTIME = 1 << 19, 1 << 20, 1 << 21, 1 << 24, 1 << 25
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 38, 47
_PR_CAP_AMBIENT_RAISE = 2
_CAPABILITY_VERSION_3 = 0x20080522
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags))


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    options = (_bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags), _bytes(data))
    _checked(_libc.mount(*options))


def unmount(target: str, flags: int) -> None:
    _checked(_libc.umount2(_bytes(target), flags))


def pivot_root_here() -> None:
    """The working directory becomes the root; the old root lies above it until it is unmounted."""
    _checked(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))


def prctl(option: int, first: int, second: int = 0) -> None:
    words = [ctypes.c_ulong(value) for value in (first, second, 0, 0)]
    _checked(_libc.prctl(option, *words))


def last_capability() -> int:
    return int(Path("/proc/sys/kernel/cap_last_cap").read_text())


def keep_capabilities_over_exec() -> None:
    """Raise what the new user namespace gave us, so that hooks and mount helpers have it as well."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _checked(_libc.capget(header, data))
    low, permitted_low, _, high, permitted_high, _ = struct.unpack("=6I", data.raw)
    _checked(_libc.capset(header, struct.pack("=6I", low, permitted_low, low, high, permitted_high, high)))
    effective = low | high << 32
    for number in range(64):
        if effective >> number & 1:
            prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)


def drop_capabilities(last: int) -> None:
    for number in range(last + 1):
        prctl(PR_CAPBSET_DROP, number)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, bytes(24)))


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", b"lo", 0))
        flags = struct.unpack_from("H", answer, 16)[0] | _IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags))
