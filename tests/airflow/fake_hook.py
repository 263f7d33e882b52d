# SPDX-License-Identifier: Apache-2.0
"""A hook that plays a cluster: what it is asked is noted, what it answers is chosen by the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from airflow_slurm_images.core.evidence import CompletionFound, Evidence
from airflow_slurm_images.core.observation import Observation, Watch
from airflow_slurm_images.core.records import CompletionRecord
from airflow_slurm_images.core.slurm import QueueAnswer, QueueRow

Answer = Callable[[Watch], Observation]


def running(watch: Watch, log: bytes = b"") -> Observation:
    row = QueueRow(watch.job_id, "RUNNING", "None", 1, "n1", watch.job_name)
    return Observation(Evidence(queue=QueueAnswer("ok", rows=(row,))), log=log)


def done(watch: Watch, log: bytes = b"") -> Observation:
    record = CompletionRecord.model_validate(
        {
            "schema_version": 1,
            "token": watch.token,
            "operation": "import_oci",
            "exit_status": 0,
            "phase": "done",
            "tool_status": 0,
            "job_id": watch.job_id,
            "restart_count": 0,
            "cluster": "lab",
            "node": "n1",
            "elapsed_seconds": 1,
            "hash_tool": "openssl",
            "machine": "x86_64",
            "sqsh": {
                "path": "/ws/store/sha256/x.sqsh",
                "sha256": 64 * "e",
                "size_bytes": 4096,
                "inode": 7,
                "mtime": 1,
                "managed": True,
            },
        }
    )
    return Observation(Evidence(queue=QueueAnswer("ok"), completion=CompletionFound(0)), record=record, log=log)


class FakeHook:
    """Counts looks, connections closed and cancels. One command at a time is part of the promise."""

    def __init__(self, answer: Answer = running) -> None:
        self.answer = answer
        self.looks: list[tuple[float, list[int], str | None]] = []
        self.cancelled: list[tuple[Any, ...]] = []
        self.cancel_options: list[dict[str, Any]] = []
        self.closed = 0
        self._busy = threading.Lock()

    def observe(self, watches: Sequence[Watch], cluster: str | None = None) -> list[Observation]:
        assert self._busy.acquire(blocking=False), "two remote commands at once"
        try:
            self.looks.append((time.monotonic(), [watch.job_id for watch in watches], cluster))
            return [self.answer(watch) for watch in watches]
        finally:
            self._busy.release()

    def cancel(self, *what: Any, **options: Any) -> QueueAnswer:
        self.cancelled.append(what)
        self.cancel_options.append(options)
        return QueueAnswer("ok")

    def close(self) -> None:
        self.closed += 1
