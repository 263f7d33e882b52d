"""Mount tables in Enroot's dialect of fstab, performed below a root directory."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import syscalls as sys
from .console import complain, warn

PROGRAM = "enroot-mount"
_PROPAGATION = {
    sys.MS_SHARED: "rshared",
    sys.MS_SLAVE: "rslave",
    sys.MS_PRIVATE: "rprivate",
    sys.MS_UNBINDABLE: "runbindable",
}
_PROPAGATIONS = sys.MS_SHARED | sys.MS_SLAVE | sys.MS_PRIVATE | sys.MS_UNBINDABLE

_SETS = {
    "bind": sys.MS_BIND,
    "dirsync": sys.MS_DIRSYNC,
    "lazytime": sys.MS_LAZYTIME,
    "mand": sys.MS_MANDLOCK,
    "noatime": sys.MS_NOATIME,
    "nodev": sys.MS_NODEV,
    "nodiratime": sys.MS_NODIRATIME,
    "noexec": sys.MS_NOEXEC,
    "nosuid": sys.MS_NOSUID,
    "private": sys.MS_PRIVATE,
    "rbind": sys.MS_BIND | sys.MS_REC,
    "relatime": sys.MS_RELATIME,
    "remount": sys.MS_REMOUNT,
    "ro": sys.MS_RDONLY,
    "rprivate": sys.MS_PRIVATE | sys.MS_REC,
    "rshared": sys.MS_SHARED | sys.MS_REC,
    "rslave": sys.MS_SLAVE | sys.MS_REC,
    "runbindable": sys.MS_UNBINDABLE | sys.MS_REC,
    "shared": sys.MS_SHARED,
    "silent": sys.MS_SILENT,
    "slave": sys.MS_SLAVE,
    "strictatime": sys.MS_STRICTATIME,
    "sync": sys.MS_SYNCHRONOUS,
    "unbindable": sys.MS_UNBINDABLE,
    "x-move": sys.MS_MOVE,
}
_CLEARS = {
    "async": sys.MS_SYNCHRONOUS,
    "atime": sys.MS_NOATIME,
    "dev": sys.MS_NODEV,
    "diratime": sys.MS_NODIRATIME,
    "exec": sys.MS_NOEXEC,
    "loud": sys.MS_SILENT,
    "nolazytime": sys.MS_LAZYTIME,
    "nomand": sys.MS_MANDLOCK,
    "norelatime": sys.MS_RELATIME,
    "nostrictatime": sys.MS_STRICTATIME,
    "rw": sys.MS_RDONLY,
    "suid": sys.MS_NOSUID,
}
_IGNORED = {"auto", "defaults", "group", "iversion", "noauto", "nofail", "nogroup", "noiversion", "noowner"}
_IGNORED |= {"nouser", "nousers", "owner", "user", "users"}
_IGNORED |= {"x-create=dir", "x-create=file", "x-create=auto", "x-detach"}
_INHERITED = {
    os.ST_NOSUID: sys.MS_NOSUID,
    os.ST_NODEV: sys.MS_NODEV,
    os.ST_NOEXEC: sys.MS_NOEXEC,
    os.ST_RDONLY: sys.MS_RDONLY,
    os.ST_NOATIME: sys.MS_NOATIME,
    os.ST_NODIRATIME: sys.MS_NODIRATIME,
    os.ST_RELATIME: sys.MS_RELATIME,
}


@dataclass(frozen=True)
class Entry:
    source: str
    target: str
    kind: str
    options: tuple[str, ...]
    pass_number: int


def _is_options(text: str) -> bool:
    return "," in text or text in _SETS or text in _CLEARS or text in _IGNORED


def _completed(source: str, target: str, kind: str, options: str) -> tuple[str, str, str, str]:
    """Columns may be left out; what stands there tells which ones are meant."""
    if target and not kind and not options and _is_options(target):
        target, kind, options = "", "none", target
    if kind and not options and _is_options(kind):
        target, kind, options = "" if target == "none" else target, "none", kind
    if source == "tmpfs":
        return source, target, "tmpfs" if kind in ("", "none") else kind, options
    if source:
        target = target or source
        if kind in ("", "none"):
            kind, options = "none", options or "rbind,x-create=auto"
    return source, target, kind, options


def _number(text: str) -> int:
    match = re.match(r"-?\d+", text)
    return int(match[0]) if match else 0


def _unescape(word: str) -> str:
    return re.sub(r"\\(040|011|012|134)", lambda match: chr(int(match[1], 8)), word)


def parse(table: str) -> Iterator[Entry]:
    for line in table.splitlines():
        words = [_unescape(word) for word in line.split()]
        if not words or words[0].startswith("#"):
            continue
        words += [""] * (6 - len(words))
        source, target, kind, options = _completed(*words[:4])
        if not (source and target and kind):
            complain(PROGRAM, f'invalid fstab entry: "{line}"')
        frequency, number = _number(words[4]), _number(words[5])
        yield Entry(source, target, kind, tuple(filter(None, options.split(","))), number or frequency)


def _flags(options: tuple[str, ...]) -> tuple[int, str]:
    flags, data = 0, []
    for option in options:
        if option in _SETS:
            flags |= _SETS[option]
        elif option in _CLEARS:
            flags &= ~_CLEARS[option]
        elif option not in _IGNORED:
            data.append(option)
    return flags, ",".join(data)


def resolve(root: str, path: str, links: int = 40) -> str:
    """The path with symbolic links followed, but never out of the root."""
    parts: list[str] = []
    rest = path.split("/")
    while rest:
        name = rest.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            if not parts:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            parts.pop()
            continue
        here = Path(root, *parts, name)
        if not here.is_symlink():
            parts.append(name)
            continue
        links -= 1
        if links < 0:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        link = str(here.readlink())
        if link.startswith("/"):
            parts = []
        rest = link.split("/") + rest
    return "/".join([os.path.realpath(root).rstrip("/"), *parts]) or "/"


def _create(path: Path, *, directory: bool) -> None:
    """What is made has mode 0, like real Enroot's: only the mount on it is meant to be used."""
    previous = os.umask(0o022)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.exists():
            return
        if directory:
            path.mkdir(0)
        else:
            os.mknod(path, stat.S_IFREG)
    finally:
        os.umask(previous)


def _create_target(entry: Entry, path: Path, flags: int) -> None:
    source = Path(entry.source)
    if "x-create=file" in entry.options:
        _create(path, directory=False)
    elif "x-create=dir" in entry.options:
        _create(path, directory=True)
    elif "x-create=auto" in entry.options:
        if not flags & sys.MS_BIND:
            _create(path, directory=True)
        elif source.exists():
            _create(path, directory=source.is_dir())


def _inherited(path: str) -> int:
    """In a user namespace a mount's restrictions cannot be lifted, so they have to be repeated."""
    try:
        found = os.statvfs(path).f_flag
    except OSError:
        return 0
    return sum(flag for bit, flag in _INHERITED.items() if found & bit)


def _attach(entry: Entry, path: str, flags: int, data: str) -> None:
    if "x-detach" in entry.options:
        sys.unmount(path, sys.MNT_DETACH)
        return
    if "rbind" not in entry.options:
        flags &= ~sys.MS_REC
    if flags & (sys.MS_REMOUNT | sys.MS_BIND):
        flags |= _inherited(path if flags & sys.MS_REMOUNT else entry.source)
    sys.mount(entry.source, path, entry.kind, flags, data)
    if flags & sys.MS_BIND and not flags & sys.MS_REMOUNT and (flags & ~(sys.MS_BIND | sys.MS_REC) or data):
        sys.mount(None, path, None, flags | sys.MS_REMOUNT, data)


def _propagate(entry: Entry, path: str, flags: int) -> None:
    for flag, recursive in _PROPAGATION.items():
        if flags & flag:
            sys.mount(None, path, None, flag | (sys.MS_REC if recursive in entry.options else 0))


def _perform(root: str, entry: Entry) -> None:
    slash = "" if entry.target.startswith("/") else "/"
    doing = f"failed to resolve path: {root}{slash}{entry.target}"
    try:
        path = resolve(root, entry.target)
        flags, data = _flags(entry.options)
        doing = f"failed to create {'file' if 'x-create=file' in entry.options else 'directory'}: {path}"
        _create_target(entry, Path(path), flags)
        undo = "un" if "x-detach" in entry.options else ""
        doing = f"failed to {undo}mount: {entry.source} at {path}"
        if entry.kind != "none" or flags & ~(_PROPAGATIONS | sys.MS_REC | sys.MS_SILENT) or undo:
            _attach(entry, path, flags & ~_PROPAGATIONS, data)
        doing = f"failed to set mount propagation: {path}"
        _propagate(entry, path, flags)
    except OSError as error:
        _report(entry, doing, error)


def _report(entry: Entry, doing: str, error: OSError) -> None:
    if "nofail" not in entry.options:
        complain(PROGRAM, doing, error)
    if "silent" not in entry.options or "loud" in entry.options:
        warn(PROGRAM, doing, error)


def perform(table: str, *, root: str = "/", pass_number: int = 0) -> None:
    for entry in parse(table):
        if entry.pass_number == pass_number:
            _perform(root, entry)
