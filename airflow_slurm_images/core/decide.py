# SPDX-License-Identifier: Apache-2.0
"""From the evidence of one poll to a verdict about one job: a pure function and its memory.

Order of evidence: the completion record with our token, then the queue, then what the controller and
accounting remember of ended jobs. Doubt is never failure, never success and never a reason to cancel: a
failed query only counts, and everything that could still turn out well has its own stated limit. The caller
keeps the memory between polls (it survives JSON) and passes its clock as ``now``, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_slurm_images.core.evidence import (
    Completion,
    CompletionForeign,
    CompletionFound,
    CompletionInvalid,
    Evidence,
    JobKey,
    Limits,
    Memory,
    Row,
    Verdict,
    VerdictKind,
)
from airflow_slurm_images.core.failures import EXIT_CODES
from airflow_slurm_images.core.slurm import AccountingRow, ControlRow, QueueRow
from airflow_slurm_images.core.states import (
    ENDED_STATES,
    HELD_STATES,
    STATE_ADVICE,
    JobState,
    StateClass,
    classify,
    parse_state,
    pending_reason,
    reason_remedy,
)

__all__ = [
    "CompletionForeign",
    "CompletionFound",
    "CompletionInvalid",
    "Evidence",
    "JobKey",
    "Limits",
    "Memory",
    "Verdict",
    "decide",
]

_NOT_ENDED = (StateClass.WAITING, StateClass.RUNNING, StateClass.UNKNOWN)


def decide(job: JobKey, evidence: Evidence, memory: Memory, limits: Limits, now: float) -> tuple[Verdict, Memory]:
    """Return the verdict of this poll and the memory for the next one. Pure; raises nothing."""
    poll = _Poll(job, evidence, limits, now)
    row = _queue_row(poll) or _ended_row(poll)
    if isinstance(evidence.completion, CompletionFound):
        return _by_record(evidence.completion, row, memory), memory
    queued = _queue_row(poll)
    if evidence.queue.status == "unknown" or (evidence.queue.status == "partial" and queued is None):
        return _doubt(poll, memory, evidence.queue.detail)
    if queued is not None and classify(queued.state) not in (StateClass.COMPLETED, StateClass.FAILED):
        return _present(poll, queued, memory)
    return _absent(poll, row, memory)


@dataclass(frozen=True)
class _Poll:
    job: JobKey
    evidence: Evidence
    limits: Limits
    now: float

    def since(self, moment: float | None) -> float:
        return self.now if moment is None else moment


# --- whose row it is


def _pick(job: JobKey, rows: tuple[Row, ...]) -> Row | None:
    """The last row that is ours by id and name; another name under our id is a job of long ago."""
    ours = [row for row in rows if row.job_id == job.job_id and row.name == job.name]
    return ours[-1] if ours else None


def _control_row(poll: _Poll) -> Row | None:
    control = poll.evidence.control
    return _pick(poll.job, (control.row,)) if control and control.row else None


def _queue_row(poll: _Poll) -> Row | None:
    """What the queue says; the controller's own row where squeue leaves the job out (hidden partitions)."""
    queued = _pick(poll.job, poll.evidence.queue.rows)
    controlled = _control_row(poll)
    if queued is None and controlled and classify(controlled.state) in (StateClass.WAITING, StateClass.RUNNING):
        return controlled
    return queued


def _ended_row(poll: _Poll) -> Row | None:
    """What is remembered of an ended job: by accounting, else by the controller where that lags."""
    answer = poll.evidence.accounting
    # ISO text of one cluster's clock sorts by time; of equal times sacct's order stays.
    rows = sorted(answer.rows, key=lambda row: row.submit) if answer else []
    accounted, controlled = _pick(poll.job, tuple(rows)), _control_row(poll)
    if controlled and (accounted is None or classify(accounted.state) in _NOT_ENDED):
        return controlled
    return accounted


# --- the four situations: the record speaks, the poll failed, the job is there, the job is gone


def _by_record(record: CompletionFound, row: Row | None, memory: Memory) -> Verdict:
    state = row.state if row else memory.state
    if record.exit_status == 0:
        return Verdict("succeeded", state, exit_code=0, message="the completion record says success")
    message = f"the job ended with exit status {record.exit_status}, says its completion record"
    return Verdict("failed", state, exit_code=record.exit_status, message=message)


def _doubt(poll: _Poll, memory: Memory, detail: str) -> tuple[Verdict, Memory]:
    """A failed query leaves everything as it was, and counts."""
    since = poll.since(memory.unknown_since)
    count = memory.unknown_count + 1
    memory = replace(memory, unknown_since=since, unknown_count=count)
    if poll.now - since >= poll.limits.unknown_limit:
        message = (
            f"lost contact: {count} polls failed and none was good for {poll.now - since:.0f} s "
            f"(the last: {detail}). The job was left alone and may still be running"
        )
        remedy = "retry when the cluster answers again: the job is found by its name and adopted"
        return Verdict("lost", memory.state, memory.reason, message=message, remedy=remedy), memory
    warning = f"poll failed ({count} in a row), the job's last state is kept: {detail}"
    return _wait(memory, warnings=(warning,)), memory


def _present(poll: _Poll, row: Row, memory: Memory) -> tuple[Verdict, Memory]:
    ended = parse_state(row.state) in ENDED_STATES
    comes_back = _comes_back(poll) if ended else True
    memory = replace(
        _contact(memory),
        seen=True,
        absent_since=None,
        interrupted_since=None if comes_back else memory.interrupted_since,
    )
    memory, notes = _observe(poll, row, memory)
    if classify(row.state) is StateClass.WAITING:
        return _pending(poll, row, memory, notes)
    memory = replace(memory, pending_since=None, hopeless_since=None)
    if classify(row.state) is not StateClass.RUNNING:
        memory = replace(memory, running_since=None)
        return _interrupted(poll, row, memory, notes) if comes_back is False else (_wait(memory, notes), memory)
    memory = replace(memory, running_since=_running_since(poll, row, memory))
    ran, allowed = poll.now - poll.since(memory.running_since), poll.limits.run_timeout
    if allowed is not None and ran >= allowed:
        message = f"run_timeout: the job has been running for {ran:.0f} s, allowed are {allowed:.0f} s"
        remedy = "raise `run_timeout`, or see in the run directory which phase takes so long"
        return _end("run_timeout", memory, message, remedy, notes, retryable=False), memory
    return _wait(memory, notes), memory


def _pending(poll: _Poll, row: Row, memory: Memory, notes: tuple[str, ...]) -> tuple[Verdict, Memory]:
    reason = "" if isinstance(row, AccountingRow) else row.reason
    hopeless = pending_reason(reason) == "hopeless" or parse_state(row.state) in HELD_STATES
    memory = replace(
        memory,
        running_since=None,
        pending_since=_pending_since(poll, memory),
        hopeless_since=poll.since(memory.hopeless_since) if hopeless else None,
    )
    if hopeless and poll.now - poll.since(memory.hopeless_since) >= poll.limits.hopeless_grace:
        message = f"the job cannot start: it is {row.state} with reason {reason or 'unknown'}"
        return _end("stuck", memory, message, reason_remedy(reason), notes, retryable=False), memory
    waited, allowed = poll.now - poll.since(memory.pending_since), poll.limits.pending_timeout
    if allowed is not None and waited >= allowed:
        message = (
            f"pending_timeout: the job has been pending for {waited:.0f} s (reason {reason or 'unknown'}), "
            f"allowed are {allowed:.0f} s"
        )
        remedy = "raise `pending_timeout`, or choose a `partition` or `qos` that starts sooner"
        return _end("pending_timeout", memory, message, remedy, notes), memory
    return _wait(memory, notes), memory


def _absent(poll: _Poll, row: Row | None, memory: Memory) -> tuple[Verdict, Memory]:
    """The job is not in the queue, which alone proves nothing."""
    kind = classify(row.state) if row else None
    if kind not in (StateClass.COMPLETED, StateClass.FAILED) and (detail := _failed_query(poll.evidence)):
        return _doubt(poll, memory, detail)
    memory, warnings = _accounting_warning(poll, memory)
    notes: tuple[str, ...] = ()
    if row is not None:
        memory, notes = _observe(poll, row, memory)
    if row is not None and kind is StateClass.FAILED and not _record_to_come(poll):
        return _failed(poll, row, memory, notes), memory
    outage = 0.0 if memory.unknown_since is None else poll.now - memory.unknown_since
    memory = _contact(memory)
    if row is None and not memory.seen and poll.now - memory.submitted_at < poll.limits.appear_grace:
        return _wait(memory, warnings=warnings), memory
    # After a long outage the rows of that time are still on their way: their grace starts now.
    fresh = outage >= poll.limits.gone_grace
    if row is not None and kind is not StateClass.INTERRUPTED and memory.absent_since is None:
        notes += (f"the record of job {row.job_id} is not visible yet: waiting {poll.limits.gone_grace:.0f} s for it",)
    memory = replace(memory, absent_since=poll.now if fresh else poll.since(memory.absent_since))
    if row is not None and kind is StateClass.INTERRUPTED:
        return _interrupted(poll, row, memory, notes)
    gone = poll.now - poll.since(memory.absent_since)
    if gone < poll.limits.gone_grace:
        return _wait(memory, notes, warnings + _record_warning(poll.evidence.completion)), memory
    if row is not None and kind is StateClass.FAILED:
        return _failed(poll, row, memory, notes, f"its record is not visible after {gone:.0f} s"), memory
    return _unexplained(poll, row, memory, gone), memory


def _comes_back(poll: _Poll) -> bool | None:
    """Whether Slurm may start the job, whose node failed or that was preempted, again; None when it does not say."""
    row = _control_row(poll)
    return row.requeue if isinstance(row, ControlRow) and parse_state(row.state) in ENDED_STATES else None


def _interrupted(poll: _Poll, row: Row, memory: Memory, notes: tuple[str, ...]) -> tuple[Verdict, Memory]:
    memory = replace(memory, interrupted_since=poll.since(memory.interrupted_since))
    if poll.now - poll.since(memory.interrupted_since) >= poll.limits.interrupted_grace:
        return _failed(poll, row, memory, notes), memory
    return _wait(memory, notes), memory


# --- words


def _record_to_come(poll: _Poll) -> bool:
    """Whether the job ended by an exit code of its script that writes a record. Superseded, the other job does that."""
    row = _ended_row(poll)
    code = _exit_code(row) if row is not None and parse_state(row.state) is JobState.FAILED else None
    return code is not None and code in EXIT_CODES and EXIT_CODES[code].reason != "superseded"


def _failed(
    poll: _Poll, row: Row, memory: Memory, notes: tuple[str, ...], record: str = "the job wrote no record"
) -> Verdict:
    advice = STATE_ADVICE[parse_state(row.state) or JobState.FAILED]
    coded = _ended_row(poll) if isinstance(row, QueueRow) else row
    exit_code = _exit_code(coded)
    message = f"job {row.job_id} ended as {row.state}: {advice.message}"
    if exit_code:
        message += f" (exit code {exit_code})"
    message += f"; {record}"
    return Verdict("failed", row.state, memory.reason, exit_code, message, advice.remedy, advice.retryable, notes)


def _unexplained(poll: _Poll, row: Row | None, memory: Memory, gone: float) -> Verdict:
    """The job is gone, its time is over, and nothing tells how it ended."""
    completion = poll.evidence.completion
    if isinstance(completion, CompletionForeign):
        message = "the completion record in the attempt directory belongs to another attempt"
        return _end("failed", memory, message, "look at the run directory: something else writes there")
    if isinstance(completion, CompletionInvalid):
        message = f"the completion record cannot be read: {completion.detail}"
        return _end("unknown", memory, message, "look at completion.json in the run directory")
    if row is not None and classify(row.state) is StateClass.COMPLETED:
        message = f"job COMPLETED but record not visible after {gone:.0f} s"
        remedy = "raise `record_wait`, or check that login and compute nodes see one and the same workspace"
        return _end("unknown", memory, message, remedy)
    if row is not None:
        known = f"accounting still says {row.state}"
    else:
        accounting = poll.evidence.accounting
        known = "there is no accounting" if accounting and accounting.status == "disabled" else "no row of it"
    left = "left the queue" if memory.seen else "was never seen in the queue"
    message = f"the job {left}, {gone:.0f} s passed, {known}: job wrote no record"
    return _end("unknown", memory, message, "look at the run directory and `sacct -j` of the job, then retry")


def _observe(poll: _Poll, row: Row, memory: Memory) -> tuple[Memory, tuple[str, ...]]:
    """Remember state and pending reason; what changed becomes a note."""
    pending = classify(row.state) is StateClass.WAITING
    reason = row.reason if pending and not isinstance(row, AccountingRow) else None
    changed = row.state != memory.state
    if not changed and reason == memory.reason:
        return memory, ()
    since = poll.now if changed else memory.state_since
    where = f" on {row.nodes}" if row.nodes and not pending else ""
    note = f"job {row.job_id} is {row.state}{where}" + (
        f", reason {reason}" if reason not in (None, "", "None") else ""
    )
    return replace(memory, state=row.state, reason=reason, state_since=since), (note,)


def _pending_since(poll: _Poll, memory: Memory) -> float:
    """What a watch before this one saw counts too, but not where the job has begun once and was requeued."""
    return poll.now - (poll.evidence.queued_for or 0) if memory.pending_since is None else memory.pending_since


def _running_since(poll: _Poll, row: Row, memory: Memory) -> float:
    """Slurm's own count where there is one: it starts anew after a requeue that no poll saw."""
    if parse_state(row.state) is JobState.COMPLETING and memory.running_since is not None:
        return memory.running_since  # elapsed stands still there
    return poll.since(memory.running_since) if row.elapsed is None else poll.now - row.elapsed


def _accounting_warning(poll: _Poll, memory: Memory) -> tuple[Memory, tuple[str, ...]]:
    accounting = poll.evidence.accounting
    if memory.accounting_disabled_warned or accounting is None or accounting.status != "disabled":
        return memory, ()
    warning = f"no accounting on this cluster, the completion record decides: {accounting.detail}"
    return replace(memory, accounting_disabled_warned=True), (warning,)


def _record_warning(completion: Completion) -> tuple[str, ...]:
    if isinstance(completion, CompletionForeign):
        return ("there is a completion record of another attempt, it is ignored",)
    if isinstance(completion, CompletionInvalid):
        return (f"the completion record cannot be read yet: {completion.detail}",)
    return ()


def _failed_query(evidence: Evidence) -> str | None:
    """The detail of a query whose failure leaves open how an absent job ended."""
    accounting, control = evidence.accounting, evidence.control
    if accounting and accounting.status == "unknown":
        return accounting.detail
    if control and control.status == "unknown" and not (accounting and accounting.status == "ok"):
        return control.detail
    return None


def _contact(memory: Memory) -> Memory:
    return replace(memory, unknown_since=None, unknown_count=0)


def _exit_code(row: Row | None) -> int | None:
    if row is None or isinstance(row, QueueRow):
        return None
    return 128 + row.signal if row.signal and not row.exit_code else row.exit_code


def _wait(memory: Memory, notes: tuple[str, ...] = (), warnings: tuple[str, ...] = ()) -> Verdict:
    return Verdict("wait", memory.state, memory.reason, notes=notes, warnings=warnings)


def _end(
    kind: VerdictKind,
    memory: Memory,
    message: str,
    remedy: str,
    notes: tuple[str, ...] = (),
    *,
    retryable: bool = True,
) -> Verdict:
    return Verdict(kind, memory.state, memory.reason, None, message, remedy, retryable, notes)
