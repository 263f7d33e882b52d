# SPDX-License-Identifier: Apache-2.0
"""The lifecycle's decisions on a scripted cluster with a clock of its own: never two jobs, never a healthy one lost."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_slurm_images.core.decide import CompletionFound, Evidence, Limits
from airflow_slurm_images.core.errors import (
    ClusterUnavailableError,
    IntegrityError,
    InvalidRequestError,
    JobFailedError,
    JobStateUnknownError,
    LostContactError,
    OtherVersionError,
    SubmissionRefusedError,
    SubmissionUnknownError,
    TaskKilledError,
)
from airflow_slurm_images.core.observation import Observation
from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.slurm import QueueAnswer, QueueRow, SubmittedJob
from airflow_slurm_images.core.submission import SubmitAnswer
from airflow_slurm_images.lifecycle import CANCEL_SECONDS, EARLIEST, Lifecycle, Work
from airflow_slurm_images.submitting import LOOK_UP_SECONDS

from . import records
from .scripted import AT, DOWN, NAME, Clock, ScriptedCluster, attempt, row

LOG = logging.getLogger("tests.lifecycle")


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lifecycle(cluster: ScriptedCluster, clock: Clock, started: list[JobHandle] | None = None) -> Lifecycle:
    seen = [] if started is None else started
    return Lifecycle(cluster, LOG, sleep=clock.sleep, clock=lambda: clock.now, started=seen.append)


def work(**values: Any) -> Work:
    given: dict[str, Any] = {
        "request": records.import_request(),
        "run_key": records.RUN_KEY,
        "generation": 1,
        "is_retry": False,
        "slurm_conn_id": "lab",
        "overrides": {"memory": "32G"},
        "if_present": "reimport",
    }
    return Work(**{**given, **values})


def submitted(job_id: int = 481, cluster: str | None = None) -> SubmitAnswer:
    return SubmitAnswer(AT, SubmittedJob(job_id, cluster), None)


def doubtful(words: str = "Socket timed out") -> SubmitAnswer:
    return SubmitAnswer(AT, None, words)


# --- beginning


def test_a_submitted_job_is_known_before_anything_else_can_fail(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.submits = [submitted(cluster="north")]
    started: list[JobHandle] = []
    handle = lifecycle(cluster, clock, started).begin(work())
    assert started == [handle]
    assert isinstance(handle, JobHandle)
    assert (handle.job_id, handle.cluster, handle.submitted_at) == (481, "north", AT)
    assert handle.profile == {"memory": "32G"}
    assert (handle.record_wait, handle.generation) == (120, 1)
    assert cluster.done == ["prepare", "stage", "submit"]


@pytest.mark.parametrize("error", [None, DOWN])
def test_without_a_sight_of_the_queue_nothing_is_submitted(
    cluster: ScriptedCluster, clock: Clock, error: Exception | None
) -> None:
    cluster.queues = [error or QueueAnswer("unknown", detail="munge is down")]
    with pytest.raises(ClusterUnavailableError) as caught:
        lifecycle(cluster, clock).begin(work())
    assert caught.value.retryable
    assert cluster.done == ["prepare"]


def test_a_refused_job_is_not_looked_up_nor_submitted_again(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.submits = [InvalidRequestError("Slurm refused the job")]
    with pytest.raises(InvalidRequestError):
        lifecycle(cluster, clock).begin(work())
    assert cluster.count("submit") == 1
    assert cluster.count("prepare") == 1


@pytest.mark.parametrize("answer", [doubtful(), DOWN], ids=["sbatch in doubt", "line broke"])
def test_a_job_that_turns_up_late_is_adopted_and_not_submitted_again(
    cluster: ScriptedCluster, clock: Clock, answer: SubmitAnswer | Exception
) -> None:
    cluster.submits = [answer]
    empty, there = QueueAnswer("ok"), QueueAnswer("ok", (row(77, "PENDING"),))
    cluster.queues = [empty, empty, DOWN, empty, there]
    handle = lifecycle(cluster, clock).begin(work())
    assert isinstance(handle, JobHandle)
    assert handle.job_id == 77
    assert cluster.count("submit") == 1
    assert clock.now < LOOK_UP_SECONDS


def test_an_absent_job_is_submitted_exactly_once_more(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.submits = [doubtful(), submitted(78)]
    handle = lifecycle(cluster, clock).begin(work())
    assert isinstance(handle, JobHandle)
    assert handle.job_id == 78
    assert cluster.count("submit") == 2
    assert cluster.count("stage") == 1  # the same attempt
    assert clock.now >= LOOK_UP_SECONDS


def test_doubt_that_stays_is_said_with_the_command_to_look(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.submits = [doubtful("first"), doubtful("second")]
    with pytest.raises(SubmissionUnknownError, match="second") as caught:
        lifecycle(cluster, clock).begin(work())
    assert cluster.count("submit") == 2
    assert f"squeue --states=all --name={NAME}" in (caught.value.remedy or "")
    assert not caught.value.retryable
    assert cluster.count("cancel") == 0


@pytest.mark.parametrize("blind", [DOWN, QueueAnswer("unknown", detail="munge")], ids=["no line", "no queue"])
def test_without_an_answer_there_is_no_second_submission(
    cluster: ScriptedCluster, clock: Clock, blind: QueueAnswer | Exception
) -> None:
    cluster.submits = [doubtful()]
    cluster.queues = [QueueAnswer("ok"), blind]
    with pytest.raises(SubmissionUnknownError, match="does not answer"):
        lifecycle(cluster, clock).begin(work())
    assert cluster.count("submit") == 1


def test_one_good_look_after_an_outage_does_not_prove_that_there_is_no_job(
    cluster: ScriptedCluster, clock: Clock
) -> None:
    cluster.submits = [doubtful(), submitted(78)]
    looks = int(LOOK_UP_SECONDS / 7)
    cluster.queues = [QueueAnswer("ok"), *[DOWN] * looks, *[QueueAnswer("ok")] * 7, QueueAnswer("ok", (row(77),))]
    handle = lifecycle(cluster, clock).begin(work())
    assert isinstance(handle, JobHandle)
    assert (handle.job_id, cluster.count("submit")) == (77, 1)


def test_a_task_that_is_killed_while_it_looks_for_its_job_submits_none(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.submits = [doubtful(), submitted(78)]
    killed = Lifecycle(cluster, LOG, sleep=clock.sleep, clock=lambda: clock.now, killed=lambda: clock.now > 0)
    with pytest.raises(TaskKilledError):
        killed.begin(work())
    assert cluster.count("submit") == 1


@pytest.mark.parametrize(
    "refusal", [InvalidRequestError("no such partition"), IntegrityError("differs"), SubmissionRefusedError("full")]
)
def test_the_login_of_a_job_that_was_refused_is_removed(
    cluster: ScriptedCluster, clock: Clock, refusal: Exception
) -> None:
    cluster.submits = [refusal]
    with pytest.raises(type(refusal)) as caught:
        lifecycle(cluster, clock).begin(work(credentials=lambda: b"machine x"))
    assert caught.value is refusal
    assert cluster.done == ["prepare", "stage", "submit", "collect True"]


def test_the_login_is_removed_where_the_answer_of_staging_is_lost(
    cluster: ScriptedCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> str:
        raise DOWN

    monkeypatch.setattr(cluster, "stage", lost)
    with pytest.raises(ClusterUnavailableError):
        lifecycle(cluster, clock).begin(work(credentials=lambda: b"machine x"))
    assert cluster.done == ["prepare", "collect True"]


def test_a_refusal_is_told_also_when_the_login_cannot_be_removed(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.submits, cluster.collected = [InvalidRequestError("no such partition")], [DOWN]
    with pytest.raises(InvalidRequestError, match="no such partition"):
        lifecycle(cluster, clock).begin(work(credentials=lambda: b"machine x"))


def test_the_login_of_a_job_that_may_be_there_stays(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.submits = [doubtful()]
    with pytest.raises(SubmissionUnknownError):
        lifecycle(cluster, clock).begin(work(credentials=lambda: b"machine x"))
    assert cluster.count("collect") == 0


def test_a_submit_limit_is_no_doubt(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.submits = [SubmissionRefusedError("QOSMaxSubmitJobPerUserLimit")]
    with pytest.raises(SubmissionRefusedError) as caught:
        lifecycle(cluster, clock).begin(work())
    assert caught.value.retryable
    assert (cluster.count("submit"), clock.now) == (1, 0)


def test_an_adopted_job_whose_time_of_submission_is_not_visible_is_looked_for_from_early_on(
    cluster: ScriptedCluster, clock: Clock
) -> None:
    cluster.attempts = [attempt(records.plan(), submitted_at=None)]
    cluster.queues = [QueueAnswer("ok", (row(481),))]
    handle = lifecycle(cluster, clock).begin(work(generation=3))
    assert isinstance(handle, JobHandle)
    assert (handle.job_id, handle.submitted_at, handle.generation) == (481, EARLIEST, 3)


def test_an_active_job_of_this_request_is_adopted_on_its_own_cluster(cluster: ScriptedCluster, clock: Clock) -> None:
    plan = records.plan()
    cluster.attempts = [attempt(plan, submitted=SubmittedJob(481, "north"))]
    cluster.queues = [QueueAnswer("ok", (row(481),))]
    handle = lifecycle(cluster, clock).begin(work(generation=3))
    assert isinstance(handle, JobHandle)
    assert (handle.job_id, handle.cluster, handle.token) == (481, "north", plan.token)
    assert cluster.done == ["prepare", "adopt 481 3"]


@pytest.mark.parametrize("active", [True, False], ids=["adopted", "collected"])
def test_the_log_of_who_takes_over_a_job_leads_to_its_run_directory(
    cluster: ScriptedCluster, clock: Clock, caplog: pytest.LogCaptureFixture, active: bool
) -> None:
    plan = records.plan()
    cluster.attempts = [attempt(plan, exit_status=None if active else 0, claimed_by=481)]
    cluster.queues = [QueueAnswer("ok", (row(481),) if active else ())]
    with caplog.at_level(logging.INFO):
        lifecycle(cluster, clock).begin(work(is_retry=True))
    assert cluster.count("submit") == 0
    assert plan.attempt_directory in caplog.text and "481" in caplog.text


def test_a_job_of_another_request_is_gone_before_anything_is_staged(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.attempts = [attempt(records.plan(records.import_request(kind="serving")))]
    cluster.queues = [QueueAnswer("ok", (row(481),))]
    cluster.cancels = [QueueAnswer("ok", (row(481),)), DOWN, QueueAnswer("unknown"), QueueAnswer("ok")]
    cluster.submits = [submitted(482)]
    lifecycle(cluster, clock).begin(work())
    assert cluster.done == ["prepare", *["cancel 481 True None"] * 4, "stage", "submit"]


def test_a_job_that_does_not_go_stops_the_work(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.attempts = [attempt(records.plan(records.import_request(kind="serving")))]
    cluster.queues = [QueueAnswer("ok", (row(481),))]
    cluster.cancels = [QueueAnswer("ok", (row(481, "COMPLETING"),))]
    with pytest.raises(ClusterUnavailableError, match="still in the queue"):
        lifecycle(cluster, clock).begin(work())
    assert clock.now >= CANCEL_SECONDS
    assert cluster.count("stage") == 0


@pytest.mark.parametrize(("retry", "generation", "collected"), [(True, 1, True), (False, 1, False), (True, 2, False)])
def test_a_good_attempt_is_collected_only_by_a_retry_of_its_generation(
    cluster: ScriptedCluster, clock: Clock, retry: bool, generation: int, collected: bool
) -> None:
    cluster.attempts = [attempt(records.plan(), exit_status=0, claimed_by=481)]
    cluster.submits = [submitted(500)]
    handle = lifecycle(cluster, clock).begin(work(is_retry=retry, generation=generation))
    assert isinstance(handle, JobHandle)
    assert (handle.job_id == 481) is collected
    assert (cluster.count("submit") == 0) is collected


# --- waiting


def seen(*rows: QueueRow, **values: Any) -> Observation:
    return Observation(Evidence(QueueAnswer("ok", rows)), **values)


def wait(cluster: ScriptedCluster, clock: Clock, **limits: float) -> None:
    lifecycle(cluster, clock).wait(records.handle(cluster="north"), Limits(**limits), 30, "try1")


@pytest.mark.parametrize(
    ("observed", "limits", "words"),
    [
        (row(481, "PENDING", "Priority"), {"pending_timeout": 600}, "pending_timeout"),
        (row(481, "RUNNING"), {"run_timeout": 1}, "run_timeout"),
        (row(481, "PENDING", "AssocMaxWallDurationPerJobLimit"), {}, "AssocMaxWallDurationPerJobLimit"),
    ],
)
def test_an_end_of_ours_cancels_the_right_job_and_sees_it_gone(
    cluster: ScriptedCluster, clock: Clock, observed: QueueRow, limits: dict[str, float], words: str
) -> None:
    cluster.observed = [seen(observed)]
    cluster.cancels = [QueueAnswer("ok", (row(481, "COMPLETING"),)), QueueAnswer("ok", (row(481, "CANCELLED"),))]
    with pytest.raises(JobFailedError, match=words) as caught:
        wait(cluster, clock, **limits)
    assert [entry for entry in cluster.done if entry.startswith("cancel")] == ["cancel 481 True north"] * 2
    assert "the last words" in caught.value.message


def test_what_is_cancelled_is_the_job_that_runs_the_attempt(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.observed = [seen(row(481, "FAILED"), row(482, "RUNNING"), claimed_by=482)]
    with pytest.raises(JobFailedError, match="Job 482"):
        wait(cluster, clock, run_timeout=1)
    assert cluster.count("cancel") == 1
    assert "cancel 482 True north" in cluster.done


def test_lost_contact_cancels_nothing(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.observed = [seen(row(481)), DOWN]
    with pytest.raises(LostContactError, match="left alone") as caught:
        wait(cluster, clock, unknown_limit=3600)
    assert caught.value.retryable
    assert 3600 <= clock.now < 4200
    assert cluster.count("cancel") == 0


def test_a_job_pending_for_hours_for_a_good_reason_is_waited_for(cluster: ScriptedCluster, clock: Clock) -> None:
    done = records.completion()
    good = Observation(Evidence(QueueAnswer("ok"), completion=CompletionFound(0)), record=done)
    cluster.observed = [*[seen(row(481, "PENDING", "Priority"))] * 100, good]
    wait(cluster, clock)
    assert cluster.count("observe") == 101
    assert cluster.count("cancel") == 0


def test_an_error_is_told_also_when_the_logs_cannot_be_read(
    cluster: ScriptedCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object, **__: object) -> RemoteResult:
        raise DOWN

    monkeypatch.setattr(cluster, "collect", down)
    cluster.observed = [seen(row(481, "PENDING", "BadConstraints"))]
    with pytest.raises(JobFailedError, match="BadConstraints"):
        wait(cluster, clock)


def test_why_we_gave_up_is_told_also_when_the_job_cannot_be_cancelled(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.observed = [seen(row(481, "PENDING", "Priority"))]
    cluster.cancels = [DOWN]
    with pytest.raises(JobFailedError, match=r"pending_timeout.*could not be cancelled: Job 481 is still in the queue"):
        wait(cluster, clock, pending_timeout=1)


@pytest.mark.parametrize("record_wait", [20, 600])
def test_a_record_is_waited_for_as_long_as_the_profile_said(
    cluster: ScriptedCluster, clock: Clock, record_wait: int
) -> None:
    cluster.observed = [seen(row(481)), seen()]
    with pytest.raises(JobStateUnknownError):
        lifecycle(cluster, clock).wait(records.handle(record_wait=record_wait), Limits(), 5, "try1")
    assert record_wait <= clock.now < record_wait + 60


# --- cancelling what is not known exactly


def test_every_job_of_the_name_goes_where_it_is_not_known_which_runs_the_attempt(
    cluster: ScriptedCluster, clock: Clock
) -> None:
    first, both = QueueAnswer("ok", (row(482),)), QueueAnswer("ok", (row(481, "COMPLETING"), row(482)))
    cluster.cancels = [both, first, first, QueueAnswer("ok")]
    lifecycle(cluster, clock).cancel(records.handle(), others=True)
    assert cluster.done == ["cancel 481 True None"] * 2 + ["cancel 482 True None"] * 2


# --- collecting


def left(*without: str, kind: str = "generic", **fields: bytes) -> RemoteResult:
    """What a good inspection left, as far as it is visible."""
    plan = records.plan(records.inspect_request(kind=kind))
    sqsh = {
        "path": "/data/x.sqsh",
        "sha256": records.SQSH,
        "size_bytes": 4096,
        "inode": 7,
        "mtime": 1,
        "managed": False,
    }
    found = {
        "plan": plan.to_json().encode(),
        "completion": records.completion(operation="inspect_sqsh", sqsh=sqsh).model_dump_json().encode(),
        "static.superblock": b"junk",
        **fields,
    }
    return RemoteResult(0, {name: (data,) for name, data in found.items() if name not in without})


def test_what_a_job_left_is_collected_at_once_where_it_is_visible(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.collected = [left()]
    assert lifecycle(cluster, clock).finish(records.handle()).record.job.job_id == 481
    assert clock.now == 0


@pytest.mark.parametrize("late", ["plan", "completion", "static.superblock"])
def test_what_is_not_visible_yet_is_looked_for_again(cluster: ScriptedCluster, clock: Clock, late: str) -> None:
    cluster.collected = [left(late), left(late), left()]
    assert lifecycle(cluster, clock).finish(records.handle()).record.sqsh.path == "/data/x.sqsh"
    assert 0 < clock.now < 60


@pytest.mark.parametrize(
    ("late", "kind", "path"),
    [
        ("plan", "generic", "plan.json"),
        ("completion", "generic", "completion.json"),
        ("static.superblock", "generic", "output/static"),
        ("facts", "client", "output/facts.json"),
    ],
)
def test_what_stays_invisible_is_named_with_how_long_it_was_looked_for(
    cluster: ScriptedCluster, clock: Clock, late: str, kind: str, path: str
) -> None:
    cluster.collected = [left(late, kind=kind)]
    with pytest.raises(ClusterUnavailableError, match=f"{path} in .* is not visible .* after 20 s") as caught:
        lifecycle(cluster, clock).finish(records.handle(record_wait=20))
    assert caught.value.retryable
    assert 20 <= clock.now < 30


def test_a_damaged_plan_is_not_looked_at_again(cluster: ScriptedCluster, clock: Clock) -> None:
    cluster.collected = [left(plan=b"{}")]
    with pytest.raises(IntegrityError, match="not valid"):
        lifecycle(cluster, clock).finish(records.handle())
    assert clock.now == 0


def test_a_job_that_another_version_planned_is_finished_where_its_plan_can_be_read(
    cluster: ScriptedCluster, clock: Clock
) -> None:
    request = records.inspect_request()
    fields = {
        "request": request.model_dump(mode="json"),
        "source_digest": None,
        "request_digest": "5" * 64,
        "package_files": {"job.sh": "1" * 64},
    }
    written = records.plan_of_version("0.0.9", **fields)
    cluster.collected = [left(plan=written)]
    assert lifecycle(cluster, clock).finish(records.handle()).record.job.job_id == 481
    cluster.collected = [left(plan=records.plan_of_version("9.0.0", of_tomorrow=1))]
    with pytest.raises(OtherVersionError):
        lifecycle(cluster, clock).finish(records.handle())
