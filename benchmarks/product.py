# SPDX-License-Identifier: Apache-2.0
"""This provider's side: one task's work from request to published record, timed in three parts."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_slurm_images.core.records import ImageRecord
from airflow_slurm_images.lifecycle import Finished
from benchmarks.timed_box import CPUS, MEMORY_MB, TimedBox, settle
from tests.cluster.works import Task, import_task, inspect_task


@dataclass
class Timed:
    """Seconds before, in and after the job, and what the job spent them on."""

    submit: float
    job: float
    publish: float
    phases: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        parts = {"submit": self.submit, "job": self.job, "publish": self.publish}
        return {name: round(value, 3) for name, value in parts.items()} | {"phases": self.phases}


def profile(**changes: Any) -> dict[str, Any]:
    return {"cpus_per_task": CPUS, "memory": f"{MEMORY_MB}M", "time_limit": "04:00:00", **changes}


def forget_everything(timed: TimedBox) -> None:
    """Neither store nor layer cache nor aliases."""
    for path in timed.box.workspace.iterdir():
        shutil.rmtree(path)


def empty_store(timed: TimedBox) -> None:
    """The layer cache stays, so that an import of the same bytes is not compared with a file that is there."""
    for name in ("store", "aliases"):
        shutil.rmtree(timed.box.workspace / name, ignore_errors=True)


def import_image(timed: TimedBox, image: str, **options: Any) -> tuple[Timed, ImageRecord]:
    return _run(timed, import_task(timed.box, image, "benchmark", kind="client", **profile(**options)))


def inspect(timed: TimedBox, path: Path, **options: Any) -> tuple[Timed, ImageRecord]:
    return _run(timed, inspect_task(timed.box, path, **profile(**options)))


def import_unchanged(timed: TimedBox, image: str) -> tuple[float, int]:
    """Seconds of an import of what the store holds already, and how many jobs it took."""
    task = import_task(timed.box, image, "benchmark", kind="client", if_present="skip", **profile())
    before = timed.jobs()
    started = time.monotonic()
    finished = task.lifecycle.begin(task.work)
    seconds = time.monotonic() - started
    task.hook.close()
    assert isinstance(finished, Finished) and finished.record.reused
    return seconds, timed.jobs() - before


def _run(timed: TimedBox, task: Task) -> tuple[Timed, ImageRecord]:
    settle()
    started = time.monotonic()
    handle = task.begin()
    submitted = time.monotonic()
    job = timed.follow(handle.job_id, task.directory / "phase")
    ended = time.monotonic()
    task.wait()
    record = task.finish()
    return Timed(submitted - started, job.seconds, time.monotonic() - ended, job.phases), record
