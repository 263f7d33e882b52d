# SPDX-License-Identifier: Apache-2.0
"""Whatever Slurm, the login node or the files of an attempt say: read, doubted or refused, never misread."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from airflow_slurm_images.core import catalog, observation, run_state
from airflow_slurm_images.core.errors import SlurmImagesError
from airflow_slurm_images.core.housekeeping import PruneReport
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.slurm import interpret_sacct, interpret_scontrol, interpret_squeue
from airflow_slurm_images.core.states import JobState
from airflow_slurm_images.core.submission import Publication, SubmitAnswer

from . import records
from .fuzzing import twice

NAME = f"asi-{records.RUN_KEY}"
STATES = st.sampled_from([state.value for state in JobState])
PIECES = st.sampled_from(
    [
        *("481", "481|", "RUNNING", "|RUNNING|None|0:01|n1|", NAME, "|", "\n", "\r\n", "²", "٤", "9" * 5000, "-1", "0"),
        *("JobId=481 ", " JobName=", " UserId=", " JobState=FAILED", " Reason=", " Dependency=", " ExitCode=1:9"),
        *(" RunTime=1-00:00:00", " Restarts=9", "CLUSTER: x", "481.batch|", "Unknown", "\0", "\x1b[2J", "\u2028"),
        *("slurm_load_jobs error: Invalid job id specified", "accounting storage is disabled", "munge", " "),
    ]
)
TEXT = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=12).map("".join))
NUMBERS = st.one_of(st.sampled_from(["0", "1", "124", "127", "481", "²", "٤", "", "-1", "9" * 5000]), TEXT)
KEYS = (
    *("squeue.rc", "squeue.out", "squeue.err", "sacct.rc", "sacct.out", "sacct.err", "scontrol.481.rc"),
    *(
        "scontrol.481.out",
        "scontrol.481.err",
        "0.completion",
        "0.claim",
        "0.phase",
        "0.offset",
        "0.log",
        "0.missing",
        "0.over",
    ),
    *("queued_for", "aa.plan", "aa.claim", "aa.job_id", "aa.completion", "aa.submitted_at", "aa.generation"),
    *("sbatch.rc", "sbatch.out", "sbatch.err", "submitted_at", "number", "moved", "previous", "alias_path"),
    *("report", "complete", "version.0.record", "stored.0.record"),
)
VERSION = st.builds("{} {} 1 {} file {} {} {} /ws/x".format, TEXT, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
STORED = st.builds("{} {} file {} {} {} /ws/x".format, st.just("a" * 64), NUMBERS, NUMBERS, NUMBERS, NUMBERS)
REPORT = st.builds("store\tremoved\t{}\t/ws/x\twhy".format, NUMBERS)
VALUES = st.one_of(NUMBERS.map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=40))
FIELDS = st.builds(
    lambda fields, version, stored, report: {
        "report": [report.encode()], **fields, "attempt": [b"aa"],
        "version.0": [version.encode("utf-8", "replace")], "stored.0": [stored.encode("utf-8", "replace")],
    },
    st.dictionaries(st.sampled_from(KEYS), st.lists(VALUES, min_size=1, max_size=2), max_size=8),
    VERSION, STORED, REPORT,
)  # fmt: skip
READERS: dict[str, Callable[[RemoteResult], object]] = {
    "observation": lambda result: observation.read(
        result, [observation.Watch(481, NAME, records.TOKEN, "/run", "2024-05-01T10:00:00", "s", 0, 10)]
    ),
    "run state": run_state.read,
    "catalog": catalog.read,
    "prune": lambda result: PruneReport.read(result, dry_run=False),
    "submission": SubmitAnswer.read,
    "publication": Publication.read,
}


@twice(100, st.integers(0, 255), TEXT, TEXT)
def test_no_output_of_slurm_is_an_exception_or_an_endless_message(rc: int, out: str, err: str) -> None:
    for answer in (interpret_squeue(rc, out, err), interpret_sacct(rc, out, err), interpret_scontrol(rc, out, err)):
        assert answer.detail.isprintable()
        assert len(answer.detail) < 700
        assert answer.status in ("ok", "partial") or not getattr(answer, "rows", getattr(answer, "row", None))


FOREIGN = st.builds(
    "{}|{}|{}|{}|{}|{}".format,
    st.integers(1, 2**32 - 1).filter(lambda number: number != 481),
    STATES,
    st.sampled_from(["None", "Priority", "a|b", "(x, y)"]),
    st.sampled_from(["0:01", "INVALID", "", "1-00:00:00"]),
    st.sampled_from(["n1", "n[1-3]", ""]),
    st.text(max_size=20),
)


@twice(100, STATES, st.lists(FOREIGN, max_size=4), st.lists(FOREIGN, max_size=4), st.sampled_from(["\n", "\r\n"]))
def test_other_jobs_never_change_what_the_queue_says_of_ours(
    state: str, before: list[str], after: list[str], end: str
) -> None:
    lines = [*before, f"481|{state}|None|0:07|n1|{NAME}", *after]
    answer = interpret_squeue(0, end.join([*lines, ""]), "")
    assert [row.state for row in answer.rows if (row.job_id, row.name) == (481, NAME)] == [state]


@twice(
    100,
    STATES,
    st.integers(0, 255),
    st.lists(st.text(max_size=30).map(lambda name: f"480|FAILED|1:0|{name}|S|S|E|9|n1|lab"), max_size=4),
)
def test_other_jobs_never_change_what_accounting_says_of_ours(state: str, code: int, others: list[str]) -> None:
    ours = f"481|{state}|{code}:0|{NAME}|S|S|E|9|n1|lab"
    answer = interpret_sacct(0, "\n".join([*others, ours, *others]), "")
    if answer.status == "ok":
        found = [(row.state, row.exit_code) for row in answer.rows if (row.job_id, row.name) == (481, NAME)]
        assert found == [(state, code)]


@twice(50, FIELDS)
def test_any_answer_of_the_login_node_is_read_or_a_known_error(fields: dict[str, list[bytes]]) -> None:
    result = RemoteResult(0, {name: tuple(values) for name, values in fields.items()})
    for read in READERS.values():
        try:
            read(result)
        except SlurmImagesError:
            continue


COMPLETION = json.loads(records.completion().model_dump_json())
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just({}), st.just([]))


@twice(100, st.sampled_from(sorted(COMPLETION)), LEAVES, st.booleans())
def test_a_completion_record_with_one_value_changed_is_no_success_of_ours(key: str, value: Any, inner: bool) -> None:
    """Unless the value is one the job could have written there."""
    changed = json.loads(json.dumps(COMPLETION))
    (changed["sqsh"] if inner and key in changed["sqsh"] else changed)[key] = value
    completion, record = observation.read_completion(json.dumps(changed).encode(), records.TOKEN)
    if record is not None:
        assert record.token == records.TOKEN
        assert type(record.exit_status) is int
        assert (record.sqsh is None) == (record.exit_status != 0)
        assert json.loads(record.model_dump_json()) == changed
    else:
        assert completion is not None
