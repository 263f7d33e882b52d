"""What /proc says about processes: parents, names, namespaces. Only reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"  # a state in /proc/net/tcp


def all_pids() -> Iterator[int]:
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def parent_of(pid: int) -> int | None:
    """The parent's pid, or None when the process is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses.
    return int(stat.rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[int]:
    return [child for child in all_pids() if parent_of(child) == pid]


def descendants_of(pid: int) -> list[int]:
    """Every process below `pid`, children before grandchildren."""
    below: dict[int, list[int]] = defaultdict(list)
    for candidate in all_pids():
        parent = parent_of(candidate)
        if parent is not None:
            below[parent].append(candidate)
    found = list(below[pid])
    for member in found:  # grows while we walk it
        found.extend(below[member])
    return found


def name_of(pid: int) -> str | None:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def pid_namespace_of(pid: int) -> str | None:
    try:
        return str((PROC / str(pid) / "ns" / "pid").readlink())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def pids_in_namespace(namespace: str) -> list[int]:
    return [pid for pid in all_pids() if pid_namespace_of(pid) == namespace]


def listening_addresses(port: int) -> set[str]:
    """The local addresses, in the kernel's hex, on which something listens at a TCP port."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            address, _, number = line.split()[1].rpartition(":")
            if int(number, 16) == port and line.split()[3] == LISTENING:
                found.add(address)
    return found


def mentions(pid: int, text: str) -> bool:
    """True if the process names `text` in its command line, environment or working directory."""
    directory = PROC / str(pid)
    wanted = text.encode()
    try:
        if wanted in (directory / "cmdline").read_bytes() or wanted in (directory / "environ").read_bytes():
            return True
        return text in str((directory / "cwd").readlink())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
