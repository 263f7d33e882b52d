# SPDX-License-Identifier: Apache-2.0
"""What both image operators share: parameters to request, lifecycle, XCom, deferral and kill."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import BaseOperator, Connection, conf

from airflow_slurm_images.assets import emit as emit_asset
from airflow_slurm_images.assets import task_outlet
from airflow_slurm_images.core.decide import Limits
from airflow_slurm_images.core.errors import InvalidRequestError, JobFailedError, SlurmImagesError
from airflow_slurm_images.core.plan import job_name
from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.core.requests import ImportRequest, InspectRequest
from airflow_slurm_images.hooks.slurm import KILL_SECONDS, KILL_TIMEOUT, SlurmHook
from airflow_slurm_images.lifecycle import Finished, Lifecycle, Work
from airflow_slurm_images.task_context import (
    TaskDeferralTimeout,
    TaskTry,
    late_job,
    mapping,
    overtime,
    reported,
    seconds,
)
from airflow_slurm_images.triggers.images import SlurmJobTrigger, WaitOutcome

JOB_KEY = "job"
"""XCom key of the job handle while a task is deferred."""


class ImageJobOperator(BaseOperator):
    """Runs one image job. Subclasses say what is asked for (:meth:`build_request`)."""

    template_fields: Sequence[str] = (
        "name",
        "kind",
        "profile",
        "required_distributions",
        "slurm_conn_id",
        "registry_conn_id",
        "arch",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"profile": "json"}

    def __init__(
        self,
        *,
        name: str | None,
        kind: str,
        slurm_conn_id: str = SlurmHook.default_conn_name,
        profile: Mapping[str, Any] | None = None,
        registry_conn_id: str | None = None,
        arch: str | None = None,
        required_distributions: Sequence[str] | str = (),
        if_present: str = "skip",
        on_conflict: str = "replace",
        wait_for_completion: bool = True,
        deferrable: bool | None = None,
        poll_interval: float = 30,
        pending_timeout: float | timedelta | None = None,
        run_timeout: float | timedelta | None = None,
        cancel_on_kill: bool = True,
        emit_unchanged: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.emit_unchanged = emit_unchanged
        self._outlet = task_outlet(self)
        self.outlets = [*self.outlets, self._outlet]
        self.name = name
        self.kind = kind
        self.slurm_conn_id = slurm_conn_id
        self.profile = profile
        self.registry_conn_id = registry_conn_id
        self.arch = arch
        self.required_distributions = required_distributions
        self.if_present = if_present
        self.on_conflict = on_conflict
        self.wait_for_completion = wait_for_completion
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        )
        self.poll_interval = poll_interval
        self.pending_timeout = pending_timeout
        self.run_timeout = run_timeout
        self.cancel_on_kill = cancel_on_kill
        self._handle: JobHandle | None = None
        self._task_try: TaskTry | None = None
        self._killer: SlurmHook | None = None
        self._killed = False

    @abstractmethod
    def build_request(self) -> ImportRequest | InspectRequest:
        """The request from the rendered fields; raises InvalidRequestError."""

    def execute(self, context: Any) -> dict[str, Any]:
        """Run the job; returns the image record, or the job handle with ``wait_for_completion=False``."""
        with reported(context), overtime(context, self.log, self._overtime):
            task_try = TaskTry.read(context, int(self.retries or 0))
            work = self._work(task_try)
            limits = self._limits()
            interval = self._interval()
            hook = self._hook()
            self._be_ready(task_try, hook.connection)
            lifecycle = Lifecycle(hook, self.log, started=self._remember, killed=lambda: self._killed)
            try:
                handle = lifecycle.begin(work)
                if isinstance(handle, Finished):
                    return self._ended(context, lambda: handle)
                if not self.wait_for_completion:
                    return handle.model_dump(mode="json")
                # Not for a job that has ended: a task that goes on at once after its deferral may be taken for dead.
                if self.deferrable and not lifecycle.is_done(handle):
                    self._defer(context, handle, limits, interval, task_try)
                return self._ended(
                    context, lambda: _wait_and_finish(lifecycle, handle, limits, interval, task_try.stream)
                )
            finally:
                hook.close()

    def _ended(self, context: Any, finish: Callable[[], Finished]) -> dict[str, Any]:
        """Emit the alias's asset and give the record to XCom; ``finish`` raises the error of every other end."""
        finished = finish()
        emit_asset(context, self._outlet, finished.record, moved=finished.moved, unchanged=self.emit_unchanged)
        return finished.record.model_dump(mode="json")

    def build_credentials(self) -> Callable[[], bytes] | None:
        """What makes the login to stage for the job; None: the cluster account's own Enroot credentials."""
        return None

    def _work(self, task_try: TaskTry) -> Work:
        return Work(
            request=self.build_request(),
            credentials=self.build_credentials(),
            run_key=task_try.run_key,
            generation=task_try.generation,
            is_retry=task_try.is_retry,
            slurm_conn_id=self.slurm_conn_id,
            overrides=mapping("profile", self.profile),
            on_conflict=_choice("on_conflict", self.on_conflict, ("replace", "fail")),
            if_present=_choice("if_present", self.if_present, ("skip", "verify", "reimport")),
        )

    def _hook(self, **options: Any) -> SlurmHook:
        return SlurmHook(self.slurm_conn_id, mapping("profile", self.profile), **options)

    def _limits(self) -> Limits:
        return Limits(
            pending_timeout=seconds("pending_timeout", self.pending_timeout),
            run_timeout=seconds("run_timeout", self.run_timeout),
        )

    def _interval(self) -> float:
        return seconds("poll_interval", self.poll_interval) or 30.0

    def _remember(self, handle: JobHandle) -> None:
        self._handle = handle

    # --- deferral

    def _defer(self, context: Any, handle: JobHandle, limits: Limits, interval: float, task_try: TaskTry) -> NoReturn:
        # Airflow forgets the arguments of a deferral that timed out; the XCom tells then which job it was.
        context["ti"].xcom_push(key=JOB_KEY, value=handle.model_dump(mode="json"))
        self.defer(
            trigger=SlurmJobTrigger(
                job=handle.model_dump(mode="json"),
                poll_interval=interval,
                pending_timeout=limits.pending_timeout,
                run_timeout=limits.run_timeout,
                stream=task_try.stream,
                cancel_on_kill=self.cancel_on_kill,
                generation=task_try.generation,
            ),
            method_name="execute_complete",
            timeout=self.execution_timeout,
        )

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on after the trigger saw the end of the job."""
        with reported(context):
            outcome = WaitOutcome.from_event(event)
            self._handle = outcome.handle
            hook = self._hook()
            try:
                return self._ended(context, lambda: outcome.finish(Lifecycle(hook, self.log)))
            finally:
                hook.close()

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Airflow ends a deferral that takes too long without telling the trigger: cancel the job here."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as err:
            with reported(context):
                raise self._timed_out(context) from err

    def _timed_out(self, context: Any) -> JobFailedError:
        instance = context["ti"]
        job = instance.xcom_pull(task_ids=self.task_id, key=JOB_KEY, map_indexes=instance.map_index)
        handle = JobHandle.model_validate(job)
        if self.cancel_on_kill:
            self.log.error("execution_timeout is over; cancelling job %s", handle.job_id)
            hook = self._hook()
            try:
                Lifecycle(hook, self.log).cancel(handle, others=True)
            except SlurmImagesError as err:
                self.log.error("The job could not be cancelled: %s", err)
            finally:
                hook.close()
        fate = "was cancelled" if self.cancel_on_kill else "goes on and is adopted by the next try"
        return late_job(handle, self.execution_timeout, fate)

    def _overtime(self) -> JobFailedError:
        """The same where the task waits itself: Airflow calls ``on_kill`` right after."""
        if self._handle is None:
            return JobFailedError(
                f"execution_timeout: the task had no job within {self.execution_timeout}",
                reason="execution_timeout",
                remedy="Raise execution_timeout, or look in the log which step took so long.",
            )
        fate = "is being cancelled" if self.cancel_on_kill else "goes on and is adopted by the next try"
        return late_job(self._handle, self.execution_timeout, fate)

    # --- kill

    def _be_ready(self, task_try: TaskTry, connection: Connection) -> None:
        """Make the hook of a kill now: a signal handler must not ask Airflow anything, its channel may be in use."""
        self._killer = self._hook(connection=connection, connect_attempts=1, conn_timeout=KILL_SECONDS)
        self._task_try = task_try

    def on_kill(self) -> None:
        """Cancel the job: a fresh connection, no retries, one command, as Airflow kills us within seconds.

        By name, which this task alone has: which id it got, and which of two runs the attempt, may not be known here.
        """
        self._killed = self.cancel_on_kill  # Airflow lets execute go on for some seconds: it must not submit any more
        hook, task_try = self._killer, self._task_try
        if not self.cancel_on_kill or hook is None or task_try is None:
            return
        name = job_name(task_try.run_key)
        cluster = self._handle.cluster if self._handle else None
        try:
            hook.cancel(None, name, cluster, KILL_TIMEOUT, generation=task_try.generation)
            self.log.info("Cancelled job %s", self._handle.job_id if self._handle else f"named {name}")
        except SlurmImagesError as err:
            self.log.error("The job could not be cancelled, the next try cancels or adopts it: %s", err)
        finally:
            hook.close()


def _wait_and_finish(lifecycle: Lifecycle, handle: JobHandle, limits: Limits, interval: float, stream: str) -> Finished:
    lifecycle.wait(handle, limits, interval, stream)
    return lifecycle.finish(handle)


def _choice(field: str, value: Any, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        raise InvalidRequestError(
            f"Invalid request: {field} must be one of {', '.join(choices)}, got {value!r}",
            remedy=f"Pass {field}={choices[0]!r}.",
        )
    return value
