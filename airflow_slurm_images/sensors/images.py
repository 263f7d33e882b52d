# SPDX-License-Identifier: Apache-2.0
"""SlurmJobSensor: wait for a job that an operator only submitted, then publish and return the image record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import BaseSensorOperator, PokeReturnValue, conf
from pydantic import ValidationError

from airflow_slurm_images.core.decide import Limits
from airflow_slurm_images.core.errors import ClusterUnavailableError
from airflow_slurm_images.core.profile import invalid_input
from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.core.watch import JobWatch
from airflow_slurm_images.hooks.slurm import KILL_SECONDS, KILL_TIMEOUT, SlurmHook
from airflow_slurm_images.lifecycle import Lifecycle, emit
from airflow_slurm_images.task_context import reported, seconds
from airflow_slurm_images.triggers.images import SlurmJobTrigger, WaitOutcome


class SlurmJobSensor(BaseSensorOperator):
    """Wait for the job of an operator run with ``wait_for_completion=False``; poke, reschedule or deferrable.

    When the job ended well the sensor publishes the alias and returns the image record. It cancels only if told to.

    :param job: job handle, usually ``import_task.output``. Templated.
    :param deferrable: wait in the triggerer; default: Airflow's ``[operators] default_deferrable``.
    :param pending_timeout: seconds (or timedelta) the job may wait in the queue (deferrable or poke mode).
    :param run_timeout: seconds (or timedelta) the job may run (deferrable or poke mode).
    :param cancel_on_kill: cancel the job when the sensor is killed; default False.
    """

    template_fields: Sequence[str] = ("job",)

    def __init__(
        self,
        *,
        job: Mapping[str, Any] | str,
        deferrable: bool | None = None,
        poke_interval: float = 30,
        pending_timeout: float | timedelta | None = None,
        run_timeout: float | timedelta | None = None,
        cancel_on_kill: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.job = job
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        )
        self.pending_timeout = pending_timeout
        self.run_timeout = run_timeout
        self.cancel_on_kill = cancel_on_kill
        self._watch: JobWatch | None = None

    def _handle(self) -> JobHandle:
        job = json.loads(self.job) if isinstance(self.job, str) else self.job
        try:
            return JobHandle.model_validate_json(json.dumps(job))
        except ValidationError as err:
            raise invalid_input("job handle", err) from err

    def _limits(self) -> Limits:
        return Limits(
            pending_timeout=seconds("pending_timeout", self.pending_timeout),
            run_timeout=seconds("run_timeout", self.run_timeout),
        )

    def _hook(self, handle: JobHandle) -> SlurmHook:
        return SlurmHook(handle.slurm_conn_id, {**handle.profile, "workspace_root": handle.workspace})

    @staticmethod
    def _stream(context: Any) -> str:
        instance = context["ti"]
        return f"sensor-{instance.task_id[:64]}-try{instance.try_number}".replace(" ", "_")

    def execute(self, context: Any) -> Any:
        """Wait for the job; returns the image record."""
        with reported(context):
            if self.deferrable:
                self._defer(context)
            return super().execute(context)

    def _defer(self, context: Any) -> NoReturn:
        limits = self._limits()
        self.defer(
            trigger=SlurmJobTrigger(
                job=self._handle().model_dump(mode="json"),
                poll_interval=float(self.poke_interval),
                pending_timeout=limits.pending_timeout,
                run_timeout=limits.run_timeout,
                stream=self._stream(context),
                cancel_on_kill=self.cancel_on_kill,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Any) -> PokeReturnValue:
        """One look at the job."""
        handle = self._handle()
        hook = self._hook(handle)
        lifecycle = Lifecycle(hook, self.log)
        try:
            if self._watch is None:
                self._watch = lifecycle.watch(handle, self._limits(), self._stream(context), resume=True)
            verdict, lines = lifecycle.look(self._watch)
            emit(self.log, lines)
            if verdict.kind == "wait":
                return PokeReturnValue(is_done=False)
            if verdict.kind != "succeeded":
                raise lifecycle.failed(handle, verdict, self._watch.record)
            return PokeReturnValue(is_done=True, xcom_value=lifecycle.finish(handle).model_dump(mode="json"))
        finally:
            hook.close()

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on after the trigger saw the end of the job."""
        with reported(context):
            handle = self._handle()
            hook = self._hook(handle)
            lifecycle = Lifecycle(hook, self.log)
            try:
                outcome = WaitOutcome.from_event(event)
                if outcome.verdict.kind != "succeeded":
                    raise lifecycle.failed(outcome.handle(handle), outcome.verdict, outcome.record)
                return lifecycle.finish(handle).model_dump(mode="json")
            finally:
                hook.close()

    def on_kill(self) -> None:
        """Cancel the job, only if told to."""
        if not self.cancel_on_kill:
            return
        handle = self._handle()
        hook = SlurmHook(
            handle.slurm_conn_id,
            {**handle.profile, "workspace_root": handle.workspace},
            connect_attempts=1,
            conn_timeout=KILL_SECONDS,
        )
        try:
            hook.cancel(handle.job_id, handle.job_name, handle.cluster, timeout=KILL_TIMEOUT)
        except ClusterUnavailableError as err:
            self.log.error("The job could not be cancelled: %s", err)
        finally:
            hook.close()
