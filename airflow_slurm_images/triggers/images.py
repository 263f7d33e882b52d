# SPDX-License-Identifier: Apache-2.0
"""SlurmJobTrigger: wait for one job in the triggerer, through the look all waiting tasks of a cluster share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_slurm_images.core.decide import Limits, Verdict
from airflow_slurm_images.core.records import CompletionRecord, JobHandle
from airflow_slurm_images.lifecycle import Finished, Lifecycle
from airflow_slurm_images.triggers.channel import whole
from airflow_slurm_images.triggers.observer import SharedObserver, cancel

_TELLS_KILLS = hasattr(BaseTrigger, "on_kill")
"""Since 3.3 Airflow calls ``on_kill`` when a user ends a deferred task; before, it only cancels the coroutine."""
_ENDED = frozenset({"failed", "success", "removed", "skipped"})
"""States of a task instance that nobody waits for any more (skipped: the DAG run's time was over)."""
_STATE_SECONDS = 60
"""For asking Airflow for that state: a triggerer's first question makes Airflow 3.1 load its own API, which takes long
on a loaded machine. A triggerer that stops is killed by Airflow after 20 s anyway."""


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

    def finish(self, lifecycle: Lifecycle, *, cancel: bool = True) -> Finished:
        """Publish and return the image record; raises the error of every end but a good one.

        ``cancel``: whether a job that takes too long for us is cancelled.
        """
        if self.verdict.kind != "succeeded":
            raise lifecycle.failed(self.handle, self.verdict, self.record, cancel=cancel)
        return lifecycle.finish(self.handle)


class SlurmJobTrigger(BaseTrigger):
    """Fires once, when the job ended or waiting for it did; the event is a :class:`WaitOutcome`.

    :param job: job handle (plain JSON).
    :param poll_interval: seconds between looks; triggers of one cluster share the shortest of theirs.
    :param pending_timeout: seconds the job may wait in the queue.
    :param run_timeout: seconds the job may run.
    :param stream: name under which the cluster keeps how much of the output this task's log has.
    :param cancel_on_kill: cancel the job when the task is cleared or marked while it waits.
    :param generation: of the tries that wait; a job that a later one adopted is not cancelled.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        poll_interval: float = 30,
        pending_timeout: float | None = None,
        run_timeout: float | None = None,
        stream: str = "try1",
        cancel_on_kill: bool = True,
        generation: int | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = dict(job)
        self.poll_interval = poll_interval
        self.pending_timeout = pending_timeout
        self.run_timeout = run_timeout
        self.stream = stream
        self.cancel_on_kill = cancel_on_kill
        self.generation = generation

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
                "generation": self.generation,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait; a cancelled wait (triggerer shutdown, redistribution) leaves the job alone.

        Where Airflow does not tell a user's kill from that, the job is cancelled only when the task is at its end.
        """
        handle = JobHandle.model_validate(self.job)
        limits = Limits(pending_timeout=self.pending_timeout, run_timeout=self.run_timeout)
        try:
            observer = await SharedObserver.get(handle)
            verdict, record, job_id = await observer.wait(handle, limits, self.poll_interval, self.stream, self.log)
        except asyncio.CancelledError:
            if not _TELLS_KILLS and self.cancel_on_kill and await self._task_state() in _ENDED:
                await self.on_kill()
            raise
        outcome = WaitOutcome(handle.model_copy(update={"job_id": job_id}), verdict, record)
        yield TriggerEvent(outcome.to_event())  # type: ignore[no-untyped-call]

    async def _task_state(self) -> str | None:
        """State of our task instance as Airflow has it now; None when that is not known."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        instance: Any = self.task_instance
        if instance is None:
            return None
        ask = sync_to_async(RuntimeTaskInstance.get_task_states)
        try:
            states = await asyncio.wait_for(
                whole(
                    ask(
                        dag_id=instance.dag_id,
                        task_ids=[instance.task_id],
                        run_ids=[instance.run_id],
                        map_index=instance.map_index,
                    )
                ),
                _STATE_SECONDS,
            )
            key = instance.task_id if instance.map_index < 0 else f"{instance.task_id}_{instance.map_index}"
            return str(states.get(instance.run_id, {}).get(key))
        except Exception as err:  # shutting down, or an answer of another kind: in doubt the job goes on
            self.log.warning("The state of the task is not known (%r); its job goes on", err)
            return None

    async def on_kill(self) -> None:
        """Cancel the job: Airflow 3.3 calls this when the user clears or marks the deferred task."""
        if self.cancel_on_kill:
            await cancel(JobHandle.model_validate(self.job), self.generation)
