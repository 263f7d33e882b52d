# SPDX-License-Identifier: Apache-2.0
"""What a job or an image may have left or changed: processes, mounts, scratch, files of the user's home."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import procfs
from .box import Box
from .works import Task, as_operator

# What an ordinary user's home holds that must not be read, changed or run.
PRECIOUS = {
    ".bashrc": "# precious\n",
    ".netrc": "machine registry.example login me password of-the-host\n",
    ".ssh/authorized_keys": "ssh-ed25519 AAAA\n",
    "precious": "of the host\n",
}


def user_pids(box: Box) -> list[int]:
    """The user's processes in the box; what ends meanwhile is left out."""
    uid = pwd.getpwnam(box.user).pw_uid
    found = []
    for pid in box.space.pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (procfs.PROC / str(pid)).stat().st_uid == uid:
                found.append(pid)
    return found


def user_processes(box: Box) -> list[str]:
    """Command lines of the user's processes in the box; sshd's side of an open connection does not count."""
    found = []
    for pid in user_pids(box):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if procfs.name_of(pid) != "sshd":
                line = (procfs.PROC / str(pid) / "cmdline").read_bytes()
                found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if line]  # without a command line: ended, about to be reaped


def mounts_of(box: Box, task: Task) -> list[str]:
    """Mounts that name the task's scratch or attempt, in any mount namespace of the box."""
    words = (task.handle.token, task.handle.attempt, "squashfuse", "fuse-overlayfs")
    tables = set()
    for pid in [*box.space.pids(), os.getpid()]:
        try:
            tables.add((procfs.PROC / str(pid) / "mountinfo").read_text())
        except (OSError, ProcessLookupError):
            continue
    return [line for table in tables for line in table.splitlines() if any(word in line for word in words)]


def scratch_of(task: Task) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"asi-{task.handle.token}.*"))


def left_by(box: Box, task: Task) -> list[str]:
    """Everything of an ended job that should be gone."""
    return [*user_processes(box), *mounts_of(box, task), *map(str, scratch_of(task))]


def snapshot(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Mode, modification time and content of everything below a directory."""
    found = {}
    for path in sorted([directory, *directory.rglob("*")]):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_mtime_ns, content)
    return found


@contextmanager
def private_home(box: Box, files: dict[str, str] | None = None, user: str | None = None) -> Iterator[Path]:
    """Give a user of this box, and of no other, a home of its own; yields it as seen from outside."""
    entry = pwd.getpwnam(user or box.user)
    home = Path(tempfile.mkdtemp(prefix="home-", dir=box.root))
    for name, text in (PRECIOUS | (files or {})).items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in [home, *home.rglob("*")]:
        os.chown(path, entry.pw_uid, entry.pw_gid)
    with bound(box, home, Path(entry.pw_dir)):
        yield home
    shutil.rmtree(home)


@contextmanager
def bound(box: Box, source: Path, target: Path) -> Iterator[None]:
    """Put `source` over `target` for everything in the box, and only there."""
    as_operator(box, "mount", "--bind", str(source), str(target))
    try:
        yield
    finally:
        as_operator(box, "umount", "--lazy", str(target))
