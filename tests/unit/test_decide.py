# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm_images.core.decide import (
    CompletionForeign,
    CompletionFound,
    CompletionInvalid,
    Evidence,
    JobKey,
    Limits,
    Memory,
    Verdict,
    decide,
)
from airflow_slurm_images.core.evidence import Completion
from airflow_slurm_images.core.slurm import (
    AccountingAnswer,
    AccountingRow,
    ControlAnswer,
    ControlRow,
    QueueAnswer,
    QueueRow,
    interpret_sacct,
    interpret_squeue,
)
from airflow_slurm_images.core.states import JobState

NAME = "asi-00112233445566778899aabbccddeeff"
JOB = JobKey(481, NAME)
OK = CompletionFound(0)
EMPTY = QueueAnswer("ok")
DOWN = interpret_squeue(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
DISABLED = AccountingAnswer("disabled", detail="Slurm accounting storage is disabled")
SACCT_DOWN = AccountingAnswer("unknown", detail="sacct timed out")


def queue(
    state: str, reason: str = "None", elapsed: int | None = None, name: str = NAME, job_id: int = 481
) -> QueueAnswer:
    return QueueAnswer("ok", (QueueRow(job_id, state, reason, elapsed, "n1", name),))


def row(
    state: str, code: int = 0, signal: int = 0, name: str = NAME, submit: str = "2025-01-01T00:00:00"
) -> AccountingRow:
    return AccountingRow(481, state, code, signal, name, submit, submit, "Unknown", 1, "n1", "lab")


def sacct(*rows: AccountingRow) -> AccountingAnswer:
    return AccountingAnswer("ok", rows)


def control(state: str, reason: str = "None", code: int = 0) -> ControlAnswer:
    return ControlAnswer("ok", ControlRow(481, state, reason, code, 0, 5, 0, "n1", NAME))


class Watch:
    """Polls one job every `interval` seconds and keeps what the caller would keep, through JSON."""

    def __init__(self, limits: Limits | None = None, interval: float = 30, now: float = 1000) -> None:
        self.limits = limits or Limits()
        self.interval = interval
        self.now = now
        self.memory = Memory(submitted_at=now)
        self.verdict = Verdict("wait")
        self.warnings: list[str] = []
        self.notes: list[str] = []

    def poll(
        self,
        answer: QueueAnswer,
        accounting: AccountingAnswer | None = None,
        completion: Completion = None,
        scontrol: ControlAnswer | None = None,
        queued_for: int | None = None,
    ) -> str:
        assert self.verdict.kind == "wait"
        self.now += self.interval
        evidence = Evidence(answer, completion, accounting, scontrol, queued_for)
        self.verdict, memory = decide(JOB, evidence, self.memory, self.limits, self.now)
        self.memory = Memory(**json.loads(json.dumps(asdict(memory))))
        self.warnings += self.verdict.warnings
        self.notes += self.verdict.notes
        return self.verdict.kind

    def until_end(self, answer: QueueAnswer, accounting: AccountingAnswer | None = None, **rest: object) -> float:
        start = self.now
        for _ in range(1000):
            if self.poll(answer, accounting, **rest) != "wait":  # type: ignore[arg-type]
                return self.now - start
        raise AssertionError("never ended")


def kinds(watch: Watch, polls: Iterable[tuple[QueueAnswer, AccountingAnswer | None, Completion]]) -> list[str]:
    return [watch.poll(*poll) for poll in polls]


# The record is the last word


@pytest.mark.parametrize("answer", [DOWN, EMPTY, queue("RUNNING"), queue("COMPLETING"), queue("FAILED")])
@pytest.mark.parametrize("accounting", [None, DISABLED, SACCT_DOWN, sacct(row("CANCELLED")), sacct(row("COMPLETED"))])
def test_a_record_with_our_token_decides_over_queue_and_accounting(
    answer: QueueAnswer, accounting: AccountingAnswer | None
) -> None:
    assert Watch().poll(answer, accounting, OK) == "succeeded"
    watch = Watch()
    assert watch.poll(answer, accounting, CompletionFound(20)) == "failed"
    assert watch.verdict.exit_code == 20
    assert "20" in watch.verdict.message


# POLL


def test_poll_1_invalid_job_id_for_a_finished_job_is_success_by_the_record() -> None:
    gone = interpret_squeue(1, "", "slurm_load_jobs error: Invalid job id specified")
    accounting = interpret_sacct(0, f"481|COMPLETED|0:0|{NAME}|a|b|c|9|n1|lab\n", "")
    watch = Watch()
    assert watch.poll(queue("RUNNING")) == "wait"
    assert watch.poll(gone, accounting) == "wait"
    assert watch.poll(gone, accounting, OK) == "succeeded"


def test_poll_2_failed_polls_keep_the_state_warn_and_end_in_success() -> None:
    watch = Watch()
    assert watch.poll(queue("PENDING", "Priority")) == "wait"
    for count in range(1, 6):
        assert watch.poll(DOWN) == "wait"
        assert (watch.verdict.state, watch.memory.unknown_count) == ("PENDING", count)
    assert len(watch.warnings) == 5
    assert "Unable to contact" in watch.warnings[0]
    assert watch.poll(queue("RUNNING")) == "wait"
    assert watch.memory.unknown_count == 0
    assert watch.poll(EMPTY, sacct(row("COMPLETED")), OK) == "succeeded"


def test_poll_2_only_the_stated_limit_ends_in_lost_contact_and_the_job_is_left_alone() -> None:
    watch = Watch(Limits(unknown_limit=600))
    watch.poll(queue("RUNNING"))
    assert watch.until_end(DOWN) == 600 + 30
    assert watch.verdict.kind == "lost"
    assert "lost contact" in watch.verdict.message
    assert watch.verdict.retryable


def test_poll_2_one_good_poll_gives_the_whole_budget_back() -> None:
    watch = Watch(Limits(unknown_limit=100))
    for _ in range(10):
        assert kinds(watch, [(DOWN, None, None), (DOWN, None, None), (queue("RUNNING"), None, None)]) == ["wait"] * 3


def test_poll_2_an_outage_decides_nothing_even_with_an_old_accounting_row() -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    assert watch.poll(DOWN, sacct(row("FAILED", 1))) == "wait"


def test_poll_3_an_empty_queue_right_after_submission_is_not_done() -> None:
    watch = Watch(interval=10)
    polls = [
        (EMPTY, None, None),
        (EMPTY, sacct(), None),
        (queue("PENDING"), None, None),
        (queue("RUNNING"), None, None),
    ]
    assert kinds(watch, polls) == ["wait"] * 4
    assert watch.poll(EMPTY, sacct(row("COMPLETED")), OK) == "succeeded"


def test_poll_3_empty_for_the_whole_window_is_unknown_and_not_success() -> None:
    watch = Watch()
    took = watch.until_end(EMPTY, sacct())
    assert watch.verdict.kind == "unknown"
    assert "never seen" in watch.verdict.message
    assert 60 + 300 <= took <= 60 + 300 + 60


def test_poll_5_preempted_and_back_under_the_same_id_is_waited_for() -> None:
    watch = Watch()
    polls: list[tuple[QueueAnswer, AccountingAnswer | None, Completion]] = [
        (queue("RUNNING"), None, None),
        (EMPTY, sacct(row("PREEMPTED")), None),
        (EMPTY, sacct(row("PREEMPTED")), None),
        (queue("PENDING", "BeginTime"), None, None),
        (queue("RUNNING"), None, None),
        (EMPTY, sacct(row("COMPLETED")), None),
    ]
    assert kinds(watch, polls) == ["wait"] * 6
    assert watch.memory.interrupted_since is None
    assert watch.poll(EMPTY, sacct(row("COMPLETED")), OK) == "succeeded"


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REQUEUED", "LAUNCH_FAILED"])
def test_poll_5_absent_past_one_deadline_is_a_retryable_failure(state: str) -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    assert watch.until_end(EMPTY, sacct(row(state))) == 600 + 30
    assert (watch.verdict.kind, watch.verdict.state, watch.verdict.retryable) == ("failed", state, True)


def test_poll_5_coming_back_clears_the_deadline() -> None:
    watch = Watch(Limits(interrupted_grace=100))
    for _ in range(5):
        assert watch.poll(EMPTY, sacct(row("NODE_FAIL"))) == "wait"
        assert watch.poll(EMPTY, sacct(row("NODE_FAIL"))) == "wait"
        assert watch.poll(queue("PENDING")) == "wait"


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REQUEUED", "EXPEDITING", "RECONFIG_FAIL"])
def test_poll_5_interrupted_and_still_in_the_queue_is_waited_for(state: str) -> None:
    watch = Watch()
    assert {watch.poll(queue(state)) for _ in range(50)} == {"wait"}


def listed(state: str, requeue: bool | None) -> ControlAnswer:
    answer = control(state)
    assert answer.row is not None
    return ControlAnswer("ok", replace(answer.row, requeue=requeue))


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_poll_5_listed_as_ended_and_never_to_be_requeued_is_a_retryable_failure(state: str) -> None:
    """The queue may list it for long (MinJobAge)."""
    watch = Watch()
    watch.poll(queue("RUNNING"))
    assert watch.until_end(queue(state), scontrol=listed(state, False)) == 600 + 30
    assert (watch.verdict.kind, watch.verdict.state, watch.verdict.retryable) == ("failed", state, True)


def test_poll_5_the_deadline_goes_on_where_one_look_had_no_time_for_the_controller_and_when_the_job_is_gone() -> None:
    watch = Watch(Limits(interrupted_grace=100))
    ends = [
        (queue("NODE_FAIL"), listed("NODE_FAIL", False)),
        (queue("NODE_FAIL"), None),
        (queue("NODE_FAIL"), ControlAnswer("unknown", detail="timed out")),
        (EMPTY, None),
    ]
    assert [watch.poll(answer, sacct(row("NODE_FAIL")), None, scontrol) for answer, scontrol in ends] == ["wait"] * 4
    assert watch.poll(EMPTY, sacct(row("NODE_FAIL"))) == "failed"


@pytest.mark.parametrize(
    "back",
    [
        (queue("NODE_FAIL"), listed("NODE_FAIL", True)),  # somebody allowed a requeue
        (queue("REQUEUED"), listed("REQUEUED", False)),
        (queue("COMPLETING"), listed("COMPLETING", False)),
        (queue("PENDING", "BeginTime"), listed("PENDING", False)),
        (queue("RUNNING"), None),
    ],
)
def test_poll_5_a_job_that_may_come_back_clears_the_deadline(back: tuple[QueueAnswer, ControlAnswer | None]) -> None:
    watch = Watch(Limits(interrupted_grace=100))
    for _ in range(5):
        for _ in range(3):
            assert watch.poll(queue("NODE_FAIL"), None, None, listed("NODE_FAIL", False)) == "wait"
        assert watch.poll(back[0], None, None, back[1]) == "wait"


@pytest.mark.parametrize("requeue", [True, None])
@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "REQUEUED"])
def test_poll_5_without_word_that_it_stays_away_it_is_waited_for(state: str, requeue: bool | None) -> None:
    watch = Watch()
    assert {watch.poll(queue(state), None, None, listed(state, requeue)) for _ in range(50)} == {"wait"}


@pytest.mark.parametrize(
    ("state", "part", "retryable"),
    [
        ("FAILED", "output", True),
        ("TIMEOUT", "`time_limit`", False),
        ("OUT_OF_MEMORY", "`memory`", False),
        ("DEADLINE", "`time_limit`", False),
        ("CANCELLED", "cancelled", True),
        ("REVOKED", "`cluster`", True),
    ],
)
def test_poll_6_each_failure_state_ends_at_once_with_its_own_advice(state: str, part: str, retryable: bool) -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    assert watch.poll(EMPTY, sacct(row(state, 0, 9))) == "failed"
    assert state in watch.verdict.message
    assert part in (watch.verdict.remedy or "")
    assert (watch.verdict.retryable, watch.verdict.exit_code) == (retryable, 137)
    assert "wrote no record" in watch.verdict.message


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "CANCELLED"])
def test_poll_6_a_failure_still_listed_by_squeue_or_scontrol_ends_too(state: str) -> None:
    assert Watch().poll(queue(state)) == "failed"
    watch = Watch()
    assert watch.poll(EMPTY, DISABLED, None, control(state, code=3)) == "failed"
    assert watch.verdict.exit_code == 3


def test_poll_6_a_state_of_the_future_keeps_waiting() -> None:
    watch = Watch()
    assert {watch.poll(queue("HIBERNATED")) for _ in range(100)} == {"wait"}


def test_poll_7_purged_everywhere_and_a_record_with_our_token_is_success() -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    watch.now += 3 * 86400
    assert watch.poll(EMPTY, sacct(), OK) == "succeeded"


def test_poll_7_a_record_with_another_token_is_a_failure() -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    watch.until_end(EMPTY, sacct(), completion=CompletionForeign())
    assert watch.verdict.kind == "failed"
    assert "another attempt" in watch.verdict.message


def test_poll_7_nothing_anywhere_is_a_bounded_unknown() -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    assert watch.until_end(EMPTY, sacct()) == 300 + 30
    assert watch.verdict.kind == "unknown"
    assert "wrote no record" in watch.verdict.message


def test_a_foreign_or_unreadable_record_does_not_disturb_a_running_job() -> None:
    watch = Watch()
    for completion in (CompletionForeign(), CompletionInvalid("cut off")):
        assert watch.poll(queue("RUNNING"), None, completion) == "wait"


def test_an_unreadable_record_is_waited_for_and_then_named() -> None:
    watch = Watch()
    watch.until_end(EMPTY, sacct(row("COMPLETED")), completion=CompletionInvalid("no JSON"))
    assert watch.verdict.kind == "unknown"
    assert "no JSON" in watch.verdict.message
    assert any("no JSON" in warning for warning in watch.warnings)


# A line of squeue that is no row


def partial(answer: QueueAnswer) -> QueueAnswer:
    return replace(answer, status="partial", detail="squeue printed 'Welcome'")


def test_a_stray_line_never_makes_a_job_look_gone() -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    for _ in range(20):
        assert watch.poll(partial(EMPTY), sacct(row("FAILED", 1))) == "wait"
    assert len(watch.warnings) == 20 and "Welcome" in watch.warnings[0]
    assert watch.poll(partial(queue("RUNNING"))) == "wait"
    assert (watch.memory.unknown_count, len(watch.warnings)) == (0, 20)


def test_a_good_row_beside_a_stray_line_counts() -> None:
    watch = Watch()
    assert watch.poll(partial(queue("RUNNING"))) == "wait"
    assert (watch.memory.state, watch.warnings) == ("RUNNING", [])
    assert watch.poll(partial(queue("TIMEOUT"))) == "failed"


def test_the_controller_tells_of_a_job_whose_row_was_lost() -> None:
    watch = Watch()
    assert watch.poll(partial(EMPTY), None, None, control("RUNNING")) == "wait"
    assert watch.warnings == []


# FS-1


def test_fs_1_a_record_that_appears_later_is_success() -> None:
    watch = Watch(interval=10)
    watch.poll(queue("RUNNING"))
    assert watch.poll(EMPTY, sacct(row("COMPLETED"))) == "wait"
    assert watch.poll(EMPTY, sacct(row("COMPLETED"))) == "wait"
    assert watch.poll(EMPTY, sacct(row("COMPLETED")), OK) == "succeeded"


@pytest.mark.parametrize("answer", [EMPTY, queue("COMPLETED")])
def test_fs_1_completed_without_a_record_has_its_own_message(answer: QueueAnswer) -> None:
    watch = Watch(Limits(gone_grace=60))
    watch.poll(queue("RUNNING"))
    watch.until_end(answer, sacct(row("COMPLETED")))
    assert watch.verdict.kind == "unknown"
    assert watch.verdict.message == "job COMPLETED but record not visible after 60 s"


@pytest.mark.parametrize("answer", [EMPTY, queue("FAILED")])
def test_fs_1_the_record_of_a_failure_is_waited_for_too(answer: QueueAnswer) -> None:
    watch = Watch(Limits(gone_grace=60), interval=10)
    watch.poll(queue("RUNNING"))
    assert watch.poll(answer, sacct(row("FAILED", 78))) == "wait"
    assert any("record of job 481 is not visible yet" in note for note in watch.notes)
    assert watch.poll(answer, sacct(row("FAILED", 78)), CompletionFound(78)) == "failed"
    assert "says its completion record" in watch.verdict.message


def test_fs_1_a_failure_whose_record_never_comes_says_that_it_is_not_visible() -> None:
    watch = Watch(Limits(gone_grace=60))
    watch.poll(queue("RUNNING"))
    watch.until_end(EMPTY, sacct(row("FAILED", 78)))
    assert (watch.verdict.kind, watch.verdict.exit_code) == ("failed", 78)
    assert "its record is not visible after 60 s" in watch.verdict.message
    assert "wrote no record" not in watch.verdict.message


@pytest.mark.parametrize(("code", "signal"), [(1, 0), (72, 0), (0, 9)])
def test_fs_1_an_end_that_writes_no_record_is_not_waited_for(code: int, signal: int) -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    assert watch.poll(EMPTY, sacct(row("FAILED", code, signal))) == "failed"
    assert "wrote no record" in watch.verdict.message


# ACC


def test_acc_1_accounting_that_lags_is_not_yet() -> None:
    watch = Watch(interval=10)
    watch.poll(queue("RUNNING"))
    assert {watch.poll(EMPTY, sacct()) for _ in range(6)} == {"wait"}
    assert watch.poll(EMPTY, sacct(row("COMPLETED")), OK) == "succeeded"


def test_acc_1_accounting_that_still_says_running_is_bounded() -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    watch.until_end(EMPTY, sacct(row("RUNNING")))
    assert watch.verdict.kind == "unknown"
    assert "still says RUNNING" in watch.verdict.message


@pytest.mark.parametrize("rc", [0, 1])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_acc_2_without_accounting_the_record_decides_and_one_warning_is_given(rc: int, stream: str) -> None:
    text = "Slurm accounting storage is disabled\n"
    accounting = interpret_sacct(rc, text if stream == "stdout" else "", text if stream == "stderr" else "")
    watch = Watch(interval=10)
    watch.poll(queue("RUNNING"))
    assert {watch.poll(EMPTY, accounting, None, ControlAnswer("ok")) for _ in range(5)} == {"wait"}
    assert len(watch.warnings) == 1
    assert watch.poll(EMPTY, accounting, OK) == "succeeded"


def test_acc_2_without_accounting_the_controller_tells_how_the_job_ended() -> None:
    watch = Watch()
    assert watch.poll(EMPTY, DISABLED, None, control("TIMEOUT")) == "failed"
    assert watch.verdict.state == "TIMEOUT"


def test_acc_2_without_accounting_and_record_the_end_is_unknown() -> None:
    watch = Watch()
    watch.poll(queue("RUNNING"))
    watch.until_end(EMPTY, DISABLED, scontrol=ControlAnswer("ok"))
    assert watch.verdict.kind == "unknown"
    assert "no accounting" in watch.verdict.message


def test_a_failing_accounting_is_doubt_and_not_the_end_of_grace() -> None:
    watch = Watch(Limits(unknown_limit=3600))
    watch.poll(queue("RUNNING"))
    assert {watch.poll(EMPTY, SACCT_DOWN) for _ in range(60)} == {"wait"}
    assert watch.poll(EMPTY, sacct()) == "wait"  # rows of a long outage come late
    assert watch.poll(EMPTY, sacct(row("COMPLETED")), OK) == "succeeded"


def test_a_failing_accounting_does_not_matter_while_the_job_is_in_the_queue() -> None:
    watch = Watch()
    assert {watch.poll(queue("RUNNING"), SACCT_DOWN) for _ in range(200)} == {"wait"}
    assert watch.warnings == []


def test_acc_5_steps_never_decide() -> None:
    rows = "".join(
        f"{job}|{state}|0:0|{NAME}|a|b|c|9|n1|lab\n"
        for job, state in (("481", "TIMEOUT"), ("481.batch", "CANCELLED"), ("481.extern", "COMPLETED"))
    )
    watch = Watch()
    assert watch.poll(EMPTY, interpret_sacct(0, rows, "")) == "failed"
    assert watch.verdict.state == "TIMEOUT"


def test_acc_6_an_old_record_of_a_recycled_id_is_ignored() -> None:
    watch = Watch()
    assert watch.poll(EMPTY, sacct(row("COMPLETED", name="othername"), row("RUNNING"))) == "wait"
    assert watch.memory.state == "RUNNING"
    assert watch.poll(EMPTY, sacct(row("RUNNING"), row("FAILED", 1, name="othername"))) == "wait"
    assert watch.poll(queue("RUNNING", name="othername"), sacct(row("FAILED", 1, name="other"))) == "wait"


def test_acc_6_names_are_compared_exactly() -> None:
    watch = Watch()
    assert watch.poll(queue("FAILED", name=NAME.upper()), sacct(row("FAILED", 1, name=f"{NAME} "))) == "wait"
    assert not watch.memory.seen


def test_a_job_with_our_name_and_another_id_is_not_ours() -> None:
    watch = Watch()
    assert watch.poll(queue("FAILED", job_id=482)) == "wait"
    assert not watch.memory.seen


def test_of_several_rows_of_one_job_the_latest_submission_counts() -> None:
    old, new = row("NODE_FAIL", submit="2025-01-01T00:00:00"), row("FAILED", 2, submit="2025-01-01T01:00:00")
    for rows in ((old, new), (new, old)):
        watch = Watch()
        assert watch.poll(EMPTY, sacct(*rows)) == "failed"
        assert watch.verdict.exit_code == 2


# SUB-9 and time-outs


def test_sub_9_a_hopeless_reason_ends_after_its_grace_with_the_reason() -> None:
    watch = Watch()
    polls = [watch.poll(queue("PENDING", "AssocMaxWallDurationPerJobLimit")) for _ in range(3)]
    assert polls == ["wait", "wait", "stuck"]
    assert "AssocMaxWallDurationPerJobLimit" in watch.verdict.message
    assert "`time_limit`" in (watch.verdict.remedy or "")
    assert not watch.verdict.retryable


def test_sub_9_priority_is_waited_for() -> None:
    watch = Watch()
    assert {watch.poll(queue("PENDING", "Priority")) for _ in range(100)} == {"wait"}


def test_sub_9_a_reason_is_noted_when_it_changes_and_only_then() -> None:
    watch = Watch()
    for reason in ("Priority", "Priority", "Resources", "Resources", "Priority"):
        watch.poll(queue("PENDING", reason))
    assert [note.rpartition(" ")[2] for note in watch.notes] == ["Priority", "Resources", "Priority"]


def test_sub_9_a_hopeless_reason_that_passes_starts_anew() -> None:
    watch = Watch()
    for _ in range(10):
        assert watch.poll(queue("PENDING", "JobHeldUser")) == "wait"
        assert watch.poll(queue("PENDING", "JobHeldUser")) == "wait"
        assert watch.poll(queue("PENDING", "Priority")) == "wait"


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"])
def test_sub_9_a_job_held_after_a_requeue_is_stuck(state: str) -> None:
    watch = Watch()
    watch.until_end(queue(state, "None"))
    assert watch.verdict.kind == "stuck"


def test_pending_timeout_counts_only_while_pending() -> None:
    watch = Watch(Limits(pending_timeout=100))
    watch.poll(queue("PENDING", "Priority"))
    assert {watch.poll(queue("RUNNING")) for _ in range(20)} == {"wait"}
    assert watch.until_end(queue("PENDING", "Priority")) == 150
    assert watch.verdict.kind == "pending_timeout"
    assert "Priority" in watch.verdict.message


def test_pending_timeout_goes_on_after_a_restart_that_forgot_the_wait() -> None:
    watch = Watch(Limits(pending_timeout=100), interval=10)
    assert watch.poll(queue("PENDING", "Priority"), queued_for=95) == "wait"
    assert watch.poll(queue("PENDING", "Priority"), queued_for=105) == "pending_timeout"
    assert "pending for 105 s" in watch.verdict.message


def test_run_timeout_counts_only_while_running() -> None:
    watch = Watch(Limits(run_timeout=100))
    assert {watch.poll(queue("PENDING", "Priority")) for _ in range(20)} == {"wait"}
    assert watch.until_end(queue("RUNNING")) == 150
    assert watch.verdict.kind == "run_timeout"


def test_run_timeout_follows_slurms_own_count_after_adoption_and_requeue() -> None:
    watch = Watch(Limits(run_timeout=1000))
    assert watch.poll(queue("RUNNING", elapsed=990)) == "wait"
    assert watch.poll(queue("RUNNING", elapsed=5)) == "wait"  # requeued and started again between two polls
    assert watch.poll(queue("RUNNING", elapsed=1000)) == "run_timeout"


def test_timeouts_do_not_fire_on_a_failed_poll() -> None:
    watch = Watch(Limits(pending_timeout=10, run_timeout=10))
    watch.poll(queue("RUNNING", elapsed=0))
    assert {watch.poll(DOWN) for _ in range(20)} == {"wait"}


# Around the edges


def test_a_job_hidden_from_squeue_but_known_to_the_controller_is_present() -> None:
    watch = Watch(Limits(gone_grace=60))
    assert {watch.poll(EMPTY, sacct(), None, control("RUNNING")) for _ in range(30)} == {"wait"}
    assert watch.memory.seen


def test_completing_is_waited_for_and_does_not_reset_the_run_time() -> None:
    watch = Watch(Limits(run_timeout=1000))
    watch.poll(queue("RUNNING", elapsed=900))
    since = watch.memory.running_since
    watch.poll(queue("COMPLETING", elapsed=900))
    assert watch.memory.running_since == since


def test_a_clock_that_jumps_back_ends_nothing() -> None:
    watch = Watch(Limits(pending_timeout=10_000))
    watch.poll(queue("PENDING"))
    watch.now -= 100_000
    for answer in (queue("PENDING"), EMPTY, DOWN, queue("RUNNING", elapsed=5)):
        assert watch.poll(answer, sacct()) == "wait"


STATES = st.sampled_from([*(state.value for state in JobState), "HIBERNATED", ""])
REASONS = st.sampled_from(["None", "Priority", "JobHeldUser", "Dependency", "Neu"])
NAMES = st.sampled_from([NAME, "other"])
QUEUES = st.just(DOWN) | st.just(EMPTY) | st.builds(queue, STATES, REASONS, st.none() | st.integers(0, 9999), NAMES)
ACCOUNTS = (
    st.none()
    | st.sampled_from([DISABLED, SACCT_DOWN])
    | st.lists(st.builds(row, STATES, st.integers(0, 3), st.integers(0, 9), NAMES), max_size=3).map(lambda r: sacct(*r))
)
CONTROLS = st.none() | st.just(ControlAnswer("unknown", detail="x")) | st.builds(control, STATES, REASONS)
RECORDS = st.sampled_from([None, None, CompletionForeign(), CompletionInvalid("x"), OK, CompletionFound(9)])
LIMITS = st.sampled_from([Limits(), Limits(pending_timeout=50, run_timeout=50)])


@given(st.lists(st.tuples(QUEUES, ACCOUNTS, RECORDS, CONTROLS), max_size=12), LIMITS)
def test_success_needs_our_record_and_doubt_never_ends_a_job_early(
    polls: list[tuple[QueueAnswer, AccountingAnswer | None, Completion, ControlAnswer | None]], limits: Limits
) -> None:
    watch = Watch(limits)
    for poll in polls:
        before = watch.memory
        kind = watch.poll(*poll)
        assert (kind == "succeeded") == (poll[2] == OK)
        if poll[0].status == "unknown" and not isinstance(poll[2], CompletionFound):
            assert kind == "wait"
            counted = replace(before, unknown_since=watch.memory.unknown_since, unknown_count=before.unknown_count + 1)
            assert watch.memory == counted
        if kind != "wait":
            assert watch.verdict.message
            break


@given(QUEUES, ACCOUNTS, CONTROLS)
def test_every_lasting_answer_without_a_job_in_the_queue_ends_within_the_stated_limits(
    answer: QueueAnswer, accounting: AccountingAnswer | None, scontrol: ControlAnswer | None
) -> None:
    watch = Watch(Limits(unknown_limit=900))
    if answer.rows or (scontrol and scontrol.row):
        return
    assert watch.until_end(answer, accounting, scontrol=scontrol) <= 900 + 60
