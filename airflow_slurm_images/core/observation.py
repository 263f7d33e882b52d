# SPDX-License-Identifier: Apache-2.0
"""One look at waiting jobs: what is asked for each (:class:`Watch`) and what came back (:class:`Observation`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from airflow_slurm_images.core.evidence import (
    Completion,
    CompletionForeign,
    CompletionFound,
    CompletionInvalid,
    Evidence,
)
from airflow_slurm_images.core.fields import whole_number
from airflow_slurm_images.core.records import MAX_RECORD_BYTES, CompletionRecord
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.slurm import (
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    AccountingAnswer,
    ControlAnswer,
    QueueAnswer,
    QueueRow,
    interpret_sacct,
    interpret_scontrol,
    interpret_squeue,
)


@dataclass(frozen=True)
class Watch:
    """One job to look at. ``log_offset`` None: go on where the stream of ``stream`` was kept on the cluster.

    ``log_kept`` is what to keep there now: up to where the output is in the log, line by line.
    """

    job_id: int
    job_name: str
    token: str
    directory: str
    submitted_at: str
    stream: str
    log_offset: int | None
    log_bytes: int
    log_kept: int = 0


@dataclass(frozen=True)
class Observation:
    """What one look brought back for one job. ``claimed_by`` is the id of the job that runs the attempt."""

    evidence: Evidence
    record: CompletionRecord | None = None
    phase: str | None = None
    log: bytes = b""
    log_offset: int = 0
    claimed_by: int | None = None
    missing: bool = False


def payload(watches: Sequence[Watch]) -> bytes:
    """Standard input of ``observe.sh``: one line a job."""
    lines = [
        f"{index} {watch.job_id} {watch.job_name} {watch.directory} {watch.stream} "
        f"{'kept' if watch.log_offset is None else watch.log_offset} {watch.log_bytes} {watch.log_kept} {watch.token}\n"
        for index, watch in enumerate(watches)
    ]
    return "".join(lines).encode()


def variables(watches: Sequence[Watch]) -> dict[str, str]:
    """Constants of ``observe.sh``; the start bound is well before the oldest submission.

    That is the login node's time: the controller's clock may differ, and an hour comes twice when summer time ends.
    """
    return {
        "ASI_JOBS": str(len(watches)),
        "ASI_SINCE": _day_before(min(watch.submitted_at for watch in watches)),
        "ASI_SQUEUE_FORMAT": SQUEUE_FORMAT,
        "ASI_SACCT_FIELDS": SACCT_FIELDS,
    }


def _day_before(time: str) -> str:
    try:
        return (datetime.fromisoformat(time) - timedelta(days=1)).isoformat(timespec="seconds")
    except (ValueError, OverflowError):  # no day of any calendar
        return time


def read(result: RemoteResult, watches: Sequence[Watch]) -> list[Observation]:
    """Observations in the order of ``watches``; what concerns one job never touches another."""
    queue = queue_answer(result)
    accounting = _accounting(result)
    queued_for = dict(line.split(" ", 1) for line in result.text("queued_for").splitlines() if " " in line)
    return [
        _read_one(result, str(index), watch, queue, accounting, whole_number(queued_for.get(str(index), "")))
        for index, watch in enumerate(watches)
    ]


def _read_one(
    result: RemoteResult,
    index: str,
    watch: Watch,
    queue: QueueAnswer,
    accounting: AccountingAnswer | None,
    queued_for: int | None,
) -> Observation:
    completion, record = read_completion(result.data(f"{index}.completion"), watch.token)
    claim = result.text(f"{index}.claim").split()
    claimed_by = whole_number(claim[0]) if claim else None
    phase = result.text(f"{index}.phase").split()
    offset = whole_number(result.text(f"{index}.offset"))
    over = result.text(f"{index}.over") == "1"  # says its own record, so the queue need not be asked about it
    return Observation(
        evidence=Evidence(
            queue=QueueAnswer("ok") if over and queue.status == "unknown" else queue,
            completion=completion,
            accounting=accounting,
            control=_control(result, claimed_by or watch.job_id),
            queued_for=queued_for,
        ),
        record=record,
        phase=phase[0] if phase else None,
        log=result.data(f"{index}.log") or b"",
        log_offset=watch.log_offset or 0 if offset is None else offset,
        claimed_by=claimed_by or None,
        missing=result.data(f"{index}.missing") is not None,
    )


def read_completion(data: bytes | None, token: str) -> tuple[Completion, CompletionRecord | None]:
    """Judge a completion record: none, ours, another attempt's, or unreadable."""
    if data is None:
        return None, None
    if len(data) > MAX_RECORD_BYTES:
        return CompletionInvalid("the completion record is larger than 1 MiB"), None
    try:
        record = CompletionRecord.model_validate_json(data)
    except ValidationError as err:
        return CompletionInvalid(f"the completion record is not valid: {err.errors(include_url=False)[0]['msg']}"), None
    if record.token != token:
        return CompletionForeign(), None
    return CompletionFound(record.exit_status), record


def _answer(result: RemoteResult, name: str) -> tuple[int, str, str] | None:
    status = whole_number(result.text(f"{name}.rc"))
    return None if status is None else (status, result.text(f"{name}.out"), result.text(f"{name}.err"))


def queue_answer(result: RemoteResult) -> QueueAnswer:
    """The queues of all clusters that one command asked; ``unknown`` when one gave no good answer or none was asked."""
    rows: list[QueueRow] = []
    parts = [result.texts(f"squeue.{part}") for part in ("rc", "out", "err")]
    clusters = result.texts("squeue.cluster") or ("",)
    if {len(values) for values in parts} != {len(clusters)}:
        return QueueAnswer("unknown", detail="squeue gave no answer")
    for cluster, rc, out, err in zip(clusters, *parts, strict=True):
        status = whole_number(rc)
        answer = interpret_squeue(124 if status is None else status, out, err)
        if answer.status != "ok":
            return replace(answer, detail=f"cluster {cluster}: {answer.detail}") if cluster else answer
        rows += [replace(row, cluster=cluster or None) for row in answer.rows]
    return QueueAnswer("ok", tuple(rows))


def _accounting(result: RemoteResult) -> AccountingAnswer | None:
    answer = _answer(result, "sacct")
    return interpret_sacct(*answer) if answer else None


def _control(result: RemoteResult, job_id: int) -> ControlAnswer | None:
    answer = _answer(result, f"scontrol.{job_id}")
    return interpret_scontrol(*answer) if answer else None
