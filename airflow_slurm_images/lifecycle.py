# SPDX-License-Identifier: Apache-2.0
"""The life of one task's work: prepare, stage, submit, observe, collect, publish. Read from top to bottom.

Airflow decides and validates; the cluster moves the bytes; one rename publishes. This module knows no Airflow and
no SSH: it drives a :class:`Cluster` and says what it does through a logger.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_slurm_images import reuse
from airflow_slurm_images.cluster_protocol import Cluster, Log, emit
from airflow_slurm_images.core import catalog, image_record, job_script, reports, run_state
from airflow_slurm_images.core.catalog import StoreFacts
from airflow_slurm_images.core.decide import CompletionInvalid, Limits, Verdict
from airflow_slurm_images.core.errors import (
    ClusterUnavailableError,
    ConflictError,
    IntegrityError,
    InvalidRequestError,
    NotVisibleError,
    SlurmImagesError,
    TaskKilledError,
)
from airflow_slurm_images.core.observation import read_completion
from airflow_slurm_images.core.plan import ExistingFile, LifecyclePlan, job_name, request_digest
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.records import CompletionRecord, ImageRecord, JobHandle
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.requests import ImportRequest, InspectRequest
from airflow_slurm_images.core.run_state import Attempt, RunState
from airflow_slurm_images.core.slurm import SubmittedJob
from airflow_slurm_images.core.watch import JobWatch, Line
from airflow_slurm_images.reuse import IfPresent
from airflow_slurm_images.submitting import Submitter

EARLIEST = "2000-01-01T00:00:00"
"""Start bound for accounting where the time of the submission is not known."""
CANCEL_SECONDS = 120.0
"""How long a cancelled job may take to leave the queue."""


_LEFT = {
    "plan": "plan.json",
    "completion": "completion.json",
    "static.superblock": "output/static",
    "facts": "output/facts.json",
}
"""What a good job leaves, and where."""


@dataclass(frozen=True)
class Work:
    """One task's work. ``generation`` is the number of the first try since the run began or was cleared."""

    request: ImportRequest | InspectRequest
    run_key: str
    generation: int
    is_retry: bool
    slurm_conn_id: str
    overrides: Mapping[str, Any]
    on_conflict: Literal["replace", "fail"] = "replace"
    if_present: IfPresent = "skip"
    credentials: Callable[[], bytes] | None = None
    """Makes the login to stage (a netrc), asked only when a new attempt is staged; None: the account's own."""


@dataclass(frozen=True)
class Finished:
    """The end of a work: its image record, and whether the alias means something else than before."""

    record: ImageRecord
    moved: bool


class Lifecycle:
    """Drives one work on one cluster. ``started`` is told the handle the instant a job exists.

    ``killed`` tells whether the task was killed meanwhile and its job with it: Airflow runs ``on_kill`` in a signal
    handler and lets the task go on for some seconds, in which no job may be submitted any more.
    """

    def __init__(
        self,
        cluster: Cluster,
        log: Log,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        started: Callable[[JobHandle], None] = lambda _: None,
        killed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._sleep = sleep
        self._clock = clock
        self._started = started
        self._killed = killed
        self._submitter = Submitter(cluster, log, sleep=sleep, clock=clock, go_on=self._go_on)

    # --- prepare, stage, submit

    def begin(self, work: Work) -> JobHandle | Finished:
        """Adopt, collect, reuse or submit; afterwards there is exactly one job (or a finished attempt) to follow.

        :class:`Finished` where the store holds what was asked for already: no job ran.

        Raises InvalidRequestError before anything is submitted, ClusterUnavailableError when the cluster cannot
        tell what there is, SubmissionUnknownError when a submission stays in doubt.
        """
        profile = self._cluster.profile
        source = work.request.reference.digest if isinstance(work.request, ImportRequest) else ""
        name = work.request.name or ""
        wanted = "" if work.if_present == "reimport" else source
        state = self._cluster.prepare(work.run_key, wanted, name, begins=True)
        for closed in state.closed:
            self._log.warning("%s", closed)
        if state.queue.status != "ok":
            raise ClusterUnavailableError(
                f"The queue cannot be read, so it is not known whether a job of this task is running: "
                f"{state.queue.detail}",
                remedy="Try again when the controller answers; nothing was submitted.",
            )
        digest = request_digest(work.request, profile)
        decision = run_state.choose(state, digest, work.generation, is_retry=work.is_retry)
        for job_id, attempt in decision.cancel:
            self._log.warning("Job %s of this task was cancelled, is over, or does other work than asked now", job_id)
            cluster = run_state.cluster_of(state, job_id, attempt) or profile.cluster
            self._cancel_and_wait(job_id, job_name(work.run_key), cluster, attempt)
        if decision.attempt is not None and decision.attempt.plan is not None:
            try:
                return self._take_over(work, state, decision.attempt, decision.attempt.plan, decision.job_id)
            except ConflictError:
                self._log.warning("The job is being cancelled at this moment; looking again")
                return self.begin(work)
        found = reuse.find(state, work.request, profile, work.if_present)
        if found.record is not None and found.facts is not None:
            self._log.info("Unchanged: the store holds this image already, no job is needed")
            publisher = _publisher(work.run_key, work.generation)
            if reuse.already_meant(state, found, publisher):
                self._log.info("The alias %s means it already", found.record.name)
                return self._ended(found.record, moved=False)
            return self._end(state.workspace, found.record, found.facts, work.on_conflict, profile, publisher)
        return self._submit_new(work, profile, state, found.existing)

    def _take_over(
        self, work: Work, state: RunState, attempt: Attempt, plan: LifecyclePlan, job_id: int | None
    ) -> JobHandle:
        known = job_id or attempt.claimed_by or (attempt.submitted.job_id if attempt.submitted else 0)
        cluster = run_state.cluster_of(state, known, attempt.name)
        handle = self._handle(work, plan, SubmittedJob(known, cluster), attempt.submitted_at)
        self._started(handle)
        what = "of an earlier try has finished; collecting its result" if job_id is None else "is there; adopting it"
        self._log.info("Job %s %s (run directory %s)", known, what, plan.attempt_directory)
        if job_id is not None:
            self._cluster.adopt(plan.attempt_directory, work.generation, known)
        return handle

    def _submit_new(
        self, work: Work, profile: ClusterProfile, state: RunState, existing: ExistingFile | None
    ) -> JobHandle:
        plan = LifecyclePlan.build(
            run_key=work.run_key,
            attempt=secrets.token_hex(8),
            token=secrets.token_hex(16),
            generation=work.generation,
            request=work.request,
            profile=profile,
            workspace=state.workspace,
            login=state.login,
            package_files=job_script.package_checksums(),
            existing=existing,
        )
        for line in reports.plan_lines(plan):
            self._log.info("%s", line)
        self._go_on()
        login = work.credentials() if work.credentials and existing is None else None
        try:
            staged = self._cluster.stage(plan, login)
            job, submitted_at = self._submitter.submit(plan, staged, {row.job_id for row in state.queue.rows})
        except (InvalidRequestError, IntegrityError, ConflictError, ClusterUnavailableError):
            if login is not None:
                self._forget_login(plan)
            raise
        handle = self._handle(work, plan, job, submitted_at)
        self._started(handle)
        self._log.info("Submitted job %s%s", job.job_id, f" on cluster {job.cluster}" if job.cluster else "")
        if self._killed():
            self.cancel(handle, others=True)
            self._go_on()
        return handle

    def _go_on(self) -> None:
        if self._killed():
            raise TaskKilledError("The task was killed before it had a job", remedy="Clear it to start again.")

    def _forget_login(self, plan: LifecyclePlan) -> None:
        """Remove the login staged for a job that there will not be: no job will, and the error counts, not this."""
        try:
            self._cluster.collect(plan.attempt_directory, ended=True)
        except SlurmImagesError as err:
            self._log.warning("The login staged in %s may still be there: %s", plan.attempt_directory, err.message)

    def _handle(self, work: Work, plan: LifecyclePlan, job: SubmittedJob, submitted_at: str | None) -> JobHandle:
        return JobHandle(
            slurm_conn_id=work.slurm_conn_id,
            job_id=job.job_id,
            cluster=job.cluster or plan.profile.cluster,
            job_name=plan.job_name,
            run_key=plan.run_key,
            attempt=plan.attempt,
            token=plan.token,
            workspace=plan.workspace,
            run_directory=plan.attempt_directory,
            submitted_at=submitted_at or EARLIEST,
            generation=work.generation,
            record_wait=plan.profile.record_wait,
            profile=dict(work.overrides),
            on_conflict=work.on_conflict,
        )

    # --- observe

    def wait(self, handle: JobHandle, limits: Limits, interval: float, stream: str) -> None:
        """Look at the job until it ended well; raises the error of every other end.

        A timeout of ours (pending, run) and a hopeless pending reason cancel the job; doubt never does.
        """
        watch = self.watch(handle, limits, stream)
        while True:
            verdict, lines = self.look(watch)
            emit(self._log, lines)
            if verdict.kind == "succeeded":
                return
            if verdict.kind != "wait":
                raise self.failed(handle.model_copy(update={"job_id": watch.job_id}), verdict, watch.record)
            self._sleep(watch.delay(interval, random.random()))  # noqa: S311 - jitter

    def is_done(self, handle: JobHandle) -> bool:
        """Whether the job's good end can be seen already, so that nothing has to wait; a doubt is a no."""
        try:
            (seen,) = self._cluster.observe([self.watch(handle, Limits(), "none").request(0)], handle.cluster)
        except ClusterUnavailableError:
            return False
        return seen.record is not None and seen.record.exit_status == 0

    def watch(self, handle: JobHandle, limits: Limits, stream: str, *, resume: bool = False) -> JobWatch:
        """A new watch by this lifecycle's clock; ``resume`` goes on in the output where ``stream`` was left."""
        return JobWatch(handle, limits, self._clock(), stream=stream, resume=resume)

    def look(self, watch: JobWatch) -> tuple[Verdict, list[Line]]:
        """One look; a cluster that does not answer is doubt, not an error."""
        try:
            seen = self._cluster.observe([watch.request()], watch.handle.cluster)[0]
        except ClusterUnavailableError as err:
            return watch.feed_failure(err.message, self._clock())
        return watch.feed(seen, self._clock())

    def failed(
        self, handle: JobHandle, verdict: Verdict, record: CompletionRecord | None, *, cancel: bool = True
    ) -> SlurmImagesError:
        """The error for a verdict, with the ends of the logs; cancels where waiting ended on our side."""
        if cancel and verdict.kind in ("stuck", "pending_timeout", "run_timeout"):
            try:
                self.cancel(handle)
            except SlurmImagesError as err:
                # why we gave up must not be lost over it
                verdict = replace(verdict, message=f"{verdict.message}; and it could not be cancelled: {err.message}")
        logs: dict[str, str] = {}
        try:
            ended = verdict.kind in ("failed", "unknown")
            logs = dict(_logs(self._cluster.collect(handle.run_directory, ended=ended)))
        except SlurmImagesError as err:
            self._log.warning("The logs of the job cannot be read: %s", err.message)
        return reports.job_error(handle, verdict, record, logs)

    # --- collect, publish

    def finish(self, handle: JobHandle) -> Finished:
        """Read what the job left, validate it, move the alias, return the image record."""
        plan, collected = self._collect(handle)
        state, completion = read_completion(collected.data("completion"), handle.token)
        if plan.token != handle.token or completion is None:
            detail = f": {state.detail}" if isinstance(state, CompletionInvalid) else ""
            raise IntegrityError(f"The records in {handle.run_directory} are not those of this attempt{detail}")
        static = {
            name.removeprefix("static."): values[0]
            for name, values in collected.fields.items()
            if name.startswith("static.")
        }
        record = image_record.assemble(plan, completion, collected.data("facts"), static)
        facts = image_record.store_facts(plan, completion, completion.sqsh) if completion.sqsh else None
        publisher = _publisher(handle.run_key, handle.generation)
        deadline = self._clock() + handle.record_wait
        while True:
            try:
                return self._end(plan.workspace, record, facts, handle.on_conflict, plan.profile, publisher)
            except NotVisibleError as err:
                if self._clock() >= deadline:
                    err.details.update(_not_visible(handle))
                    raise
                self._pause(deadline)

    def _collect(self, handle: JobHandle) -> tuple[LifecyclePlan, RemoteResult]:
        """All that a good job left; a file server may show it to the login node later than to the job."""
        deadline = self._clock() + handle.record_wait
        while True:
            collected = self._cluster.collect(handle.run_directory)
            written = collected.data("plan")
            plan = LifecyclePlan.load(written) if written is not None else None
            missing = [name for name in _LEFT if collected.data(name) is None]
            if plan is not None and plan.request.kind == "generic" and "facts" in missing:
                missing.remove("facts")  # nobody looked into the image
            if plan is not None and not missing:
                return plan, collected
            if self._clock() >= deadline:
                raise NotVisibleError(
                    f"The job ended well, but {_LEFT[missing[0]]} in {handle.run_directory} is not visible on the "
                    f"login node after {handle.record_wait} s",
                    remedy="Check that login and compute nodes see one and the same workspace, or raise record_wait; "
                    "a retry collects the result when it is there.",
                    details=_not_visible(handle),
                )
            self._pause(deadline)

    def _pause(self, deadline: float) -> None:
        self._sleep(min(5.0, max(0.1, deadline - self._clock())))

    def _end(
        self,
        workspace: str,
        record: ImageRecord,
        facts: StoreFacts | None,
        on_conflict: str,
        profile: ClusterProfile,
        publisher: str,
    ) -> Finished:
        """Move the alias, if there is one, and say how it ended."""
        moved = False
        if record.name is not None and facts is not None:
            payload = catalog.to_publish(record, facts, publisher)
            variables = catalog.publication_variables(record, facts, payload, on_conflict=on_conflict)
            variables["ASI_GROUP"] = profile.group or ""
            published = self._cluster.publish(workspace, record.name, payload, variables)
            moved = published.moved
            self._log.info(
                "Published %s (version %d%s)", published.alias_path, published.number, "" if moved else ", unchanged"
            )
        return self._ended(record, moved=moved)

    def _ended(self, record: ImageRecord, *, moved: bool) -> Finished:
        for line in reports.summary_lines(record):
            self._log.info("%s", line)
        return Finished(record, moved)

    # --- cancel

    def cancel(self, handle: JobHandle, *, others: bool = False) -> None:
        """Cancel the job of ``handle`` and see it gone; with ``others`` every job of its name.

        That is for who does not know which of them runs the attempt: a doubtful submission may have made two.
        """
        self._cancel_and_wait(handle.job_id, handle.job_name, handle.cluster, handle.attempt, others=others)

    def _cancel_and_wait(
        self, job_id: int, name: str, cluster: str | None, attempt: str, *, others: bool = False
    ) -> None:
        deadline = self._clock() + CANCEL_SECONDS
        while True:
            try:
                queue = self._cluster.cancel(job_id, name, cluster, attempt=attempt)
                left = run_state.alive(queue)
                if queue.status == "ok" and job_id not in left:
                    if not (others and left):
                        return
                    job_id = min(left)
                    continue
            except ClusterUnavailableError as err:
                self._log.warning("Cancelling job %s: %s", job_id, err.message)
            if self._clock() >= deadline:
                raise ClusterUnavailableError(
                    f"Job {job_id} is still in the queue {CANCEL_SECONDS:.0f} s after scancel",
                    remedy=f"Look at it with: squeue --name={name}; the task may be retried when it is gone.",
                )
            self._sleep(3)


def _publisher(run_key: str, generation: int | None) -> str:
    """Who publishes, in the record: all tries of one run of a task are one publisher."""
    return f"{run_key}.{generation or 0}"


def _not_visible(handle: JobHandle) -> dict[str, Any]:
    return {"job_id": handle.job_id, "run_directory": handle.run_directory, "reason": "not_visible"}


def _logs(collected: RemoteResult) -> Iterator[tuple[str, str]]:
    for name in collected.fields:
        if name.startswith("tail."):
            yield name.removeprefix("tail."), collected.text(name)
