# SPDX-License-Identifier: Apache-2.0
"""A cluster in a box whose node keeps the time of every job, to the millisecond, and whose jobs' phases are followed.

Slurm's own record has whole seconds. So Slurm's prolog and epilog, which the node runs right before and after a batch
script, whosever it is, write down the time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.box import Box
from tests.cluster.conftest import enroot_on_this_machine
from tests.cluster.polling import wait_until

MEMORY_MB = 12288
CPUS = min(2, os.cpu_count() or 1)
KEEP_TIME = """\
#!/bin/sh
date +%s.%N > {directory}/$SLURM_JOB_ID.{name}.new
mv {directory}/$SLURM_JOB_ID.{name}.new {directory}/$SLURM_JOB_ID.{name}
"""


@dataclass
class JobTime:
    """One job: wall time of its batch script and the time spent in each phase it reported."""

    job_id: int
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)


class TimedBox:
    """The box, and what its node wrote down."""

    def __init__(self, box: Box, times: Path) -> None:
        self.box = box
        self._times = times

    def follow(self, job_id: int, phase_file: Path, timeout: float = 14400) -> JobTime:
        """Wait for a job's end; its phases are taken from the times of the file that names them."""
        stop = threading.Event()
        seen: dict[tuple[str, int], float] = {}
        watcher = threading.Thread(target=_watch, args=(phase_file, seen, stop))
        watcher.start()
        try:
            if not wait_until(lambda: self._time(job_id, "end") is not None, timeout, 0.02):
                raise RuntimeError(f"job {job_id} did not end within {timeout} s")
        finally:
            stop.set()
            watcher.join()
        start, end = self._time(job_id, "start"), self._time(job_id, "end")
        assert start is not None and end is not None
        marks = sorted((stamp, name) for (name, _), stamp in seen.items())
        found = JobTime(job_id, end - start)
        ends = [*(stamp for stamp, _ in marks[1:]), end]
        for (stamp, name), until in zip(marks, ends, strict=True):
            found.phases[name] = round(found.phases.get(name, 0.0) + until - stamp, 3)
        return found

    def _time(self, job_id: int, name: str) -> float | None:
        file = self._times / f"{job_id}.{name}"
        return float(file.read_text()) if file.exists() else None

    def jobs(self) -> int:
        """How many jobs the cluster has had."""
        return len(self.box.squeue())

    def run(self, *argv: str, **environment: str) -> float:
        """Seconds a command takes on the node, as the ordinary user."""
        started = time.monotonic()
        done = self.box.as_user(list(argv), env=environment, timeout=14400)
        if done.returncode:
            raise RuntimeError(f"{argv} failed: {done.stderr[-2000:]}")
        return time.monotonic() - started

    def directory(self, name: str) -> Path:
        """A new private directory of the ordinary user's; what was there is gone."""
        path = self.box.root / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        shutil.chown(path, self.box.user, self.box.user)
        return path


def _watch(file: Path, seen: dict[tuple[str, int], float], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            stat, name = file.stat(), file.read_text().split(" ")[0].strip()
            if name:
                seen.setdefault((name, stat.st_mtime_ns), stat.st_mtime_ns / 1e9)
        except OSError:
            pass
        stop.wait(0.01)


@contextmanager
def timed_box(directory: str | None = None) -> Iterator[TimedBox]:
    """A box with accounting below `directory` (default: the temporary directory), removed after."""
    root = Path(tempfile.mkdtemp(prefix="asi-bench-", dir=directory))
    root.chmod(0o755)
    times = root / "times"
    times.mkdir()
    settings = {}
    for option, name in (("Prolog", "start"), ("Epilog", "end")):
        script = root / name
        script.write_text(KEEP_TIME.format(directory=times, name=name))
        script.chmod(0o755)
        settings[option] = str(script)
    settings["MinJobAge"] = "86400"  # so that all jobs can be counted
    try:
        with Box(root, True, enroot_on_this_machine(), cpus=CPUS, memory_mb=MEMORY_MB, slurm_conf=settings) as box:
            yield TimedBox(box, times)
    finally:
        subprocess.run(["chmod", "-R", "u+rwX", str(root)], check=False)
        shutil.rmtree(root)


def settle() -> None:
    """What the last job wrote is on disk before the next one is timed."""
    os.sync()
