# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_slurm_images.core.slurm import (
    AmbiguousSubmissionError,
    SubmittedJob,
    elapsed_seconds,
    interpret_sacct,
    interpret_scontrol,
    interpret_squeue,
    parse_sbatch,
)

FIXTURES = Path(__file__).parent / "fixtures" / "slurm"
VERSIONS = ["20.11", "21.08", "23.02", "23.11", "24.05", "24.11", "25.05"]
RECORDED = "recorded-22.05.8-accounting"
RECORDED_PLAIN = "recorded-22.05.8-no-accounting"
NAME = "asi-00112233445566778899aabbccddeeff"
SECTION = re.compile(
    r"^=== (?P<title>[^:\n]+): [^\n]*\n--- rc (?P<rc>\d+)\n"
    r"--- stdout\n(?P<out>.*?)--- stderr\n(?P<err>.*?)(?=^=== |\Z)",
    re.MULTILINE | re.DOTALL,
)


def outputs(file: str) -> dict[str, list[tuple[int, str, str]]]:
    """Sections of a fixture file by title; a title may stand there more than once."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for match in SECTION.finditer((FIXTURES / f"{file}.txt").read_text(encoding="utf-8")):
        found.setdefault(match["title"], []).append((int(match["rc"]), match["out"], match["err"].rstrip("\n")))
    return found


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> dict[str, list[tuple[int, str, str]]]:
    return outputs(request.param)


Outputs = dict[str, list[tuple[int, str, str]]]


# sbatch: SUB-1, SUB-2


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("75", SubmittedJob(75, None)),
        ("75;alpha", SubmittedJob(75, "alpha")),
        ("75;", SubmittedJob(75, None)),
        ("75;alpha\r\n", SubmittedJob(75, "alpha")),
        ("75\n", SubmittedJob(75, None)),
        ("Submitted batch job 481", SubmittedJob(481, None)),
        ("Submitted batch job 481 on cluster north\n", SubmittedJob(481, "north")),
        ("4294967295", SubmittedJob(4294967295, None)),
    ],
)
def test_sub_1_sub_2_a_submission_is_id_and_cluster(text: str, job: SubmittedJob) -> None:
    assert parse_sbatch(text) == job


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "\n",
            "0",
            "-5",
            "+75",
            "075",
            "75.0",
            "75_1",
            "75 76",
            "75\n76",
            "seventy",
            "٧٥",
            "75;a b",
            "75;a;b",
            ";alpha",
        ),
        *(
            "4294967296",
            "99999999999",
            "Submitted batch job",
            "Submitted batch job x",
            "Submitted batch job 0",
        ),
        *("Submitted batch job 481 on cluster", "Welcome!\nJob 99999 done\n", "Welcome!\n75", "75\nbye"),
        *(
            "Submitted batch job 481\nSubmitted batch job 482",
            "sbatch: Submitted batch job 481",
            "75;north\x1b[0m",
        ),
        "Granted job allocation 481",
    ],
)
def test_sub_2_anything_else_is_an_ambiguous_submission(text: str) -> None:
    with pytest.raises(AmbiguousSubmissionError):
        parse_sbatch(text)


@given(st.text(max_size=60) | st.from_regex(r"(Submitted batch job )?[0-9]{1,12}[;a-z \n]{0,4}", fullmatch=True))
@example("²")
def test_an_id_is_never_misread(text: str) -> None:
    try:
        job = parse_sbatch(text)
    except AmbiguousSubmissionError as error:
        assert str(error).isprintable()
    else:
        assert re.findall(r"[0-9]+", text.partition(";")[0].partition(" on ")[0]) == [str(job.job_id)]


def test_sbatch_of_every_version(version: Outputs) -> None:
    read = [parse_sbatch(version[f"sbatch {kind}"][0][1]) for kind in ("parsable", "parsable cluster", "plain")]
    assert read == [SubmittedJob(481, None), SubmittedJob(481, "lab"), SubmittedJob(481, None)]
    assert parse_sbatch(version["sbatch plain cluster"][0][1]) == SubmittedJob(481, "lab")
    with pytest.raises(AmbiguousSubmissionError):
        parse_sbatch(version["sbatch timed out"][0][1])


# squeue


def test_squeue_of_every_version(version: Outputs) -> None:
    pending, running = interpret_squeue(*version["squeue active"][0]).rows
    assert (pending.job_id, pending.state, pending.reason, pending.elapsed) == (
        482,
        "PENDING",
        "Resources",
        0,
    )
    assert (running.job_id, running.state, running.nodes, running.elapsed) == (481, "RUNNING", "n1", 31)
    assert {pending.name, running.name} == {NAME}
    (long,) = interpret_squeue(*version["squeue long"][0]).rows
    assert (long.elapsed, long.nodes) == (93784, "n[1-2]")
    reasons = [row.reason for row in interpret_squeue(*version["squeue reasons"][0]).rows]
    assert reasons[0] == "ReqNodeNotAvail, UnavailableNodes:n[1-3]"
    assert reasons[1].startswith("Nodes required for job are DOWN")


def test_poll_1_no_such_job_and_no_row_mean_not_in_the_queue(version: Outputs) -> None:
    for title in ("squeue gone", "squeue empty"):
        answer = interpret_squeue(*version[title][0])
        assert (answer.status, answer.rows) == ("ok", ())


def test_poll_2_a_failed_squeue_is_unknown(version: Outputs) -> None:
    for title in ("squeue down", "squeue timed out", "squeue munge"):
        answer = interpret_squeue(*version[title][0])
        assert answer.status == "unknown"
        assert "status 1" in answer.detail


@pytest.mark.parametrize("rc", [1, 2, 124, 127, 137, 255, -1])
def test_poll_2_any_other_status_is_unknown_whatever_was_printed(rc: int) -> None:
    answer = interpret_squeue(rc, f"481|RUNNING|None|0:01|n1|{NAME}\n", "")
    assert (answer.status, answer.rows) == ("unknown", ())


def test_poll_2_status_0_with_a_contact_error_and_no_row_is_unknown() -> None:
    text = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    assert interpret_squeue(0, "", text).status == "unknown"
    assert interpret_squeue(0, "", "squeue: warning: something harmless").status == "ok"


def test_sub_1_cluster_headers_are_no_rows(version: Outputs) -> None:
    answer = interpret_squeue(*version["squeue cluster"][0])
    assert [row.job_id for row in answer.rows] == [481]


@pytest.mark.parametrize(
    "line",
    [
        "Welcome to the cluster",
        "481",
        "481|RUNNING",
        f"481.0|RUNNING|None|0:01|n1|{NAME}",
        f"|RUNNING|None|0:01|n1|{NAME}",
        f"481||None|0:01|n1|{NAME}",
        f"48100000000|RUNNING|None|0:01|n1|{NAME}",
        f"٤٨١|RUNNING|None|0:01|n1|{NAME}",
        f"481|RUNNING|None|soon|n1|{NAME}",
    ],
)
def test_a_malformed_row_leaves_the_good_ones_and_the_rest_open(line: str) -> None:
    good = "480|RUNNING|None|0:01|n1|x"
    for lines in ((good, line), (line, good)):
        answer = interpret_squeue(0, "\n".join((*lines, "")), "")
        assert (answer.status, [row.job_id for row in answer.rows]) == ("partial", [480])
        assert answer.detail


def test_a_name_or_reason_with_separators_does_not_shift_the_fields() -> None:
    rows = interpret_squeue(0, "481|PENDING|a|b|0:00||x|RUNNING|None|0:01|n1|y\n", "").rows
    assert [(row.state, row.job_id) for row in rows] == [("PENDING", 481)]
    assert rows[0].name.endswith("|y")


@pytest.mark.parametrize("elapsed", ["INVALID", "N/A", "", "UNLIMITED"])
def test_a_missing_elapsed_time_is_none(elapsed: str) -> None:
    assert interpret_squeue(0, f"481|RUNNING|None|{elapsed}|n1|x\n", "").rows[0].elapsed is None


# sacct


def test_sacct_of_every_version(version: Outputs) -> None:
    (row,) = interpret_sacct(*version["sacct ended"][0]).rows
    assert (row.job_id, row.state, row.exit_code, row.signal, row.name) == (481, "COMPLETED", 0, 0, NAME)
    assert (row.elapsed, row.nodes, row.cluster) == (31, "n1", "lab")
    (cancelled,) = interpret_sacct(*version["sacct cancelled"][0]).rows
    assert cancelled.state == "CANCELLED"


def test_acc_5_steps_are_no_rows(version: Outputs) -> None:
    assert [(row.job_id, row.state) for row in interpret_sacct(*version["sacct steps"][0]).rows] == [(481, "TIMEOUT")]


def test_acc_1_no_row_and_a_row_without_a_state_are_not_yet(version: Outputs) -> None:
    assert interpret_sacct(*version["sacct empty"][0]).status == "ok"
    incomplete = interpret_sacct(0, f"481||0:0|{NAME}|||Unknown|||lab\n", "")
    assert (incomplete.status, incomplete.rows) == ("ok", ())


def test_acc_2_disabled_and_unreachable_accounting(version: Outputs) -> None:
    for title in ("sacct disabled", "sacct dbd down"):
        answer = interpret_sacct(*version[title][0])
        assert answer.status == "disabled"
        assert answer.detail


@pytest.mark.parametrize("rc", [0, 1])
def test_acc_2_the_sentence_counts_with_either_status_and_on_either_output(rc: int) -> None:
    text = "Slurm accounting storage is disabled\n"
    assert interpret_sacct(rc, text, "").status == "disabled"
    assert interpret_sacct(rc, "", text).status == "disabled"


def test_acc_2_a_missing_binary_is_no_accounting() -> None:
    assert interpret_sacct(127, "", "bash: sacct: command not found").status == "disabled"


@pytest.mark.parametrize(
    ("rc", "stdout", "stderr"),
    [
        (124, "", ""),
        (137, "", ""),
        (1, "", "sacct: error: Invalid user id"),
        (1, f"481|COMPLETED|0:0|{NAME}|a|b|c|1|n1|lab\n", ""),
        (0, "481|COMPLETED|0:0\n", ""),
        (0, "Welcome\n", ""),
        (0, f"x|COMPLETED|0:0|{NAME}|a|b|c|1|n1|lab\n", ""),
        (0, "", "sacct: error: Unable to contact slurm controller (connect failure)"),
    ],
)
def test_acc_1_anything_else_of_sacct_is_unknown(rc: int, stdout: str, stderr: str) -> None:
    answer = interpret_sacct(rc, stdout, stderr)
    assert (answer.status, answer.rows) == ("unknown", ())


def test_acc_6_a_foreign_name_with_separators_keeps_its_fields() -> None:
    (row,) = interpret_sacct(0, f"481|FAILED|1:0|a|{NAME}|b|S|T|E|9|n1|lab\n", "").rows
    assert (row.name, row.submit, row.elapsed) == (f"a|{NAME}|b", "S", 9)


def test_array_and_heterogeneous_ids_are_no_rows_of_ours() -> None:
    text = "".join(f"{job}|RUNNING|0:0|{NAME}|S|T|E|9|n1|lab\n" for job in ("481_7", "481+1", "481_[1-9%3]", "481.0"))
    answer = interpret_sacct(0, text, "")
    assert answer.status == "unknown" or answer.rows == ()


# scontrol


def test_scontrol_of_every_version(version: Outputs) -> None:
    running = interpret_scontrol(*version["scontrol running"][0]).row
    assert running is not None
    assert (running.job_id, running.name, running.state, running.nodes) == (481, NAME, "RUNNING", "n1")
    assert (running.elapsed, running.restarts, running.reason) == (31, 0, "None")
    assert running.requeue is False
    failed = interpret_scontrol(*version["scontrol failed"][0]).row
    assert failed is not None
    assert (failed.state, failed.exit_code, failed.signal, failed.reason) == (
        "FAILED",
        3,
        0,
        "NonZeroExitCode",
    )
    pending = interpret_scontrol(*version["scontrol pending"][0]).row
    assert pending is not None
    assert (pending.state, pending.reason, pending.nodes) == (
        "PENDING",
        "ReqNodeNotAvail,_UnavailableNodes:n[1-3]",
        "",
    )
    gone = interpret_scontrol(*version["scontrol gone"][0])
    assert (gone.status, gone.row) == ("ok", None)


@pytest.mark.parametrize(
    ("rc", "stdout", "stderr"),
    [
        (1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        (124, "", ""),
        (0, "", ""),
        (0, "No jobs in the system\n", ""),
        (0, "JobId=x JobName=a UserId=b JobState=RUNNING\n", ""),
        (0, "JobId=481 JobName=a\n", ""),
    ],
)
def test_anything_else_of_scontrol_is_unknown(rc: int, stdout: str, stderr: str) -> None:
    answer = interpret_scontrol(rc, stdout, stderr)
    assert (answer.status, answer.row) == ("unknown", None)


def test_a_job_name_with_blanks_does_not_shift_the_fields() -> None:
    line = "JobId=5 JobName=my job JobState=COMPLETED UserId=a(1) JobState=RUNNING Reason=None\n"
    row = interpret_scontrol(0, line, "").row
    assert row is not None
    assert (row.name, row.state) == ("my job JobState=COMPLETED", "RUNNING")


@pytest.mark.parametrize(("field", "requeue"), [("Requeue=1 ", True), ("Requeue=0 ", False), ("", None)])
def test_what_a_user_writes_into_a_comment_is_no_field(field: str, requeue: bool | None) -> None:
    line = f"JobId=5 JobName=a UserId=b(1) JobState=NODE_FAIL Reason=None Dependency=(null) {field}ExitCode=1:0 "
    row = interpret_scontrol(0, f"{line}Comment=see ExitCode=9:9\n", "").row
    assert row is not None
    assert (row.requeue, row.exit_code) == (requeue, 1)


# What real clients of 22.05.8 printed


def test_recorded_submissions_and_queue() -> None:
    seen = outputs(RECORDED)
    assert parse_sbatch(seen["sbatch parsable"][0][1]) == SubmittedJob(1, None)
    assert parse_sbatch(seen["sbatch plain"][0][1]) == SubmittedJob(2, None)
    active, everything = (interpret_squeue(*output).rows for output in seen["squeue"])
    assert {(row.job_id, row.state) for row in active} == {(1, "RUNNING"), (2, "PENDING")}
    assert {row.state for row in everything} == {"CANCELLED", "COMPLETED", "FAILED", "PENDING"}
    assert [row.job_id for row in interpret_squeue(*seen["squeue two"][0]).rows] == [2]
    assert interpret_squeue(*seen["squeue name none"][0]).status == "ok"
    assert interpret_squeue(*seen["squeue M"][0]).status == "ok"


def test_recorded_absence_and_outage_are_told_apart() -> None:
    for file in (RECORDED, RECORDED_PLAIN):
        seen = outputs(file)
        assert interpret_squeue(*seen["squeue gone"][0]).status in ("ok",)
        assert interpret_scontrol(*seen["scontrol gone"][0]).status == "ok"
        assert interpret_squeue(*seen["squeue ctld down"][0]).status == "unknown"
        assert interpret_scontrol(*seen["scontrol ctld down"][0]).status == "unknown"


def test_sub_1_recorded_m_without_the_database_is_unknown_and_never_gone() -> None:
    assert interpret_squeue(*outputs(RECORDED)["squeue M dbd down"][0]).status == "unknown"
    assert interpret_squeue(*outputs(RECORDED_PLAIN)["squeue M"][0]).status == "unknown"


def test_recorded_accounting() -> None:
    seen = outputs(RECORDED)
    rows = {row.job_id: row for row in interpret_sacct(*seen["sacct all"][0]).rows}
    assert {job: (row.state, row.exit_code) for job, row in rows.items()} == {
        1: ("COMPLETED", 0),
        3: ("FAILED", 3),
        4: ("FAILED", 1),
        5: ("CANCELLED", 0),
    }
    assert rows[4].nodes == ""
    assert interpret_sacct(*seen["sacct all"][0]) == interpret_sacct(*seen["sacct X"][0])
    (early,) = interpret_sacct(*seen["sacct early"][0]).rows
    assert (early.name, early.state) == ("allocation", "PENDING")
    assert interpret_sacct(*seen["sacct dbd down"][0]).status == "disabled"
    assert interpret_sacct(*outputs(RECORDED_PLAIN)["sacct X"][0]).status == "disabled"


def test_recorded_control() -> None:
    seen = outputs(RECORDED)
    running, held = (interpret_scontrol(*seen[f"scontrol {kind}"][0]).row for kind in ("running", "held"))
    assert running is not None
    assert held is not None
    assert (running.name, running.state, running.nodes) == ("asi-real", "RUNNING", "node1")
    assert (held.state, held.reason, held.nodes) == ("PENDING", "JobHeldUser", "")


# Properties

JUNK = st.text(max_size=120)
ROWS = st.lists(
    st.sampled_from(["481", "RUNNING", "|", "|", "|", "\n", "0:01", "None", "n1", NAME, "CLUSTER: a", "JobId=1", " "]),
    max_size=25,
).map("".join)


@given(st.integers(-1, 255), JUNK | ROWS, JUNK | ROWS)
def test_no_output_makes_a_parser_raise(rc: int, stdout: str, stderr: str) -> None:
    for answer in (interpret_squeue(rc, stdout, stderr), interpret_sacct(rc, stdout, stderr)):
        assert answer.detail.isprintable()
        assert answer.status == "ok" or not answer.rows
        assert all(str(row.job_id) in stdout.replace("\n0", "\n") for row in answer.rows)
    control = interpret_scontrol(rc, stdout, stderr)
    assert control.detail.isprintable()
    assert control.status == "ok" or control.row is None


@given(
    st.integers(1, 2**32 - 1),
    st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=20),
)
def test_id_and_name_come_back_as_printed(job_id: int, name: str) -> None:
    (row,) = interpret_squeue(0, f"{job_id}|RUNNING|None|1:00|n1|{name}\n", "").rows
    assert (row.job_id, row.name) == (job_id, name)
    (ended,) = interpret_sacct(0, f"{job_id}|FAILED|1:0|{name}|S|T|E|9|n1|lab\n", "").rows
    assert (ended.job_id, ended.name) == (job_id, name)


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_elapsed_times_are_read_in_seconds(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert elapsed_seconds(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == total
    assert elapsed_seconds(f"{minutes}:{seconds:02}") == minutes * 60 + seconds


@given(JUNK)
def test_any_text_is_an_elapsed_time_or_none(text: str) -> None:
    value = elapsed_seconds(text)
    assert value is None or value >= 0
