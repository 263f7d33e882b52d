# SPDX-License-Identifier: Apache-2.0
"""What waiting costs the login node: SSH connections and remote commands per minute for 1, 50 and 500 deferred tasks.

    python -m benchmarks.control_plane [--seconds 120] [--interval 30] [--tasks 1 50 500] [--quick] [--output NAME]

Real triggers on one event loop, as in a triggerer, watch real (pending) jobs of a cluster in a box over its real sshd.
Counted at the server's side, in sshd's log. Every tenth task has a profile of its own, as tasks do that ask for more
memory. Takes root, as the box does. Numbers are printed, and with --output written as a result.
"""

from __future__ import annotations

from tests.airflow import environment  # noqa: F401  # isort: skip  # settles Airflow's configuration, so it comes first

import argparse
import asyncio
import logging
import os
import secrets
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_slurm_images.core.observation import Observation, Watch, payload
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.triggers import observer
from airflow_slurm_images.triggers.images import SlurmJobTrigger
from benchmarks import machine, results
from tests.cluster.box import Box, temporary_box
from tests.cluster.conftest import enroot_on_this_machine
from tests.cluster.slurm_daemons import CLOSED_PARTITION

CONNECTION = "box"


@dataclass
class Looks:
    """What the hook did: length of each look in seconds and of its question in bytes."""

    seconds: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def watch(self) -> None:
        """From now on the observer's hook is one that keeps the time."""
        looks = self

        class TimedHook(SlurmHook):
            def observe(self, watches: Sequence[Watch], cluster: str | None = None) -> list[Observation]:
                started = time.monotonic()
                try:
                    return super().observe(watches, cluster)
                finally:
                    looks.seconds.append(time.monotonic() - started)
                    looks.asked.append(len(payload(watches)))

        vars(observer)["SlurmHook"] = TimedHook


def submit(box: Box) -> dict[str, Any]:
    """A job that waits for ever, and its handle; the run directory is as staging leaves it."""
    key, attempt = secrets.token_hex(16), secrets.token_hex(8)
    directory = box.workspace / "users" / box.user / "runs" / key / attempt
    directory.mkdir(parents=True)
    for path in (directory, *directory.parents):
        if path == box.workspace:
            break
        shutil.chown(path, box.user)
    argv = ["sbatch", "--parsable", "--output=/dev/null", f"--partition={CLOSED_PARTITION}", f"--job-name=asi-{key}"]
    answer = box.as_user([*argv, "--wrap=true"], check=True).stdout
    return {
        "slurm_conn_id": CONNECTION,
        "job_id": int(answer.partition(";")[0]),
        "cluster": None,
        "job_name": f"asi-{key}",
        "run_key": key,
        "attempt": attempt,
        "token": secrets.token_hex(16),
        "workspace": str(box.workspace),
        "run_directory": str(directory),
        "submitted_at": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "profile": {},
    }


async def wait(handles: Sequence[dict[str, Any]], interval: float, seconds: float) -> None:
    """Wait for all of them for so many seconds, each in a coroutine of its own."""

    async def one(handle: dict[str, Any]) -> None:
        async for event in SlurmJobTrigger(handle, interval).run():
            raise AssertionError(f"a job that cannot start ended: {event}")

    waiting = [asyncio.create_task(one(handle)) for handle in handles]
    done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def measure(box: Box, tasks: int, interval: float, seconds: float, looks: Looks) -> dict[str, Any]:
    handles = [submit(box) for _ in range(tasks)]
    for handle in handles[::10]:
        handle["profile"] = {"memory": f"{secrets.randbelow(100) + 1}G"}
    log: Path = box.sshd.daemon.log
    before = log.read_text(errors="replace")
    looks.seconds.clear()
    looks.asked.clear()
    started = time.monotonic()
    asyncio.run(wait(handles, interval, seconds))
    minutes = (time.monotonic() - started) / 60
    lines = log.read_text(errors="replace")[len(before) :]
    box.as_user(["scancel", f"--user={box.user}"], check=True)
    return {
        "tasks": tasks,
        "connections": lines.count("Accepted publickey"),
        "commands": lines.count("Starting session: command"),
        "minutes": round(minutes, 3),
        "seconds_per_look": round(statistics.median(looks.seconds), 3),
        "bytes_asked": max(looks.asked),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="of waiting for each number of tasks")
    parser.add_argument("--interval", type=float, default=30, help="the tasks' poll_interval")
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 50, 500])
    parser.add_argument("--quick", action="store_true", help="one and ten tasks for ten seconds")
    parser.add_argument("--output", help="name of the result; nothing is written without")
    options = parser.parse_args()
    if options.quick:
        options.tasks, options.seconds, options.interval = [1, 10], 10, 3
    logging.disable(logging.INFO)
    looks = Looks()
    looks.watch()
    document = machine.describe(enroot_on_this_machine()) | {"poll_interval": options.interval, "rows": []}
    with temporary_box(True) as box:
        os.environ["AIRFLOW_CONN_BOX"] = box.connection_json
        for tasks in options.tasks:
            row = measure(box, tasks, options.interval, options.seconds, looks) | {"load": machine.load()}
            print(row, flush=True)
            document["rows"].append(row)
    if options.output:
        results.write(options.output, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
