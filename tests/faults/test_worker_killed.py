# SPDX-License-Identifier: Apache-2.0
"""The worker dies: kill -9 at each point of a task, or SIGTERM, which to Airflow is a user's kill."""

from __future__ import annotations

import pytest

from tests.cluster.box import Box
from tests.cluster.polling import wait_until
from tests.faults.conftest import MakeScene, blocking_first
from tests.faults.scene import Scene

POINTS = [
    ("before", "stage"),
    ("after", "stage"),
    ("after", "submit"),
    ("before", "collect"),
    ("after", "collect"),
    ("before", "publish"),
    ("after", "publish"),
]


@pytest.mark.parametrize(("when", "verb"), POINTS, ids="-".join)
def test_killed_at_a_verb_the_retry_ends_with_one_job_and_the_record(scene: Scene, when: str, verb: str) -> None:
    scene.crash(when, verb)
    record = scene.assert_published(scene.run())
    assert [record["job"]["job_id"]] == scene.imports()
    scene.assert_settled(jobs=1, imports=1)


def test_killed_while_waiting_the_retry_adopts(scene: Scene) -> None:
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    waiting.kill()
    adopting = scene.begin()
    scene.release()
    scene.assert_published(scene.finish(adopting))
    assert len(scene.attempts) == 1
    scene.assert_settled(jobs=1, imports=1)


@blocking_first
def test_killed_in_sbatch_after_it_submitted_the_retry_adopts(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, slurm_tools=["sbatch"])
    scene.flag("hang_after")
    scene.hold()
    scene.next_try()
    worker = scene.step("execute")
    assert scene.importing()
    worker.kill()
    adopting = scene.begin()
    scene.release()
    scene.assert_published(scene.finish(adopting))
    scene.unflag("hang_after")
    scene.assert_settled(jobs=1, imports=1)


@blocking_first
def test_killed_in_sbatch_before_it_submitted_the_late_job_does_nothing(
    make_scene: MakeScene, box: Box, mode: str
) -> None:
    scene = make_scene(box, mode, slurm_tools=["sbatch"])
    scene.flag("hang_before")
    scene.next_try()
    worker = scene.step("execute")
    assert wait_until(lambda: bool(scene.calls("sbatch")), 30)
    worker.kill()
    scene.hold()
    scene.next_try()
    retry = scene.step("execute")
    assert wait_until(lambda: len(scene.calls("sbatch")) == 2, 30)
    scene.unflag("hang_before")  # both submit now, at the same time
    assert wait_until(lambda: len(scene.jobs()) == 2, 30), scene.jobs()
    scene.release()
    record = scene.assert_published(scene.finish(retry))
    assert [record["job"]["job_id"]] == scene.imports()
    assert wait_until(lambda: {job.state for job in scene.jobs()} == {"COMPLETED", "FAILED"}, 30), scene.jobs()
    assert "superseded" in "".join((path / "slurm.out").read_text() for path in scene.attempts)
    scene.assert_settled(jobs=2, imports=1)


@blocking_first
def test_clearing_starts_a_new_attempt(scene: Scene) -> None:
    first = scene.assert_published(scene.run())
    scene.clear()
    second = scene.assert_published(scene.run())
    assert first["job"]["job_id"] != second["job"]["job_id"]
    assert len(scene.attempts) == 2
    scene.assert_settled(jobs=2, imports=2)


@blocking_first
def test_a_request_that_renders_differently_on_the_retry_makes_no_second_live_job(scene: Scene) -> None:
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    waiting.kill()
    scene.options["profile"] = {**scene.profile, "memory": "900M"}
    again = scene.begin()
    assert scene.importing(jobs=2)
    scene.release()
    scene.assert_published(scene.finish(again))
    assert [job.state for job in scene.jobs()] == ["CANCELLED", "COMPLETED"]
    scene.assert_settled(jobs=2, imports=2)


# -- SIGTERM, blocking only: while a task is deferred there is no process of it


def test_sigterm_cancels_and_the_retry_submits_anew(make_scene: MakeScene, box: Box) -> None:
    scene = make_scene(box, "blocking")
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    waiting.terminate()
    assert scene.reaches("CANCELLED"), scene.jobs()
    scene.release()
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


def test_sigterm_inside_sbatch_cancels_by_name(make_scene: MakeScene, box: Box) -> None:
    scene = make_scene(box, "blocking", slurm_tools=["sbatch", "scancel"])
    scene.flag("hang_after")
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    waiting.terminate()
    scene.unflag("hang_after")
    assert scene.reaches("CANCELLED"), scene.jobs()
    assert f"--name={scene.job_name}" in scene.calls("scancel")[0]
    scene.release()
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


def test_sigterm_with_cancel_on_kill_off_leaves_the_job_and_the_retry_adopts(make_scene: MakeScene, box: Box) -> None:
    scene = make_scene(box, "blocking", cancel_on_kill=False)
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    waiting.terminate(patience=1)
    adopting = scene.begin()
    scene.release()
    scene.assert_published(scene.finish(adopting))
    scene.assert_settled(jobs=1, imports=1)
