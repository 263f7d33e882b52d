# SPDX-License-Identifier: Apache-2.0
"""Parsers for what ``sbatch``, ``squeue``, ``sacct`` and ``scontrol`` print, from Slurm 20.11 to 25.x.

Each takes the exit status and both outputs of one command and says how far it can be trusted: ``ok`` (the
rows are the answer, none included), ``partial`` (the rows are good, there may be more), ``disabled`` (there is no
accounting here) or ``unknown`` (the command failed or printed something else; nothing follows from it). No parser
raises, except for a submission that cannot be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from airflow_slurm_images.core.states import state_name

SQUEUE_FORMAT = "%A|%T|%r|%M|%N|%j"
"""Job id, state, reason, elapsed, nodes, name. The name is last: it is the one field a user chooses."""

SACCT_FIELDS = "JobIDRaw,State,ExitCode,JobName,Submit,Start,End,ElapsedRaw,NodeList,Cluster"
"""For ``sacct -n -X --parsable2 --format``; parsable2 neither cuts nor escapes."""

_TIMED_OUT = frozenset({124, 137})  # timeout(1): limit reached, or killed after it
_NO_SUCH_JOB = "invalid job id specified"
_MAX_JOB_ID = 2**32 - 1

_PARSABLE = re.compile(r"([1-9][0-9]{0,9})(?:;([A-Za-z0-9_.-]*))?")
_SENTENCE = re.compile(r"Submitted batch job ([1-9][0-9]{0,9})(?: on cluster ([A-Za-z0-9_.-]+))?")
_ELAPSED = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]+)")
_NO_ELAPSED = r"(?:[0-9:-]+|INVALID|N/A|UNLIMITED)?"
_QUEUE_ROW = re.compile(rf"([0-9]{{1,10}})\|([A-Z_a-z?]+)\|(.*?)\|({_NO_ELAPSED})\|([^|]*)\|(.*)")
_STEP_ID = re.compile(r"[0-9]+(?:[._+][0-9A-Za-z_.+\[\]%,-]+)")
_EXIT_CODE = re.compile(r"([0-9]+):([0-9]+)")
_CONTROL_ROW = re.compile(
    r"JobId=([0-9]{1,10})(?: .*?)? JobName=(.*?) UserId=.*? JobState=(\S+)(?: Reason=(.*?) Dependency=)?"
)
_CONTROL_FIELD = re.compile(r"(?<=\s)(ExitCode|RunTime|NodeList|Restarts|Requeue)=(\S*)")
_NO_ACCOUNTING = re.compile(
    r"accounting storage is disabled|connection refused|problem talking to (?:the )?database"
    r"|failed to open persistent connection|slurmdbd[^\n]*(?:no route to host|connection timed out)",
    re.IGNORECASE,
)
_TROUBLE = re.compile(
    r"unable to contact|socket timed out|can't be reached|problem talking|connect failure"
    r"|authentication|munge|could not establish a configuration|zero bytes were transmitted",
    re.IGNORECASE,
)


class AmbiguousSubmissionError(ValueError):
    """What ``sbatch`` printed names no single job: one may have been submitted or not."""


@dataclass(frozen=True)
class SubmittedJob:
    """A job id and, where ``sbatch`` named it, the cluster that every later command must name with ``-M``."""

    job_id: int
    cluster: str | None


@dataclass(frozen=True)
class QueueRow:
    """One job of ``squeue``; ``elapsed`` is seconds of running time, None where Slurm gave none."""

    job_id: int
    state: str
    reason: str
    elapsed: int | None
    nodes: str
    name: str
    cluster: str | None = None
    """Where several clusters were asked, the one that was named with ``-M``."""


@dataclass(frozen=True)
class AccountingRow:
    """One job (never a step) of ``sacct``; times are the cluster's local text, as printed."""

    job_id: int
    state: str
    exit_code: int | None
    signal: int | None
    name: str
    submit: str
    start: str
    end: str
    elapsed: int | None
    nodes: str
    cluster: str


@dataclass(frozen=True)
class ControlRow:
    """One job of ``scontrol show job``; known for MinJobAge (300 s by default) after its end."""

    job_id: int
    state: str
    reason: str
    exit_code: int | None
    signal: int | None
    elapsed: int | None
    restarts: int | None
    nodes: str
    name: str
    requeue: bool | None = None
    """Whether Slurm may start the job again under its id."""


@dataclass(frozen=True)
class QueueAnswer:
    """``ok`` with no rows means: certainly not in the queue. ``partial``: of a job without a row nothing is known.

    ``unknown`` means nothing at all.
    """

    status: Literal["ok", "partial", "unknown"]
    rows: tuple[QueueRow, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class AccountingAnswer:
    """``disabled`` also covers a database that this cluster's login node cannot reach."""

    status: Literal["ok", "disabled", "unknown"]
    rows: tuple[AccountingRow, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class ControlAnswer:
    """``ok`` without a row means: the controller does not know the job (any more)."""

    status: Literal["ok", "unknown"]
    row: ControlRow | None = None
    detail: str = ""


def parse_sbatch(stdout: str) -> SubmittedJob:
    r"""Read the one line ``sbatch`` prints, with ``--parsable`` or without.

    >>> parse_sbatch("75;alpha\r\n")
    SubmittedJob(job_id=75, cluster='alpha')
    >>> parse_sbatch("Submitted batch job 481 on cluster north")
    SubmittedJob(job_id=481, cluster='north')

    Raises AmbiguousSubmissionError for anything else, including further text.
    """
    line = stdout.strip(" \t\r\n")
    match = _PARSABLE.fullmatch(line) or _SENTENCE.fullmatch(line)
    if match is None or int(match[1]) > _MAX_JOB_ID:
        raise AmbiguousSubmissionError(f"sbatch printed no job id but {_brief(stdout)!r}")
    return SubmittedJob(int(match[1]), match[2] or None)


def interpret_squeue(rc: int, stdout: str, stderr: str) -> QueueAnswer:
    """Read ``squeue -h -o SQUEUE_FORMAT``; a line that is no row may be one of any job without a row."""
    gone = _NO_SUCH_JOB in stderr.lower()
    if rc != 0 and not gone:
        return QueueAnswer("unknown", detail=_failure("squeue", rc, stderr))
    rows, strays = [], []
    for line in _lines(stdout):
        match = None if line.startswith("CLUSTER: ") else _QUEUE_ROW.fullmatch(line)
        if match:
            rows.append(_queue_row(match))
        elif not line.startswith("CLUSTER: "):
            strays.append(line)
    if strays:
        return QueueAnswer("partial", tuple(rows), f"squeue printed {_brief(strays[0])!r}")
    if not rows and not gone and _TROUBLE.search(stderr):
        return QueueAnswer("unknown", detail=_failure("squeue", rc, stderr))
    return QueueAnswer("ok", tuple(rows))


def interpret_sacct(rc: int, stdout: str, stderr: str) -> AccountingAnswer:
    """Read ``sacct -n -X --parsable2 --format=SACCT_FIELDS``.

    Steps, and rows that have no state yet, are left out.
    """
    if rc in (126, 127) or _NO_ACCOUNTING.search(stderr) or _NO_ACCOUNTING.search(stdout):
        return AccountingAnswer("disabled", detail=_failure("sacct", rc, stderr or stdout))
    if rc != 0:
        return AccountingAnswer("unknown", detail=_failure("sacct", rc, stderr))
    rows = []
    for line in _lines(stdout):
        fields = line.split("|")
        if _STEP_ID.fullmatch(fields[0]):
            continue
        if len(fields) < 10 or not _is_job_id(fields[0]):
            return AccountingAnswer("unknown", detail=f"sacct printed {_brief(line)!r}")
        if fields[1].strip():
            rows.append(_accounting_row(fields))
    if not rows and _TROUBLE.search(stderr):
        return AccountingAnswer("unknown", detail=_failure("sacct", rc, stderr))
    return AccountingAnswer("ok", tuple(rows))


def interpret_scontrol(rc: int, stdout: str, stderr: str) -> ControlAnswer:
    """Read ``scontrol -o show job ID``: one line per job, of which the first is ours."""
    if _NO_SUCH_JOB in stderr.lower():
        return ControlAnswer("ok")
    if rc != 0:
        return ControlAnswer("unknown", detail=_failure("scontrol", rc, stderr))
    line = next(iter(_lines(stdout)), "")
    match = _CONTROL_ROW.match(line)
    if match is None:
        return ControlAnswer("unknown", detail=f"scontrol printed {_brief(line)!r}")
    # The first of a name counts: what users write (comments) comes after Slurm's own.
    fields = dict(reversed(_CONTROL_FIELD.findall(line, match.end(3))))
    exit_code, signal = _exit_code(fields.get("ExitCode", ""))
    restarts = fields.get("Restarts", "")
    row = ControlRow(
        job_id=int(match[1]),
        state=state_name(match[3]),
        reason=_brief(match[4] or "None"),
        exit_code=exit_code,
        signal=signal,
        elapsed=elapsed_seconds(fields.get("RunTime", "")),
        restarts=int(restarts) if re.fullmatch(r"[0-9]{1,9}", restarts) else None,
        nodes=_brief(fields.get("NodeList", "").replace("(null)", "")),
        name=match[2],
        requeue={"0": False, "1": True}.get(fields.get("Requeue", "")),
    )
    return ControlAnswer("ok", row)


def elapsed_seconds(text: str) -> int | None:
    """Return seconds of ``[D-]HH:MM:SS`` or ``MM:SS``; None for ``INVALID``, ``N/A`` and the like.

    >>> elapsed_seconds("1-02:03:04"), elapsed_seconds("0:07"), elapsed_seconds("INVALID")
    (93784, 7, None)
    """
    match = _ELAPSED.fullmatch(text.strip())
    if match is None or len(text) > 30:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _queue_row(match: re.Match[str]) -> QueueRow:
    job_id, state, reason, elapsed, nodes, name = match.groups()
    return QueueRow(int(job_id), state_name(state), _brief(reason), elapsed_seconds(elapsed), _brief(nodes), name)


def _accounting_row(fields: list[str]) -> AccountingRow:
    # A foreign job's name may hold '|'; ours never does, and the fields around it are fixed in number.
    submit, start, end, elapsed, nodes, cluster = fields[-6:]
    exit_code, signal = _exit_code(fields[2])
    return AccountingRow(
        job_id=int(fields[0]),
        state=state_name(fields[1]),
        exit_code=exit_code,
        signal=signal,
        name="|".join(fields[3:-6]),
        submit=_brief(submit),
        start=_brief(start),
        end=_brief(end),
        elapsed=int(elapsed) if re.fullmatch(r"[0-9]{1,12}", elapsed) else None,
        nodes=_brief(nodes.replace("None assigned", "")),
        cluster=_brief(cluster),
    )


def _is_job_id(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,10}", text) is not None


def _exit_code(text: str) -> tuple[int | None, int | None]:
    match = _EXIT_CODE.fullmatch(text.strip()) if len(text) < 20 else None
    return (int(match[1]), int(match[2])) if match else (None, None)


def _lines(text: str) -> list[str]:
    # Only "\n" ends a row: str.splitlines would also cut at characters a job name may hold.
    return [line for line in (raw.rstrip("\r") for raw in text.split("\n")) if line.strip()]


def _failure(command: str, rc: int, stderr: str) -> str:
    how = "timed out" if rc in _TIMED_OUT else f"ended with status {rc}"
    text = _brief(stderr)
    return f"{command} {how}: {text}" if text else f"{command} {how}"


def _brief(text: str) -> str:
    """One printable, bounded line of foreign text, for messages and logs."""
    flat = " ".join(text.split())
    clean = "".join(char if char.isprintable() else "?" for char in flat)
    return clean if len(clean) <= 300 else f"{clean[:300]}..."
