# SPDX-License-Identifier: Apache-2.0
"""What a starting task does about what it finds: adopt, collect, cancel, submit."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_slurm_images.core import run_state
from airflow_slurm_images.core.errors import OtherVersionError
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.run_state import Attempt, RunState
from airflow_slurm_images.core.slurm import QueueAnswer, QueueRow, SubmittedJob

from . import records

PLAN = records.plan()
OTHER = records.plan(records.import_request(kind="serving"))
DIGEST = PLAN.request_digest


def attempt(name: str = "a", job: int | None = 481, **values: Any) -> Attempt:
    given: dict[str, Any] = {
        "name": name,
        "plan": PLAN,
        "submitted": SubmittedJob(job, None) if job else None,
        "submitted_at": "2024-05-01T10:00:00",
        "claimed_by": None,
        "fenced": False,
        "cancelled": False,
        "generations": frozenset({1}),
        "exit_status": None,
    }
    return Attempt(**{**given, **values})


def row(job_id: int = 481, state: str = "RUNNING") -> QueueRow:
    return QueueRow(job_id, state, "None", 5, "n1", PLAN.job_name)


def state(*attempts: Attempt, rows: tuple[QueueRow, ...] = ()) -> RunState:
    return RunState("/ws", "ann", "login", attempts, QueueAnswer("ok", rows))


def choose(*attempts: Attempt, rows: tuple[QueueRow, ...] = (), retry: bool = True, generation: int = 1) -> Any:
    return run_state.choose(state(*attempts, rows=rows), DIGEST, generation, is_retry=retry)


def test_nothing_there_means_submit() -> None:
    decision = choose(retry=False)
    assert (decision.action, decision.cancel) == ("submit", ())


@pytest.mark.parametrize(
    "word", ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "NEW_WORD"]
)
@pytest.mark.parametrize("generation", [1, 2])
def test_an_active_job_of_the_same_request_is_adopted(word: str, generation: int) -> None:
    found = attempt()
    decision = choose(found, rows=(row(state=word),), retry=False, generation=generation)
    assert (decision.action, decision.attempt, decision.job_id, decision.cancel) == ("adopt", found, 481, ())


@pytest.mark.parametrize("word", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"])
def test_an_ended_job_is_not_active(word: str) -> None:
    assert choose(attempt(), rows=(row(state=word),), retry=False).action == "submit"


@pytest.mark.parametrize(
    "values",
    [{"plan": OTHER}, {"plan": None}, {"fenced": True}, {"cancelled": True}],
    ids=lambda values: next(iter(values)),
)
def test_an_active_job_that_cannot_be_adopted_is_cancelled_first(values: dict[str, Any]) -> None:
    decision = choose(attempt(**values), rows=(row(),))
    assert (decision.action, decision.cancel) == ("submit", ((481, "a"),))


@pytest.mark.parametrize(
    ("exit_status", "generation", "word"),
    [(78, 1, "COMPLETING"), (78, 2, "COMPLETING"), (78, 1, "RUNNING"), (0, 2, "COMPLETING"), (0, 2, "REQUEUED")],
)
def test_a_job_that_slurm_only_cleans_up_after_is_seen_gone_and_not_adopted(
    exit_status: int, generation: int, word: str
) -> None:
    """Its failure was told already; its success is not what a cleared task asks for."""
    found = attempt(exit_status=exit_status)
    decision = choose(found, rows=(row(state=word),), generation=generation)
    assert (decision.action, decision.cancel) == ("submit", ((481, "a"),))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"exit_status": 143}, "PENDING"),
        ({"exit_status": 143}, "REQUEUED"),
        ({"exit_status": 143}, "REQUEUE_HOLD"),
        ({"exit_status": 143, "restarted": True}, "RUNNING"),
        ({"exit_status": 143, "restarted": True}, "COMPLETING"),
        ({"exit_status": 143}, "NEW_WORD"),
        ({"exit_status": 0}, "COMPLETING"),
    ],
    ids=str,
)
def test_a_record_of_a_run_before_or_of_a_success_that_is_wanted_does_not_keep_a_job_from_adoption(
    values: dict[str, Any], word: str
) -> None:
    found = attempt(**values)
    decision = choose(found, rows=(row(state=word),))
    assert (decision.action, decision.attempt, decision.cancel) == ("adopt", found, ())


@pytest.mark.parametrize(("claim", "restarted"), [("481 1", True), ("481 0", False), ("481", False), ("", False)])
def test_a_record_is_of_a_run_before_where_the_claim_counts_more_restarts(claim: str, restarted: bool) -> None:
    fields = {
        "attempt": (b"a",),
        "a.plan": (PLAN.to_json().encode(),),
        "a.claim": (claim.encode(),),
        "a.completion": (records.completion(token=PLAN.token).model_dump_json().encode(),),
    }
    assert run_state.read(RemoteResult(0, fields)).attempts[0].restarted is restarted


@pytest.mark.parametrize("word", ["NODE_FAIL", "PREEMPTED", "BOOT_FAIL"])
def test_a_job_whose_node_failed_is_seen_gone_and_not_adopted(word: str) -> None:
    decision = choose(attempt(), rows=(row(state=word),))
    assert (decision.action, decision.cancel) == ("submit", ((481, "a"),))


def test_an_active_job_that_nobody_knows_is_cancelled_first() -> None:
    decision = choose(attempt(), rows=(row(7),), retry=False)
    assert (decision.action, decision.cancel) == ("submit", ((7, ""),))


def test_the_job_of_the_one_lost_answer_is_adopted() -> None:
    found = attempt(job=None)
    decision = choose(found, rows=(row(7),), retry=False)
    assert (decision.action, decision.attempt, decision.job_id) == ("adopt", found, 7)


def test_with_two_lost_answers_nobody_can_tell_so_the_job_is_cancelled() -> None:
    decision = choose(attempt("a", None), attempt("b", None), rows=(row(7),), retry=False)
    assert (decision.action, decision.cancel) == ("submit", ((7, ""),))


def test_of_two_active_jobs_the_running_one_is_adopted_and_the_other_goes() -> None:
    first, second = attempt("a", 1), attempt("b", 2)
    decision = choose(first, second, rows=(row(1, "PENDING"), row(2, "RUNNING")))
    assert (decision.attempt, decision.job_id, decision.cancel) == (second, 2, ((1, "a"),))


def test_a_duplicate_of_the_adopted_attempt_is_left_to_its_claim() -> None:
    found = attempt(job=1, claimed_by=2)
    decision = choose(found, rows=(row(1, "PENDING"), row(2, "RUNNING")))
    assert (decision.job_id, decision.cancel) == (2, ())


def test_a_retry_collects_the_newest_good_attempt_of_its_generation() -> None:
    old, new = attempt("a", 1, exit_status=0), attempt("b", 2, exit_status=0)
    failed = attempt("c", 3, exit_status=78)
    assert choose(old, new, failed).attempt == new
    assert choose(old, new, failed).action == "collect"


@pytest.mark.parametrize(
    ("values", "retry", "generation"),
    [
        ({}, False, 1),
        ({}, True, 2),
        ({"plan": OTHER}, True, 1),
        ({"plan": None}, True, 1),
        ({"exit_status": 143}, True, 1),
    ],
    ids=["first try", "another generation", "another request", "changed plan", "failed"],
)
def test_what_is_not_of_this_work_is_not_collected(values: dict[str, Any], retry: bool, generation: int) -> None:
    found = attempt(**{"exit_status": 0, **values})
    assert choose(found, retry=retry, generation=generation).action == "submit"


def test_an_adopted_attempt_belongs_to_both_generations() -> None:
    found = attempt(exit_status=0, generations=frozenset({1, 3}))
    assert choose(found, generation=3).action == "collect"


def test_a_completed_job_whose_record_is_not_visible_yet_is_waited_for() -> None:
    found = attempt()
    decision = choose(found, rows=(row(state="COMPLETED"),))
    assert (decision.action, decision.job_id) == ("adopt", 481)
    assert choose(found, rows=(row(state="COMPLETED"),), retry=False).action == "submit"


# --- an attempt that another version of the package planned

UNREADABLE = OtherVersionError("planned by version 9", remedy="wait")


def test_an_active_job_of_a_plan_that_only_another_version_reads_is_neither_adopted_nor_cancelled() -> None:
    with pytest.raises(OtherVersionError, match="Job 481 of this task is RUNNING and was left alone") as caught:
        choose(attempt(plan=None, other_version=UNREADABLE), rows=(row(),))
    assert caught.value.retryable
    assert caught.value.details["job_id"] == 481


@pytest.mark.parametrize("values", [{"cancelled": True}, {"fenced": True}], ids=["cancelled", "fenced"])
def test_one_that_was_given_up_goes_whatever_its_version(values: dict[str, Any]) -> None:
    decision = choose(attempt(plan=None, other_version=UNREADABLE, **values), rows=(row(),))
    assert (decision.action, decision.cancel) == ("submit", ((481, "a"),))


def test_when_it_has_ended_a_new_attempt_is_submitted() -> None:
    decision = choose(attempt(plan=None, other_version=UNREADABLE), rows=(row(state="COMPLETED"),))
    assert (decision.action, decision.cancel) == ("submit", ())


def test_a_readable_plan_of_another_version_is_adopted_like_any() -> None:
    fields = {"attempt": (b"a",), "a.job_id": (b"481\n",), "a.plan": (records.plan_of_version("0.0.9"),)}
    (found,) = run_state.read(RemoteResult(0, fields)).attempts
    decision = choose(found, rows=(row(),))
    assert (decision.action, decision.job_id) == ("adopt", 481)


def test_an_unreadable_plan_of_another_version_is_told_from_a_damaged_one() -> None:
    written = records.plan_of_version("9.0.0", of_tomorrow=1)
    fields = {"attempt": (b"a", b"b"), "a.plan": (written,), "b.plan": (written.replace(b"9.0.0", b"9.0.1"),)}
    other, damaged = run_state.read(RemoteResult(0, fields)).attempts
    assert other.plan is None and other.other_version is not None
    assert damaged.plan is None and damaged.other_version is None


# --- finding the job of a lost answer


def test_a_job_is_found_by_the_attempts_own_files_first() -> None:
    assert run_state.find(state(attempt(job=5, claimed_by=6)), "a") == (SubmittedJob(5, None), "2024-05-01T10:00:00")
    assert run_state.find(state(attempt(job=None, claimed_by=6)), "a") == (SubmittedJob(6, None), "2024-05-01T10:00:00")


@pytest.mark.parametrize("word", ["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"])
def test_a_job_that_no_attempt_knows_is_found_in_any_state(word: str) -> None:
    found = run_state.find(state(attempt("old", 3), attempt(job=None), rows=(row(3), row(9, word))), "a")
    assert found == (SubmittedJob(9, None), "2024-05-01T10:00:00")


def test_a_job_that_was_there_before_is_not_ours() -> None:
    rows = (row(8, "CANCELLED"), row(9), row(7, "FAILED"))
    assert run_state.find(state(attempt(job=None), rows=rows), "a", {7, 8, 9}) is None
    assert run_state.find(state(attempt(job=None), rows=rows), "a", {7, 8}) == (
        SubmittedJob(9, None),
        "2024-05-01T10:00:00",
    )


def test_the_newest_stranger_is_ours_whatever_squeues_order() -> None:
    found = run_state.find(state(attempt(job=None), rows=(row(9), row(8))), "a")
    assert found is not None
    assert found[0].job_id == 9


def test_without_a_started_sbatch_no_job_can_be_ours() -> None:
    assert run_state.find(state(attempt(job=None, submitted_at=None), rows=(row(9),)), "a") is None
    assert run_state.find(state(rows=(row(9),)), "a") is None


@pytest.mark.parametrize(
    ("word", "there"),
    [
        ("RUNNING", True),
        ("COMPLETING", True),
        ("PENDING", True),
        ("CANCELLED", False),
        ("COMPLETED", False),
        ("", True),
    ],
)
def test_a_job_is_gone_only_when_it_ended(word: str, there: bool) -> None:
    assert run_state.alive(QueueAnswer("ok", (row(481, word),))) == ({481} if there else set())


# --- reading


def test_an_answer_is_read_attempt_by_attempt_and_junk_is_none() -> None:
    fields: dict[str, tuple[bytes, ...]] = {
        "workspace": (b"/ws",),
        "login": (b"ann",),
        "host": (b"login1",),
        "attempt": (b"a", b"b", b"c"),
        "a.plan": (PLAN.to_json().encode(),),
        "a.job_id": (b"481;north\n",),
        "a.claim": (b"481 0\n",),
        "a.submitted_at": (b"2024-05-01T10:00:00\n",),
        "a.completion": (records.completion(token=PLAN.token).model_dump_json().encode(),),
        "a.generation": (b"1", b"2", b"*"),
        "b.plan": (b'{"token": "changed"}',),
        "b.job_id": (b"sbatch: what?\n",),
        "b.claim": (b"0 0\n",),
        "b.cancelled": (b"1",),
        "c.claim": (b"",),
        "squeue.rc": (b"0",),
        "squeue.out": (f"481|RUNNING|None|0:05|n1|{PLAN.job_name}\n".encode(),),
        "squeue.err": (b"",),
    }
    found = run_state.read(RemoteResult(0, fields))
    assert (found.workspace, found.login, found.host) == ("/ws", "ann", "login1")
    first, second, third = found.attempts
    assert first.plan == PLAN
    assert (first.submitted, first.claimed_by, first.exit_status) == (SubmittedJob(481, "north"), 481, 0)
    assert first.generations == {1, 2}
    assert (second.plan, second.submitted, second.fenced, second.cancelled) == (None, None, True, True)
    assert (third.plan, third.claimed_by, third.fenced, third.submitted_at) == (None, None, False, None)
    assert [item.job_id for item in found.active()] == [481]


@pytest.mark.parametrize("text", ["", "2024-05-01T10:0", "yesterday", "2024-05-01T10:00:00; id"])
def test_a_time_that_was_not_written_whole_is_none(text: str) -> None:
    fields = {"attempt": (b"a",), "a.submitted_at": (text.encode(),)}
    assert run_state.read(RemoteResult(0, fields)).attempts[0].submitted_at is None


def test_the_record_names_the_job_where_the_claim_is_not_visible() -> None:
    fields = {
        "attempt": (b"a",),
        "a.plan": (PLAN.to_json().encode(),),
        "a.completion": (records.completion().model_dump_json().encode(),),
    }
    (found,) = run_state.read(RemoteResult(0, fields)).attempts
    assert (found.exit_status, found.claimed_by) == (0, 481)


def test_a_queue_that_was_not_asked_is_unknown() -> None:
    assert run_state.read(RemoteResult(0, {"workspace": (b"/ws",)})).queue.status == "unknown"
