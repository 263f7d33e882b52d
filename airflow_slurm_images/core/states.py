# SPDX-License-Identifier: Apache-2.0
"""Slurm's job states and pending reasons, and what each means for somebody who waits.

Sources: ``enum job_states`` and the ``JOB_*`` flags of slurm.h from 20.11 to 25.11, and the page "Job Reason
Codes" of Slurm's documentation. A word that is in no table means "keep waiting": neither success nor failure
is ever read out of something unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal


class JobState(str, Enum):
    """Base states and state flags, as ``squeue``, ``sacct`` and ``scontrol`` print them."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    # Flags: they hide the base state while they are set.
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    EXPEDITING = "EXPEDITING"  # 25.11
    LAUNCH_FAILED = "LAUNCH_FAILED"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    UPDATE_DB = "UPDATE_DB"


class StateClass(Enum):
    """What a state means for the wait."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """Ended by no fault of the job; under the same id it may come back (requeue), so it is not an end yet."""
    UNKNOWN = "unknown"


HELD_STATES = frozenset({JobState.REQUEUE_HOLD, JobState.RESV_DEL_HOLD, JobState.SPECIAL_EXIT})
"""Back in the queue, but nothing happens until somebody releases the job."""

ENDED_STATES = frozenset({JobState.BOOT_FAIL, JobState.NODE_FAIL, JobState.PREEMPTED})
"""Base states of a job that ended so; while Slurm starts it over, a flag (REQUEUED, COMPLETING) hides them."""

_CLASSES: Mapping[StateClass, tuple[JobState, ...]] = {
    StateClass.WAITING: (JobState.PENDING, *HELD_STATES),
    StateClass.RUNNING: (
        JobState.RUNNING,
        JobState.SUSPENDED,
        JobState.COMPLETING,  # clean-up after the end; how it ended is not told yet
        JobState.CONFIGURING,  # has its nodes, they are booting
        JobState.POWER_UP_NODE,
        JobState.RESIZING,
        JobState.SIGNALING,
        JobState.STAGE_OUT,
        JobState.STOPPED,
        JobState.UPDATE_DB,
    ),
    StateClass.COMPLETED: (JobState.COMPLETED,),
    StateClass.FAILED: (
        JobState.CANCELLED,
        JobState.DEADLINE,
        JobState.FAILED,
        JobState.OUT_OF_MEMORY,
        JobState.REVOKED,
        JobState.TIMEOUT,
    ),
    StateClass.INTERRUPTED: (
        JobState.BOOT_FAIL,
        JobState.EXPEDITING,
        JobState.LAUNCH_FAILED,
        JobState.NODE_FAIL,
        JobState.PREEMPTED,
        JobState.RECONFIG_FAIL,
        JobState.REQUEUED,
        JobState.REQUEUE_FED,
    ),
}
_CLASS_OF = {state: kind for kind, states in _CLASSES.items() for state in states}
_FIRST_WORD = re.compile(r"[A-Za-z_]+")


def parse_state(text: str) -> JobState | None:
    """Return the state of a printed word, or None for one that is not known.

    >>> [parse_state(text).value for text in ("CANCELLED by 1000", "CANCELLED+", "OUT_OF_ME+")]
    ['CANCELLED', 'CANCELLED', 'OUT_OF_MEMORY']
    """
    match = _FIRST_WORD.match(text.strip())
    if match is None:
        return None
    word = match.group().upper()
    if word in JobState.__members__:
        return JobState[word]
    # sacct cuts a state to its column and marks the cut with '+'.
    cut = text.strip().endswith("+") and len(word) >= 4
    candidates = [state for state in JobState if cut and state.value.startswith(word)]
    return candidates[0] if len(candidates) == 1 else None


def state_name(text: str) -> str:
    """Return the plain state word for messages and records; an unknown one as it was printed, bounded."""
    state = parse_state(text)
    return state.value if state else "".join(c for c in text.strip()[:40] if c.isprintable()) or "UNKNOWN"


def classify(text: str) -> StateClass:
    """Return what a printed state means for the wait; a word of the future is UNKNOWN.

    >>> classify("RUNNING"), classify("SOMETHING_NEW")
    (<StateClass.RUNNING: 'running'>, <StateClass.UNKNOWN: 'unknown'>)
    """
    state = parse_state(text)
    return StateClass.UNKNOWN if state is None else _CLASS_OF[state]


@dataclass(frozen=True)
class Advice:
    """What to tell about a state that ended a job."""

    message: str
    remedy: str
    retryable: bool
    """Whether the same request can succeed when it is simply tried again."""


_AGAIN = "a retry helps"

STATE_ADVICE: Mapping[JobState, Advice] = {
    JobState.FAILED: Advice(
        "the job failed",
        "read the end of the job's output and its run directory",
        retryable=True,
    ),
    JobState.TIMEOUT: Advice(
        "the job reached its time limit and was killed",
        "raise `time_limit` in the profile (or `cpus_per_task`: import and compression use all CPUs)",
        retryable=False,
    ),
    JobState.OUT_OF_MEMORY: Advice(
        "the job used more memory than it asked for and was killed",
        "raise `memory` in the profile (or move `scratch_root` off a memory-backed file system)",
        retryable=False,
    ),
    JobState.CANCELLED: Advice(
        "the job was cancelled by somebody else",
        "ask who cancelled it: a user, an administrator or a site's policy (sacct shows the uid); then retry",
        retryable=True,
    ),
    JobState.DEADLINE: Advice(
        "the job could not end before its deadline",
        "lower `time_limit` in the profile, or ask the site which rule sets a deadline",
        retryable=False,
    ),
    JobState.REVOKED: Advice(
        "the job was revoked here because a sibling runs on another cluster of the federation",
        "name one `cluster` in the profile, then retry",
        retryable=True,
    ),
    JobState.NODE_FAIL: Advice(
        "the node of the job failed",
        f"{_AGAIN}; if one node does it again, name it in `exclude`",
        retryable=True,
    ),
    JobState.BOOT_FAIL: Advice(
        "the node of the job did not boot",
        f"{_AGAIN}; if one node does it again, name it in `exclude`",
        retryable=True,
    ),
    JobState.PREEMPTED: Advice(
        "the job was preempted by one of higher priority",
        f"{_AGAIN}; to stay clear of it choose another `partition` or `qos`",
        retryable=True,
    ),
    JobState.LAUNCH_FAILED: Advice(
        "the node could not launch the job",
        f"{_AGAIN}; if one node does it again, name it in `exclude`",
        retryable=True,
    ),
    JobState.RECONFIG_FAIL: Advice(
        "the node of the job could not be configured",
        f"{_AGAIN}; without `constraint` no node needs to be reconfigured",
        retryable=True,
    ),
    JobState.REQUEUED: Advice("the job was requeued and did not come back", _AGAIN, retryable=True),
    JobState.REQUEUE_FED: Advice(
        "the federation requeued the job and it did not come back",
        f"{_AGAIN}; name one `cluster` in the profile to stay on it",
        retryable=True,
    ),
    JobState.EXPEDITING: Advice("the job was requeued and did not come back", _AGAIN, retryable=True),
}
"""State that can end a job -> message, remedy with the parameter to change, and whether a retry can help."""

_HOPELESS = frozenset(
    reason.lower()
    for reason in (
        # The request itself is not allowed, whatever else runs.
        *("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed", "BadConstraints"),
        *("PartitionTimeLimit", "MaxMemPerLimit", "DependencyNeverSatisfied"),
        *("ReservationDeleted", "ReservationInvalid"),
        # Held: nothing happens until a person acts.
        *("JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "launch_failed_requeued_held"),
        *("job_requeued_in_held_state", "user_env_retrieval_failed_requeued_held"),
    )
)
_PER_JOB_LIMIT = re.compile(
    r"(?:qos|assoc)(?:max\w*per(?:job|node)(?:limit)?"
    r"|min(?:bb|billing|cpu|energy|gres|license|mem|node|unknown)\w*)"
)
# Left out on purpose, so waited for: aggregate limits (*Grp*, Max*PerUser, Max*PerAccount), everything about
# nodes and partitions that come back, and fallback words (PartitionConfig, AccountingPolicy, Constraints).


def pending_reason(reason: str) -> Literal["wait", "hopeless"]:
    """Tell whether a pending job can start by itself; a reason in no table can.

    >>> pending_reason("AssocMaxWallDurationPerJobLimit"), pending_reason("QOSMaxCpuPerUserLimit")
    ('hopeless', 'wait')
    """
    word = reason.strip().strip("()").partition(",")[0].strip().lower().replace(" ", "_")
    return "hopeless" if word in _HOPELESS or _PER_JOB_LIMIT.fullmatch(word) else "wait"


def reason_remedy(reason: str) -> str:
    """Name what to change for a hopeless pending reason."""
    word = reason.lower()
    for part, remedy in _REASON_REMEDIES:
        if part in word:
            return remedy
    return "change the profile so that the partition and the account allow the job, or ask the site"


_REASON_REMEDIES = (
    ("held", "release the job (scontrol release) or ask the site why it is held"),
    ("maxrequeue", "release the job (scontrol release) or ask the site why it was requeued so often"),
    ("wall", "lower `time_limit` in the profile"),
    ("timelimit", "lower `time_limit` in the profile"),
    ("mem", "change `memory` in the profile"),
    ("cpu", "change `cpus_per_task` in the profile"),
    ("account", "correct `account` in the profile"),
    ("qosnotallowed", "correct `qos` or `partition` in the profile"),
    ("invalidqos", "correct `qos` in the profile"),
    ("badconstraints", "correct `constraint`, `exclude`, `memory` or `cpus_per_task` in the profile"),
    ("reservation", "correct or remove `reservation` in the profile"),
)
