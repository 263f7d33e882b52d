"""Where a box keeps its things."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import users
from .errors import BoxError

# A Unix socket's path may have 107 bytes; "munge/socket.2" and the like need the rest.
LONGEST_ROOT = 80


@dataclass(frozen=True)
class Layout:
    """Paths below one root that an ordinary user can reach."""

    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def slurm(self) -> Path:
        return self.root / "slurm"

    @property
    def slurm_conf(self) -> Path:
        return self.slurm / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.root / "munge" / "socket"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def group_workspace(self) -> Path:
        return self.root / "group-workspace"

    def create(self) -> None:
        self._check_root()
        for name in ("logs", "slurm", "slurm/state", "slurm/spool", "munge", "ssh", "registry"):
            directory = self.root / name
            directory.mkdir(exist_ok=True)
            directory.chmod(0o755)
        self.workspace.mkdir(exist_ok=True)
        shutil.chown(self.workspace, users.USER, pwd.getpwnam(users.USER).pw_gid)
        self.workspace.chmod(0o755)
        self.group_workspace.mkdir(exist_ok=True)
        shutil.chown(self.group_workspace, users.USER, users.GROUP)
        self.group_workspace.chmod(0o2770)

    def within_reach(self, directory: Path) -> Path:
        """The directory, or a copy if ordinary users cannot get at it, as in a checkout below /root."""
        if closed_parent(directory) is None:
            return directory
        copy = Path(shutil.copytree(directory, self.root / directory.name, symlinks=True))
        subprocess.run(["chmod", "--recursive", "go+rX", str(copy)], check=True)
        return copy

    def _check_root(self) -> None:
        if os.geteuid() != 0:
            raise BoxError("starting a box needs root: it runs sshd and slurmd for other users")
        if len(str(self.root)) > LONGEST_ROOT:
            raise BoxError(f"{self.root} is too long a path for the sockets below it")
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        if closed := closed_parent(self.root):
            raise BoxError(f"ordinary users cannot enter {closed}; choose another root for the box")


def closed_parent(path: Path) -> Path | None:
    """The first directory on the way to `path`, or `path` itself, that others may not enter."""
    way = [*reversed(path.parents), path]
    return next((directory for directory in way if not directory.stat().st_mode & 0o001), None)
