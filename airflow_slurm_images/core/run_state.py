# SPDX-License-Identifier: Apache-2.0
"""What the cluster knows of one run when a task starts: its attempts, its active jobs, and what to do about them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from airflow_slurm_images.core import catalog
from airflow_slurm_images.core.catalog import Catalog
from airflow_slurm_images.core.decide import CompletionFound
from airflow_slurm_images.core.errors import IntegrityError, OtherVersionError
from airflow_slurm_images.core.fields import slurm_time, whole_number
from airflow_slurm_images.core.observation import queue_answer, read_completion
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.slurm import (
    AmbiguousSubmissionError,
    QueueAnswer,
    QueueRow,
    SubmittedJob,
    parse_sbatch,
)
from airflow_slurm_images.core.states import ENDED_STATES, StateClass, classify, parse_state


@dataclass(frozen=True)
class Attempt:
    """One attempt directory as it was found. ``plan`` is None when it is missing, was changed or cannot be read.

    ``other_version`` says that the plan is sound, but only the version of the package that wrote it can read it.
    """

    name: str
    plan: LifecyclePlan | None
    submitted: SubmittedJob | None
    submitted_at: str | None
    claimed_by: int | None
    fenced: bool
    cancelled: bool
    generations: frozenset[int]
    exit_status: int | None
    restarted: bool = False
    """Whether the record is of a run before the one that holds the claim: the job was requeued and started over."""
    other_version: OtherVersionError | None = None

    @property
    def job_ids(self) -> frozenset[int]:
        """Jobs known to belong to this attempt."""
        submitted = {self.submitted.job_id} if self.submitted else set()
        return frozenset(submitted | ({self.claimed_by} if self.claimed_by else set()))


@dataclass(frozen=True)
class RunState:
    """Answer of ``prepare.sh``. ``workspace`` is the resolved root."""

    workspace: str
    login: str
    host: str
    attempts: tuple[Attempt, ...]
    queue: QueueAnswer
    catalog: Catalog = field(default_factory=Catalog)
    """Images already made from the same source, and what the alias means, if the look asked for them."""
    closed: tuple[str, ...] = ()
    """What keeps the other members of the profile's group out of the workspace, each with its remedy."""

    def active(self) -> tuple[QueueRow, ...]:
        """Jobs of this run that are in the queue and not at their end."""
        alive = (StateClass.WAITING, StateClass.RUNNING, StateClass.INTERRUPTED, StateClass.UNKNOWN)
        return tuple(row for row in self.queue.rows if classify(row.state) in alive)


@dataclass(frozen=True)
class Decision:
    """What a starting task does: adopt ``attempt`` with ``job_id``, collect ``attempt``, or submit a new one.

    ``cancel`` lists jobs (id, attempt name or "") that must be gone before that.
    """

    action: Literal["adopt", "collect", "submit"]
    attempt: Attempt | None = None
    job_id: int | None = None
    cancel: tuple[tuple[int, str], ...] = ()


def read(result: RemoteResult) -> RunState:
    """Read the answer of ``prepare.sh``."""
    return RunState(
        workspace=result.text("workspace"),
        login=result.text("login"),
        host=result.text("host"),
        attempts=tuple(_attempt(result, name) for name in result.texts("attempt")),
        queue=queue_answer(result),
        catalog=catalog.read(result),
        closed=tuple(result.texts("closed")),
    )


def _attempt(result: RemoteResult, name: str) -> Attempt:
    plan, other_version = _plan(result.data(f"{name}.plan"))
    claim = result.text(f"{name}.claim").split()
    completion, record = read_completion(result.data(f"{name}.completion"), plan.token) if plan else (None, None)
    claimed_by = whole_number(claim[0]) if claim else None
    restarts = whole_number(claim[1]) if len(claim) > 1 else None
    generations = map(whole_number, result.texts(f"{name}.generation"))
    return Attempt(
        name=name,
        plan=plan,
        submitted=_submitted(result.text(f"{name}.job_id")),
        submitted_at=slurm_time(result.text(f"{name}.submitted_at")),
        claimed_by=claimed_by or (record.job_id if record else None),
        fenced=bool(claim) and claim[0] == "0",
        cancelled=result.data(f"{name}.cancelled") is not None,
        generations=frozenset(number for number in generations if number is not None),
        exit_status=completion.exit_status if isinstance(completion, CompletionFound) else None,
        restarted=record is not None and restarts is not None and restarts > record.restart_count,
        other_version=other_version,
    )


def _plan(data: bytes | None) -> tuple[LifecyclePlan | None, OtherVersionError | None]:
    try:
        return (LifecyclePlan.load(data) if data else None), None
    except IntegrityError:
        return None, None
    except OtherVersionError as err:
        return None, err


def _submitted(text: str) -> SubmittedJob | None:
    try:
        return parse_sbatch(text) if text.strip() else None
    except AmbiguousSubmissionError:
        return None


def choose(state: RunState, request_digest: str, generation: int, *, is_retry: bool) -> Decision:
    """Decide from what was found. Pure; the queue must have answered (``state.queue.status == "ok"``).

    An active job with the same request is adopted, whatever its generation; other active jobs, those somebody
    cancelled, those whose node failed or that were preempted, and those whose record says that they did their work
    (Slurm cleans up after them), are cancelled and seen gone first. A retry collects
    the newest attempt of its generation that ended well with this request, or adopts one that COMPLETED and whose
    record is not visible yet; a first try (new run, or cleared) does neither. Raises OtherVersionError for an active
    job whose plan only another version of this package can read: it may be doing just this work, so it is neither
    adopted nor cancelled.
    """
    adopted: tuple[Attempt, int] | None = None
    cancel: list[tuple[int, str]] = []
    for row in sorted(state.active(), key=lambda row: classify(row.state) is not StateClass.RUNNING):
        attempt = _attempt_of(state, row)
        if attempt is not None and attempt.other_version and not attempt.cancelled and not attempt.fenced:
            raise OtherVersionError(
                f"Job {row.job_id} of this task is {row.state} and was left alone. {attempt.other_version.message}",
                remedy=attempt.other_version.remedy,
                details={"job_id": row.job_id, "state": row.state, "reason": "other_version"},
            )
        ended = parse_state(row.state) in ENDED_STATES  # listed for a while after its end, and never to come back
        ended = ended or (attempt is not None and _is_over(attempt, row, generation))
        if attempt is not None and adopted is None and not ended and _adoptable(attempt, request_digest):
            adopted = (attempt, row.job_id)
        elif adopted is None or attempt is not adopted[0]:
            cancel.append((row.job_id, attempt.name if attempt else ""))
    if adopted:
        return Decision("adopt", attempt=adopted[0], job_id=adopted[1], cancel=tuple(cancel))
    ours = [item for item in state.attempts if generation in item.generations and _asks(item, request_digest)]
    for attempt in reversed(ours if is_retry else []):
        if attempt.exit_status == 0:
            return Decision("collect", attempt=attempt, cancel=tuple(cancel))
        if attempt.exit_status is None and (job_id := _completed(state, attempt)) is not None:
            return Decision("adopt", attempt=attempt, job_id=job_id, cancel=tuple(cancel))
    return Decision("submit", cancel=tuple(cancel))


def _asks(attempt: Attempt, request_digest: str) -> bool:
    return attempt.plan is not None and attempt.plan.asks(request_digest)


def _adoptable(attempt: Attempt, request_digest: str) -> bool:
    return _asks(attempt, request_digest) and not attempt.fenced and not attempt.cancelled


def _is_over(attempt: Attempt, row: QueueRow, generation: int) -> bool:
    """Whether the attempt's record tells the end of a job that the queue still lists, and no end that is wanted.

    A failure was told to the try that saw it; a success counts only for the generation that asked for it. A job that
    waits again after a failure (requeued) has another run to come.
    """
    if attempt.exit_status is None or attempt.restarted:
        return False
    if attempt.exit_status == 0:
        return generation not in attempt.generations
    return classify(row.state) is StateClass.RUNNING


def _completed(state: RunState, attempt: Attempt) -> int | None:
    """A job of this attempt that the queue still lists as COMPLETED."""
    done = [
        row.job_id
        for row in state.queue.rows
        if row.job_id in attempt.job_ids and classify(row.state) is StateClass.COMPLETED
    ]
    return done[-1] if done else None


def _attempt_of(state: RunState, row: QueueRow) -> Attempt | None:
    """The attempt of a job; one whose sbatch answer was lost is the only one without a known job."""
    known = [attempt for attempt in state.attempts if row.job_id in attempt.job_ids]
    for attempt in known:  # two clusters may count alike
        if attempt.submitted and attempt.submitted.cluster == row.cluster:
            return attempt
    if known:
        return known[0]
    unknown = [
        attempt for attempt in state.attempts if not attempt.job_ids and not attempt.fenced and attempt.submitted_at
    ]
    return unknown[0] if len(unknown) == 1 else None


def cluster_of(state: RunState, job_id: int | None, attempt_name: str) -> str | None:
    """The cluster of a job: the one that sbatch answered, else the one whose queue lists it; None: the profile's."""
    attempt = next((item for item in state.attempts if item.name == attempt_name), None)
    if attempt is not None and attempt.submitted is not None and attempt.submitted.cluster:
        return attempt.submitted.cluster
    return next((row.cluster for row in state.queue.rows if row.job_id == job_id and row.cluster), None)


def find(state: RunState, attempt_name: str, before: Collection[int] = ()) -> tuple[SubmittedJob, str] | None:
    """The job of one attempt after a lost answer: by its own files, else the run's job that no attempt knows.

    ``before`` are the jobs that were listed before the submission: an ended one of a lost answer long ago is there.
    """
    attempt = next((item for item in state.attempts if item.name == attempt_name), None)
    if attempt is None or attempt.submitted_at is None:
        return None  # sbatch was not even started
    submitted_at = attempt.submitted_at
    if attempt.submitted is not None:
        return attempt.submitted, submitted_at
    if attempt.claimed_by is not None:
        return SubmittedJob(attempt.claimed_by, cluster_of(state, attempt.claimed_by, attempt_name)), submitted_at
    known = {job_id for item in state.attempts for job_id in item.job_ids} | set(before)
    strangers = [row for row in state.queue.rows if row.job_id not in known]
    newest = max(strangers, key=lambda row: row.job_id, default=None)
    return (SubmittedJob(newest.job_id, newest.cluster), submitted_at) if newest else None


def alive(queue: QueueAnswer) -> frozenset[int]:
    """Jobs still in the queue, ending (COMPLETING) included; the list of ended ones is not it."""
    ended = (StateClass.COMPLETED, StateClass.FAILED, StateClass.INTERRUPTED)
    return frozenset(row.job_id for row in queue.rows if classify(row.state) not in ended)
