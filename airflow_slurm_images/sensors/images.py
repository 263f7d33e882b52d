# SPDX-License-Identifier: Apache-2.0
"""SlurmJobSensor: wait for a job that an operator only submitted, then publish and return the image record."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    XComArg,
    conf,
)
from pydantic import ValidationError

from airflow_slurm_images.assets import emit as emit_asset
from airflow_slurm_images.assets import task_outlet
from airflow_slurm_images.cluster_protocol import emit
from airflow_slurm_images.core.decide import Limits, Verdict
from airflow_slurm_images.core.errors import JobFailedError, SlurmImagesError
from airflow_slurm_images.core.profile import invalid_input
from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.core.states import StateClass, classify, pending_reason
from airflow_slurm_images.core.watch import JobWatch
from airflow_slurm_images.hooks.slurm import KILL_SECONDS, KILL_TIMEOUT, SlurmHook
from airflow_slurm_images.lifecycle import Finished, Lifecycle
from airflow_slurm_images.task_context import late_job, mapping, overtime, reported, seconds
from airflow_slurm_images.triggers.images import SlurmJobTrigger, WaitOutcome


class SlurmJobSensor(BaseSensorOperator):
    """Wait for the job of an operator run with ``wait_for_completion=False``; poke, reschedule or deferrable.

    When the job ended well the sensor publishes the alias and returns the image record. It cancels only if told to.

    :param job: job handle, usually ``import_task.output``; an image record (no job was needed) is returned as it is.
        Templated.
    :param deferrable: wait in the triggerer; default: Airflow's ``[operators] default_deferrable``.
    :param poke_interval: seconds (or timedelta) between looks at the job.
    :param pending_timeout: seconds (or timedelta) the job may wait in the queue, counted from its submission.
    :param run_timeout: seconds (or timedelta) the job may run.
    :param cancel_on_kill: cancel the job when the sensor is killed or gives up; False: it goes on.
    """

    template_fields: Sequence[str] = ("job",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}

    def __init__(
        self,
        *,
        job: Mapping[str, Any] | str | XComArg,
        deferrable: bool | None = None,
        poke_interval: float | timedelta = 30,
        pending_timeout: float | timedelta | None = None,
        run_timeout: float | timedelta | None = None,
        cancel_on_kill: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self._outlet = task_outlet(self)
        self.outlets = [*self.outlets, self._outlet]
        self.job = job
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        )
        self.pending_timeout = pending_timeout
        self.run_timeout = run_timeout
        self.cancel_on_kill = cancel_on_kill
        self._watch: JobWatch | None = None
        self._killer: SlurmHook | None = None

    def execute(self, context: Any) -> Any:
        """Wait for the job; returns the image record."""
        with reported(context):
            job = mapping("job", self.job)
            if "sqsh" in job:
                return job  # the image was unchanged: no job was submitted, this is its record
            if self.deferrable and not self._is_done():
                self._defer(context)
            self._be_ready(self._handle())
        try:
            with overtime(context, self.log, self._overtime):
                return super().execute(context)
        except (AirflowSensorTimeout, AirflowSkipException) as err:
            if _is_timeout(err):
                self.on_kill()
            raise

    def _ended(self, context: Any, finished: Finished) -> dict[str, Any]:
        """Emit the alias's asset and give the record to XCom."""
        emit_asset(context, self._outlet, finished.record, moved=finished.moved)
        return finished.record.model_dump(mode="json")

    # --- in this process

    def _is_done(self) -> bool:
        """Whether the job has ended: Airflow may take a task that goes on at once after its deferral for dead."""
        handle = self._handle()
        hook = self._hook(handle, connect_attempts=1)
        try:
            return Lifecycle(hook, self.log).is_done(handle)
        finally:
            hook.close()

    def poke(self, context: Any) -> PokeReturnValue:
        """One look at the job."""
        with reported(context):
            handle = self._handle()
            hook = self._hook(handle)
            lifecycle = Lifecycle(hook, self.log)
            try:
                if self._watch is None:
                    self._watch = lifecycle.watch(handle, self._limits(), self._stream(context), resume=True)
                verdict = self._look(lifecycle, self._watch)
                if verdict.kind == "wait":
                    self._keep_place(hook, self._watch)
                    return PokeReturnValue(is_done=False)
                followed = handle.model_copy(update={"job_id": self._watch.job_id})
                outcome = WaitOutcome(followed, verdict, self._watch.record)
                finished = outcome.finish(lifecycle, cancel=self.cancel_on_kill)
                return PokeReturnValue(is_done=True, xcom_value=self._ended(context, finished))
            finally:
                hook.close()

    def _look(self, lifecycle: Lifecycle, watch: JobWatch) -> Verdict:
        """One look, or as many as doubt takes in reschedule mode.

        There each poke is a new process that remembers nothing, so the limits of doubt would never be reached.
        """
        while True:
            verdict, lines = lifecycle.look(watch)
            emit(self.log, lines)
            if verdict.kind != "wait" or not self.reschedule or _waits_or_runs(verdict):
                return verdict
            time.sleep(watch.delay(min(self.poke_interval, 30.0), random.random()))  # noqa: S311 - jitter

    def _keep_place(self, hook: SlurmHook, watch: JobWatch) -> None:
        """In reschedule mode the cluster keeps the place in the job's output for the next process."""
        if not self.reschedule:
            return
        try:
            hook.observe([watch.request(0)], watch.handle.cluster)
        except SlurmImagesError as err:
            self.log.warning("Some output may show twice: %s", err.message)

    # --- in the triggerer

    def _defer(self, context: Any) -> NoReturn:
        limits = self._limits()
        times = [timedelta(seconds=self.timeout), self.execution_timeout]
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
            timeout=min(limit for limit in times if limit is not None),
        )

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on after the trigger saw the end of the job."""
        with reported(context):
            outcome = WaitOutcome.from_event(event)
            hook = self._hook(outcome.handle)
            try:
                finished = outcome.finish(Lifecycle(hook, self.log), cancel=self.cancel_on_kill)
                return self._ended(context, finished)
            finally:
                hook.close()

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """A deferral that took too long ends here, without the trigger being told: cancel the job, if told to."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (AirflowSensorTimeout, AirflowSkipException) as err:
            if _is_timeout(err):
                self._be_ready(self._handle())
                self.on_kill()
            raise

    def _overtime(self) -> JobFailedError:
        fate = "is being cancelled" if self.cancel_on_kill else "goes on; a retry of the sensor waits for it again"
        return late_job(self._handle(), self.execution_timeout, fate)

    # --- kill

    def _be_ready(self, handle: JobHandle) -> None:
        """Make the hook of a kill now: a signal handler must not ask Airflow anything, its channel may be in use."""
        if self.cancel_on_kill:
            self._killer = self._hook(handle, connect_attempts=1, conn_timeout=KILL_SECONDS)

    def on_kill(self) -> None:
        """Cancel the job, only if told to; by name, as a duplicate of a doubtful submission may run the attempt."""
        hook = self._killer
        if hook is None:
            return
        handle = self._handle()
        try:
            hook.cancel(None, handle.job_name, handle.cluster, KILL_TIMEOUT, generation=handle.generation)
            self.log.info("Cancelled job %s", handle.job_id)
        except SlurmImagesError as err:
            self.log.error("The job could not be cancelled: %s", err)
        finally:
            hook.close()

    # --- parameters

    def _handle(self) -> JobHandle:
        try:
            return JobHandle.model_validate_json(json.dumps(mapping("job", self.job)))
        except ValidationError as err:
            raise invalid_input("job handle", err) from err

    def _limits(self) -> Limits:
        return Limits(
            pending_timeout=seconds("pending_timeout", self.pending_timeout),
            run_timeout=seconds("run_timeout", self.run_timeout),
        )

    def _hook(self, handle: JobHandle, **options: Any) -> SlurmHook:
        return SlurmHook(handle.slurm_conn_id, {**handle.profile, "workspace_root": handle.workspace}, **options)

    @staticmethod
    def _stream(context: Any) -> str:
        instance = context["ti"]
        return f"sensor-{instance.task_id[:64]}-try{instance.try_number}"


def _is_timeout(err: BaseException) -> bool:
    """Whether the sensor's own time is over; a skip for it has no cause, or the timeout as its cause."""
    if isinstance(err, AirflowSensorTimeout) or isinstance(err.__cause__, AirflowSensorTimeout):
        return True
    return isinstance(err, AirflowSkipException) and err.__cause__ is None


def _waits_or_runs(verdict: Verdict) -> bool:
    """Whether the job is known to be in the queue, with a hope to start or to end."""
    kind = classify(verdict.state) if verdict.state else None
    if kind is StateClass.WAITING:
        return pending_reason(verdict.reason or "") == "wait"
    return kind in (StateClass.RUNNING, StateClass.UNKNOWN)
