"""What the tests of the box share: submitting, logging in, looking for leftovers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import procfs
from .box import Box
from .polling import wait_until


def submit(box: Box, *argv: str) -> int:
    done = box.as_user(["sbatch", "--parsable", "--output=/dev/null", *argv], check=True)
    return int(done.stdout.partition(";")[0])


def state_of(box: Box, job_id: int) -> str | None:
    return {job.job_id: job.state for job in box.squeue()}.get(job_id)


def reaches(box: Box, job_id: int, state: str, timeout: float = 30) -> bool:
    return wait_until(lambda: state_of(box, job_id) == state, timeout)


def ssh(box: Box, *options: str, login: str | None = None) -> list[str]:
    """A client that accepts the box's host key and no other."""
    known_hosts = box.root / "known_hosts"
    known_hosts.write_text(f"[{box.ssh_host}]:{box.ssh_port} {box.known_host_key}\n")
    strict = [
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        f"UserKnownHostsFile={known_hosts}",
        "-o",
        "BatchMode=yes",
    ]
    address = f"{login or box.user}@{box.ssh_host}"
    return [
        "ssh",
        "-F",
        "none",
        "-i",
        str(box.ssh_key_path),
        "-p",
        str(box.ssh_port),
        *strict,
        *options,
        address,
    ]


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)


def left_over(root: Path) -> list[int]:
    return [pid for pid in procfs.all_pids() if procfs.mentions(pid, str(root))]
