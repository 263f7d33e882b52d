# SPDX-License-Identifier: Apache-2.0
"""What goes into :func:`airflow_slurm_images.core.decide.decide` and what comes out: plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from airflow_slurm_images.core.slurm import (
    AccountingAnswer,
    AccountingRow,
    ControlAnswer,
    ControlRow,
    QueueAnswer,
    QueueRow,
)

Row: TypeAlias = QueueRow | AccountingRow | ControlRow
VerdictKind: TypeAlias = Literal[
    "wait", "succeeded", "failed", "stuck", "pending_timeout", "run_timeout", "unknown", "lost"
]


@dataclass(frozen=True)
class CompletionFound:
    """The completion record carries our token; the job wrote it last, so it is the whole truth."""

    exit_status: int


@dataclass(frozen=True)
class CompletionForeign:
    """There is a record, but of another attempt: it says nothing about our job."""


@dataclass(frozen=True)
class CompletionInvalid:
    """There is a record that cannot be read (yet)."""

    detail: str


Completion: TypeAlias = CompletionFound | CompletionForeign | CompletionInvalid | None


@dataclass(frozen=True)
class Evidence:
    """What one poll brought back. None means: not asked."""

    queue: QueueAnswer
    completion: Completion = None
    accounting: AccountingAnswer | None = None
    control: ControlAnswer | None = None
    queued_for: int | None = None
    """Seconds since the submission, by the cluster's clocks, of a job that has not begun yet."""


@dataclass(frozen=True)
class JobKey:
    """The job: id and name together, since ids are used again when a cluster's counter wraps."""

    job_id: int
    name: str


@dataclass(frozen=True)
class Limits:
    """How long each kind of doubt may last, in seconds; None means without limit."""

    unknown_limit: float = 3600
    """Without one whole good poll, until contact counts as lost."""
    appear_grace: float = 60
    """After submission, in which an absent job is simply not listed yet."""
    gone_grace: float = 300
    """For accounting and the completion record to become visible after the job left the queue."""
    interrupted_grace: float = 600
    """For a preempted or failed-node job to come back under its id."""
    hopeless_grace: float = 60
    """For a pending reason without hope to change."""
    pending_timeout: float | None = None
    run_timeout: float | None = None


@dataclass(frozen=True)
class Memory:
    """What must be known from the polls before; ``Memory(**asdict(memory))`` gives it back from JSON."""

    submitted_at: float
    seen: bool = False
    state: str | None = None
    reason: str | None = None
    state_since: float | None = None
    absent_since: float | None = None
    interrupted_since: float | None = None
    hopeless_since: float | None = None
    unknown_since: float | None = None
    unknown_count: int = 0
    pending_since: float | None = None
    running_since: float | None = None
    accounting_disabled_warned: bool = False


@dataclass(frozen=True)
class Verdict:
    """What to do now. All kinds but ``wait`` are final.

    ``exit_code`` is that of the completion record, else Slurm's, which is 128 + signal for a killed job.
    """

    kind: VerdictKind
    state: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    message: str = ""
    remedy: str | None = None
    retryable: bool = True
    notes: tuple[str, ...] = ()
    """Changes worth a line in the task log: new state, new pending reason."""
    warnings: tuple[str, ...] = ()
    """Doubts worth a warning: a failed poll, missing accounting, an unreadable record."""
