# SPDX-License-Identifier: Apache-2.0
"""Waiting ends on our side: hopeless reasons, pending_timeout, run_timeout, execution_timeout. The job goes first."""

from __future__ import annotations

from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason

from tests.cluster.box import Box
from tests.cluster.slurm_daemons import CLOSED_PARTITION, SHORT_PARTITION
from tests.faults.conftest import MakeScene, deferred_first
from tests.faults.scene import Scene

TIMED_OUT = {"error": TriggerFailureReason.TRIGGER_TIMEOUT.value}


@deferred_first
def test_more_time_than_the_partition_allows(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, profile={"partition": SHORT_PARTITION}, limits={"hopeless_grace": 1.0})
    outcome = scene.run()
    assert (outcome.error, outcome.retryable) == ("JobFailedError", False)
    assert "PartitionTimeLimit" in outcome.message
    assert "time_limit" in outcome.message.partition("What to do")[2]
    assert [job.state for job in scene.jobs()] == ["CANCELLED"]
    scene.assert_settled(jobs=1, imports=0)


@deferred_first
def test_a_held_job(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, profile={"partition": CLOSED_PARTITION}, limits={"hopeless_grace": 1.0})
    waiting = scene.begin()
    assert scene.reaches("PENDING")
    box.as_root(["scontrol", "hold", str(scene.jobs()[0].job_id)], check=True)
    outcome = scene.finish(waiting)
    assert (outcome.error, outcome.retryable) == ("JobFailedError", False)
    assert "JobHeldAdmin" in outcome.message
    scene.assert_settled(jobs=1, imports=0)


@deferred_first
def test_a_constraint_that_no_node_has_is_refused_by_sbatch(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, profile={"constraint": "nosuchfeature"})
    outcome = scene.run()
    assert (outcome.error, outcome.retryable) == ("InvalidRequestError", False)
    scene.assert_settled(jobs=0, imports=0)


@deferred_first
def test_pending_timeout(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, profile={"partition": CLOSED_PARTITION}, pending_timeout=2)
    outcome = scene.run()
    assert outcome.error == "JobFailedError"
    assert "pending_timeout" in outcome.message
    assert "PartitionDown" in outcome.message
    scene.assert_settled(jobs=1, imports=0)


@deferred_first
def test_run_timeout(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, run_timeout=3)
    scene.hold()
    outcome = scene.run()
    assert (outcome.error, outcome.retryable) == ("JobFailedError", False)
    assert "run_timeout" in outcome.message
    assert [job.state for job in scene.jobs()] == ["CANCELLED"]
    scene.assert_settled(jobs=1, imports=1)


def _time_out(scene: Scene) -> None:
    """A deferred task whose execution_timeout is over; what Airflow then calls."""
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    waiting.kill()


def test_execution_timeout_of_a_deferred_task_cancels(make_scene: MakeScene, box: Box) -> None:
    scene = make_scene(box, "deferred")
    _time_out(scene)
    outcome = scene.step("resume", method=TRIGGER_FAIL_REPR, arguments=TIMED_OUT).outcome()
    assert "execution_timeout" in outcome.message
    assert scene.job_state() == "CANCELLED"
    scene.release()
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


def test_execution_timeout_with_cancel_on_kill_off_leaves_the_job(make_scene: MakeScene, box: Box) -> None:
    scene = make_scene(box, "deferred", cancel_on_kill=False)
    _time_out(scene)
    outcome = scene.step("resume", method=TRIGGER_FAIL_REPR, arguments=TIMED_OUT).outcome()
    assert "execution_timeout" in outcome.message
    assert scene.job_state() == "RUNNING"
    adopting = scene.begin()
    scene.release()
    scene.assert_published(scene.finish(adopting))
    scene.assert_settled(jobs=1, imports=1)
