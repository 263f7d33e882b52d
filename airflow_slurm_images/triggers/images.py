# SPDX-License-Identifier: Apache-2.0
"""SlurmJobTrigger: wait for one job in the triggerer, through the look all waiting tasks of a cluster share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_slurm_images.core.decide import Limits, Verdict
from airflow_slurm_images.core.records import CompletionRecord, JobHandle
from airflow_slurm_images.lifecycle import Lifecycle
from airflow_slurm_images.triggers.observer import SharedObserver, cancel


@dataclass(frozen=True)
class WaitOutcome:
    """How waiting ended: the handle of the job that ran the attempt, the verdict, the job's record if there is one."""

    handle: JobHandle
    verdict: Verdict
    record: CompletionRecord | None

    def to_event(self) -> dict[str, Any]:
        """Plain JSON for a trigger event; whole in itself, as ``dag.test()`` drops all other arguments."""
        return {
            "job": self.handle.model_dump(mode="json"),
            "verdict": {**asdict(self.verdict), "notes": [], "warnings": []},
            "record": self.record.model_dump(mode="json") if self.record else None,
        }

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> WaitOutcome:
        """Read what :meth:`to_event` wrote."""
        verdict = Verdict(**{**event["verdict"], "notes": (), "warnings": ()})
        record = event.get("record")
        return cls(
            JobHandle.model_validate(event["job"]),
            verdict,
            CompletionRecord.model_validate(record) if record else None,
        )

    def finish(self, lifecycle: Lifecycle, *, cancel: bool = True) -> dict[str, Any]:
        """Publish and return the image record as plain JSON; raises the error of every end but a good one.

        ``cancel``: whether a job that takes too long for us is cancelled.
        """
        if self.verdict.kind != "succeeded":
            raise lifecycle.failed(self.handle, self.verdict, self.record, cancel=cancel)
        return lifecycle.finish(self.handle).model_dump(mode="json")


class SlurmJobTrigger(BaseTrigger):
    """Fires once, when the job ended or waiting for it did; the event is a :class:`WaitOutcome`.

    :param job: job handle (plain JSON).
    :param poll_interval: seconds between looks; triggers of one cluster share the shortest of theirs.
    :param pending_timeout: seconds the job may wait in the queue.
    :param run_timeout: seconds the job may run.
    :param stream: name under which the cluster keeps how much of the output this task's log has.
    :param cancel_on_kill: cancel the job when the task is cleared or marked while it waits.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        poll_interval: float = 30,
        pending_timeout: float | None = None,
        run_timeout: float | None = None,
        stream: str = "try1",
        cancel_on_kill: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = dict(job)
        self.poll_interval = poll_interval
        self.pending_timeout = pending_timeout
        self.run_timeout = run_timeout
        self.stream = stream
        self.cancel_on_kill = cancel_on_kill

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and JSON arguments; a restarted triggerer goes on from these and the run directory."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "job": self.job,
                "poll_interval": self.poll_interval,
                "pending_timeout": self.pending_timeout,
                "run_timeout": self.run_timeout,
                "stream": self.stream,
                "cancel_on_kill": self.cancel_on_kill,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait; a cancelled wait (triggerer shutdown, redistribution) leaves the job alone."""
        handle = JobHandle.model_validate(self.job)
        limits = Limits(pending_timeout=self.pending_timeout, run_timeout=self.run_timeout)
        observer = await SharedObserver.get(handle)
        verdict, record, job_id = await observer.wait(handle, limits, self.poll_interval, self.stream, self.log)
        outcome = WaitOutcome(handle.model_copy(update={"job_id": job_id}), verdict, record)
        yield TriggerEvent(outcome.to_event())  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Airflow 3.3 calls this when the user clears or marks the deferred task: cancel the job."""
        if self.cancel_on_kill:
            await cancel(JobHandle.model_validate(self.job))
