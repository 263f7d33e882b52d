# SPDX-License-Identifier: Apache-2.0
"""Waiting for one job: how often it looks, what it shows, and which end is an end."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_slurm_images.core import observation, reports
from airflow_slurm_images.core.decide import CompletionFound, Evidence, Limits, Verdict
from airflow_slurm_images.core.errors import JobFailedError
from airflow_slurm_images.core.observation import Observation
from airflow_slurm_images.core.records import CompletionRecord
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.slurm import AccountingAnswer, AccountingRow, QueueAnswer, QueueRow
from airflow_slurm_images.core.watch import CHUNK_LIMIT, SIGNAL_GRACE, STREAM_LIMIT, JobWatch, Line

from . import records

NAME = records.handle().job_name


def row(state: str = "RUNNING", job_id: int = 481) -> QueueRow:
    return QueueRow(job_id, state, "None", 5, "n1", NAME)


def seen(
    *rows: QueueRow, record: CompletionRecord | None = None, accounting: AccountingAnswer | None = None, **values: Any
) -> Observation:
    completion = CompletionFound(record.exit_status) if record else None
    evidence = Evidence(QueueAnswer("ok", rows), completion=completion, accounting=accounting)
    return Observation(evidence, record=record, **values)


def accounted(state: str) -> AccountingAnswer:
    found = AccountingRow(481, state, 0, 15, NAME, "2024-05-01T10:00:00", "Unknown", "Unknown", 5, "n1", "lab")
    return AccountingAnswer("ok", (found,))


def watch(**values: Any) -> JobWatch:
    return JobWatch(records.handle(), Limits(), 0.0, stream="try1", **values)


def texts(lines: list[Line], level: int = logging.INFO) -> list[str]:
    return [line.text for line in lines if line.level == level]


def look(job: JobWatch, observation: Observation, now: float) -> tuple[Verdict, list[Line]]:
    job.request()
    return job.feed(observation, now)


# --- how often


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_an_hour_of_running_is_at_most_121_looks(jitter: float) -> None:
    job, now, looks = watch(), 0.0, 0
    while now <= 3600:
        looks += 1
        assert look(job, seen(row()), now)[0].kind == "wait"
        now += job.delay(30, jitter)
    assert 100 < looks <= 121


def test_the_first_looks_come_soon_and_never_later_than_the_interval() -> None:
    job, delays = watch(), []
    for number in range(6):
        look(job, seen(row()), float(number))
        delays.append(job.delay(30, 0.0))
    assert delays[:4] == [2, 4, 8, 16]
    assert all(30 <= delay <= 34 for delay in delays[4:])
    look(job := watch(), seen(row()), 0.0)
    assert job.delay(1, 0.0) == 1


def test_doubt_makes_the_looks_rarer_up_to_five_minutes_and_jittered() -> None:
    job, delays = watch(), []
    for number in range(12):
        verdict, lines = job.feed_failure("no route", float(number))
        assert verdict.kind == "wait"
        assert len(texts(lines, logging.WARNING)) == 1
        delays.append((job.delay(30, 0.0), job.delay(30, 0.999)))
    assert [low for low, _ in delays[:4]] == [22.5, 45, 90, 180]
    assert all(high <= 375 for _, high in delays)
    assert all(low < high for low, high in delays)
    assert texts(look(job, seen(row()), 20.0)[1])[-1] == "The cluster answers again"
    assert job.delay(30, 0.0) < 35


def test_contact_is_lost_only_at_the_stated_limit() -> None:
    job = watch()
    assert job.feed_failure("no route", 0.0)[0].kind == "wait"
    assert job.feed_failure("no route", 3599.0)[0].kind == "wait"
    assert job.feed_failure("no route", 3600.0)[0].kind == "lost"


# --- output


def test_output_is_shown_once_in_order_and_phases_with_it() -> None:
    job = watch()
    _, lines = look(job, seen(row(), log=b"asi: phase import (1 s)\nhal", phase="import"), 0.0)
    assert texts(lines) == ["job 481 is RUNNING on n1", "asi: phase import (1 s)"]
    assert job.phase == "import"
    assert job.request().log_offset == 27
    _, lines = job.feed(seen(row(), log=b"f a line\n", log_offset=27, phase="import"), 5.0)
    assert texts(lines) == ["half a line"]


def test_a_full_piece_is_followed_at_once_also_after_the_end() -> None:
    job = watch()
    done = records.completion()
    assert job.request().log_bytes == CHUNK_LIMIT
    verdict, _ = job.feed(seen(record=done, log=b"x\n" * (CHUNK_LIMIT // 2)), 0.0)
    assert (verdict.kind, job.delay(30, 0.5)) == ("wait", 0.0)
    job.request()
    verdict, lines = job.feed(seen(record=done, log=b"the last words", log_offset=CHUNK_LIMIT), 0.0)
    assert verdict.kind == "succeeded"
    assert "the last words" in texts(lines)
    assert job.record == done


def test_all_the_rest_of_an_ended_jobs_output_is_asked_for_in_one_look() -> None:
    job, done = watch(), records.completion()
    look(job, seen(row(), log=b"x\n" * (CHUNK_LIMIT // 2)), 0.0)
    assert (job.ending, job.request().log_bytes) == (False, CHUNK_LIMIT)
    job.feed(seen(record=done, log=b"x\n" * (CHUNK_LIMIT // 2), log_offset=CHUNK_LIMIT), 1.0)
    assert (job.ending, job.request().log_bytes, job.request(4 * STREAM_LIMIT).log_bytes) == (
        True,
        CHUNK_LIMIT,
        STREAM_LIMIT,
    )
    job.feed_failure("no route", 2.0)
    assert (job.ending, job.delay(30, 0.5) > 0) == (False, True)


def test_a_small_share_of_the_answer_is_respected() -> None:
    job = watch()
    assert job.request(100).log_bytes == 100
    job.feed(seen(row(), log=b"x" * 100), 0.0)
    assert job.delay(30, 0.5) == 0.0


def test_after_the_limit_no_more_output_is_asked_for_but_phases_are_told() -> None:
    job = watch()
    look(job, seen(row(), log=b"y" * (STREAM_LIMIT + 2)), 0.0)
    assert job.request().log_bytes == 0
    _, lines = job.feed(seen(row(), phase="store", log_offset=STREAM_LIMIT + 2), 1.0)
    assert texts(lines) == ["asi: phase store"]
    assert job.delay(30, 0.0) > 0


def test_a_failed_look_loses_no_output() -> None:
    job = watch()
    look(job, seen(row(), log=b"one\n"), 0.0)
    job.request()
    job.feed_failure("timeout", 1.0)
    assert job.request().log_offset == 4


def test_a_resumed_watch_asks_for_the_kept_offset() -> None:
    job = watch(resume=True)
    assert job.request().log_offset is None
    job.feed(seen(row(), log=b"abc", log_offset=100), 0.0)
    assert job.request().log_offset == 103


def test_what_is_kept_is_the_end_of_the_last_line_shown() -> None:
    job = watch()
    assert job.request().log_kept == 0
    job.feed(seen(row(), log=b"one\ntwo\nthr"), 0.0)
    assert (job.request().log_offset, job.request().log_kept) == (11, 7)
    again = watch(resume=True)
    again.request()
    again.feed_failure("no route", 0.0)
    _, lines = again.feed(seen(row(), log=b"\nthree\nfou", log_offset=7), 1.0)
    assert texts(lines) == ["job 481 is RUNNING on n1", "three", "The cluster answers again"]
    assert (again.request().log_offset, again.request().log_kept) == (17, 13)


def test_a_restart_does_not_raise_the_limit() -> None:
    job = watch(resume=True)
    job.request()
    _, lines = job.feed(seen(row(), log=b"\n" + b"y\n" * 10, log_offset=STREAM_LIMIT - 10), 0.0)
    assert "longer than" in texts(lines)[-1]
    assert job.request().log_bytes == 0


def test_a_stream_name_cannot_leave_its_directory() -> None:
    job = JobWatch(records.handle(), Limits(), 0.0, stream="../../x y", resume=True)
    assert "/" not in job.request().stream
    assert " " not in job.request().stream


# --- ends


def test_an_answer_without_the_queue_is_doubt_and_never_an_empty_queue() -> None:
    job = watch()
    (blind,) = observation.read(RemoteResult(0, {}), [job.request()])
    assert blind.evidence.queue.status == "unknown"
    for now in (0.0, 121.0, 900.0):
        verdict, lines = look(job, blind, now)
        assert (verdict.kind, len(texts(lines, logging.WARNING))) == ("wait", 1)


def test_a_superseded_job_is_not_the_end_the_one_that_claimed_is_followed() -> None:
    job = watch()
    rows = (row("FAILED"), row("RUNNING", 482))
    verdict, lines = look(job, seen(*rows, claimed_by=482), 0.0)
    assert verdict.kind == "wait"
    assert texts(lines, logging.WARNING) == ["Job 482 runs this attempt; following it"]
    assert (job.job_id, job.request().job_id) == (482, 482)
    assert texts(look(job, seen(*rows, claimed_by=482), 1.0)[1], logging.WARNING) == []


def test_a_signalled_job_waits_for_slurms_reason_but_not_for_long() -> None:
    job, record = watch(), records.failed_completion(143)
    assert look(job, seen(row(), record=record), 10.0)[0].kind == "wait"
    assert job.delay(30, 0.0) == 3.0
    assert look(job, seen(row(), record=record), 10 + SIGNAL_GRACE - 1)[0].kind == "wait"
    verdict, _ = look(job, seen(row(), record=record), 10 + SIGNAL_GRACE)
    assert (verdict.kind, verdict.exit_code) == ("failed", 143)


def test_a_tool_that_was_killed_waits_for_slurms_reason_too() -> None:
    """The kernel kills the largest process, the job ends by itself, and Slurm says OUT_OF_MEMORY seconds later."""
    job, record = watch(), records.failed_completion(78, tool_status=137)
    assert look(job, seen(row(), record=record), 10.0)[0].kind == "wait"
    assert job.delay(30, 0.0) == 3.0
    verdict, _ = look(job, seen(record=record, accounting=accounted("OUT_OF_MEMORY")), 13.0)
    assert (verdict.kind, verdict.state) == ("failed", "OUT_OF_MEMORY")
    error = reports.job_error(job.handle, verdict, job.record, {})
    assert isinstance(error, JobFailedError)
    assert (error.reason, error.retryable) == ("out_of_memory", False)


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED", "OUT_OF_MEMORY", "NODE_FAIL"])
def test_a_reason_of_slurms_ends_a_signalled_job_at_once(state: str) -> None:
    verdict, _ = look(watch(), seen(record=records.failed_completion(143), accounting=accounted(state)), 0.0)
    assert (verdict.kind, verdict.state) == ("failed", state)


def test_a_job_that_failed_by_itself_is_not_waited_for() -> None:
    assert look(watch(), seen(row(), record=records.failed_completion(78)), 0.0)[0].kind == "failed"


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "NODE_FAIL", "PREEMPTED"])
@pytest.mark.parametrize("status", [143, 70])
def test_the_record_of_a_run_before_a_requeue_is_no_end(state: str, status: int) -> None:
    job, record = watch(), records.failed_completion(status)
    look(job, seen(row()), 0.0)
    for now in (10.0, 100.0, 250.0):
        assert look(job, seen(row(state), record=record), now)[0].kind == "wait"
    assert job.record is None
    assert look(job, seen(row()), 300.0)[0].kind == "wait"
    assert job.delay(30, 0.0) > 3
    assert look(job, seen(record=records.completion()), 400.0)[0].kind == "succeeded"


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "RUNNING"])
def test_the_record_that_a_requeued_job_took_away_is_forgotten(state: str) -> None:
    """Nothing but Slurm tells how its second run ended."""
    job, record = watch(), records.failed_completion(143)
    assert (look(job, seen(row(), record=record), 0.0)[0].kind, job.record) == ("wait", record)
    assert look(job, seen(row(state)), 10.0)[0].kind == "wait"
    assert job.record is None
    verdict, _ = look(job, seen(accounting=accounted("TIMEOUT")), 20.0)
    assert (verdict.kind, verdict.state, job.record) == ("failed", "TIMEOUT", None)


def test_a_look_that_failed_takes_no_record_away() -> None:
    job = watch()
    look(job, seen(row(), record=records.failed_completion(143)), 0.0)
    job.feed_failure("no route", 5.0)
    assert job.record is not None


def test_a_requeue_counts_as_waiting_for_the_pending_timeout() -> None:
    job = JobWatch(records.handle(), Limits(pending_timeout=100), 0.0, stream="try1")
    record = records.failed_completion(143)
    assert look(job, seen(row("PENDING"), record=record), 0.0)[0].kind == "wait"
    assert look(job, seen(row("PENDING"), record=record), 100.0)[0].kind == "pending_timeout"


def test_a_good_record_is_an_end_whatever_the_queue_still_says() -> None:
    for state in ("RUNNING", "COMPLETING", "PENDING"):
        assert look(watch(), seen(row(state), record=records.completion()), 0.0)[0].kind == "succeeded"


def test_a_record_seen_20_seconds_after_completed_is_success() -> None:
    job = watch()
    look(job, seen(row()), 0.0)
    assert look(job, seen(accounting=accounted("COMPLETED")), 10.0)[0].kind == "wait"
    assert look(job, seen(record=records.completion()), 30.0)[0].kind == "succeeded"


def test_a_record_that_never_comes_has_its_own_message() -> None:
    job = watch()
    look(job, seen(row()), 0.0)
    look(job, seen(accounting=accounted("COMPLETED")), 10.0)
    verdict, _ = look(job, seen(accounting=accounted("COMPLETED")), 400.0)
    assert verdict.kind == "unknown"
    assert "COMPLETED but record not visible after 390 s" in verdict.message


def test_an_empty_queue_right_after_submission_is_no_end() -> None:
    job = watch()
    for now, rows in ((0.0, ()), (5.0, ()), (10.0, (row("PENDING"),)), (20.0, (row(),))):
        assert look(job, seen(*rows), now)[0].kind == "wait"
    assert look(job, seen(record=records.completion(), accounting=accounted("COMPLETED")), 30.0)[0].kind == "succeeded"
