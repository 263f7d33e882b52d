"""Commands inside a box, as the ordinary user or as the operator, and what Slurm tells about its jobs."""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from . import users
from .errors import BoxError
from .space import CLEAN_ENV, ProcessSpace

ACTIVE_STATES = frozenset({"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING"})


class Job(NamedTuple):
    """One line of squeue or sacct."""

    job_id: int
    name: str
    state: str
    user: str


class Commands:
    """Runs commands in a process space, in a clean environment that knows the cluster."""

    def __init__(self, space: ProcessSpace, slurm_conf: Path, enroot_dir: Path | None) -> None:
        self.space = space
        self.slurm_conf = slurm_conf
        self.enroot_dir = enroot_dir

    def user_command(self, argv: Sequence[str], user: str = users.USER, cwd: Path | None = None) -> list[str]:
        """What to start to have `argv` run inside as an ordinary user; goes with `user_env()`."""
        entry = pwd.getpwnam(user)
        become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]
        # A command given up by its caller (a timeout) is not to stay behind.
        return self.space.enter([*become, "--pdeathsig=KILL", "--", *argv], cwd or Path(entry.pw_dir))

    def user_env(self, user: str = users.USER) -> dict[str, str]:
        entry = pwd.getpwnam(user)
        path = CLEAN_ENV["PATH"] if self.enroot_dir is None else f"{self.enroot_dir}:{CLEAN_ENV['PATH']}"
        return CLEAN_ENV | {
            "PATH": path,
            "HOME": entry.pw_dir,
            "USER": entry.pw_name,
            "LOGNAME": entry.pw_name,
            "SHELL": entry.pw_shell,
            "SLURM_CONF": str(self.slurm_conf),
        }

    def as_user(
        self,
        argv: Sequence[str],
        *,
        user: str = users.USER,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str = "",
        timeout: float = 60,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the ordinary user, in the home directory unless `cwd` is given."""
        return subprocess.run(
            self.user_command(argv, user, cwd),
            env=self.user_env(user) | dict(env or {}),
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )

    def as_root(self, argv: Sequence[str], *, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command with an operator's rights, such as `scontrol update`."""
        return subprocess.run(
            self.space.enter(argv),
            env=CLEAN_ENV | {"SLURM_CONF": str(self.slurm_conf)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=check,
        )

    def squeue(self, name: str | None = None) -> list[Job]:
        """All users' jobs that slurmctld knows of; finished ones too, until MinJobAge passes."""
        chosen = ["--name", name] if name else []
        return _jobs(self.as_root(["squeue", "-h", "-t", "all", "-o", "%i|%j|%T|%u", *chosen]))

    def active_jobs(self, name: str | None = None) -> list[Job]:
        return [job for job in self.squeue(name) if job.state in ACTIVE_STATES]

    def sacct(self, name: str | None = None) -> list[Job]:
        """All users' jobs that accounting knows of, which takes it a moment."""
        chosen = ["--name", name] if name else []
        fields = "jobidraw,jobname,state,user"
        return _jobs(self.as_root(["sacct", "-a", "-X", "-n", "-P", "-S", "now-1day", "-o", fields, *chosen]))


def _jobs(done: subprocess.CompletedProcess[str]) -> list[Job]:
    if done.returncode:
        raise BoxError(f"{done.args[-8:]} failed: {done.stderr}")
    rows = (line.split("|") for line in done.stdout.splitlines())
    # A state may say more: "CANCELLED by 1000".
    return [Job(int(job_id), name, state.split()[0], user) for job_id, name, state, user in rows]
