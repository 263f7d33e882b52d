# SPDX-License-Identifier: Apache-2.0
"""Something on the way to the job is gone for a while: the job goes on, the task waits, and nothing is cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.box import Box, temporary_box
from tests.cluster.polling import wait_until
from tests.cluster.remains import user_pids
from tests.cluster.space import kill
from tests.faults.conftest import MakeScene, deferred_first
from tests.faults.scene import Scene

OUTAGE = 6
"""Seconds, in the short form of these tests."""


def survives(scene: Scene, stop: Callable[[], None], start: Callable[[], None], seconds: float) -> None:
    """The job waits in its import, the daemon goes and comes, the job ends: one job, published."""
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    stop()
    time.sleep(seconds)
    start()
    scene.release()
    scene.assert_published(scene.finish(waiting, seconds + 120))
    scene.assert_settled(jobs=1, imports=1)


class TestOutage:
    @deferred_first
    def test_sshd_stopped_and_started(self, scene: Scene) -> None:
        survives(scene, scene.box.stop_sshd, scene.box.start_sshd, OUTAGE)

    @pytest.mark.slow
    def test_sshd_stopped_for_two_minutes(self, scene: Scene) -> None:
        survives(scene, scene.box.stop_sshd, scene.box.start_sshd, 120)

    @deferred_first
    def test_slurmctld_stopped_and_started(self, scene: Scene) -> None:
        survives(scene, scene.box.stop_slurmctld, scene.box.start_slurmctld, OUTAGE)

    @pytest.mark.slow
    def test_the_job_ends_while_slurmctld_is_down(self, scene: Scene) -> None:
        scene.hold()
        waiting = scene.begin()
        assert scene.importing()
        scene.box.stop_slurmctld()
        scene.release()
        scene.assert_published_by_record(scene.finish(waiting))
        scene.box.start_slurmctld()
        scene.assert_settled(jobs=1, imports=1)

    @deferred_first
    def test_slurmdbd_down_from_the_start_to_the_end(self, scene: Scene) -> None:
        scene.box.stop_slurmdbd()
        scene.assert_published(scene.run())
        scene.box.start_slurmdbd()
        scene.assert_settled(jobs=1, imports=1)

    @deferred_first
    def test_a_cancelled_job_is_told_while_slurmdbd_is_down(self, scene: Scene) -> None:
        scene.box.stop_slurmdbd()
        scene.hold()
        waiting = scene.begin()
        assert scene.importing()
        scene.box.as_root(["scancel", str(scene.jobs()[-1].job_id)], check=True)
        outcome = scene.finish(waiting)
        assert outcome.error == "JobFailedError"
        assert "cancelled" in outcome.message
        scene.box.start_slurmdbd()
        scene.assert_settled(jobs=1, imports=1)

    @deferred_first
    def test_lost_contact_leaves_the_job_and_the_retry_adopts(self, make_scene: MakeScene, box: Box, mode: str) -> None:
        scene = make_scene(box, mode, limits={"unknown_limit": 2.0})
        scene.hold()
        waiting = scene.begin()
        assert scene.importing()
        box.stop_sshd()
        outcome = waiting.outcome()
        box.start_sshd()
        outcome = outcome if outcome.error else scene.finish_event(waiting, outcome)
        assert outcome.error == "LostContactError", outcome
        assert outcome.retryable
        assert scene.job_state() == "RUNNING"
        adopting = scene.begin()
        scene.release()
        scene.assert_published(scene.finish(adopting))
        scene.assert_settled(jobs=1, imports=1)

    @deferred_first
    def test_sshd_gone_while_sbatch_runs_the_job_is_found_by_name(
        self, make_scene: MakeScene, box: Box, mode: str
    ) -> None:
        scene = make_scene(box, mode, slurm_tools=["sbatch"])
        scene.flag("hang_after")
        scene.hold()
        scene.next_try()
        submitting = scene.step("execute")
        assert scene.importing()
        box.restart_sshd()
        scene.unflag("hang_after")
        scene.release()
        scene.assert_published(scene.finish(submitting))
        scene.assert_settled(jobs=1, imports=1)


@deferred_first
def test_a_controller_that_took_the_job_and_did_not_answer(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, slurm_tools=["sbatch"])
    scene.flag("broken")
    scene.assert_published(scene.run())
    assert len(scene.calls("sbatch")) == 1
    scene.assert_settled(jobs=1, imports=1)


@deferred_first
def test_a_worker_whose_clock_is_wrong(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, slurm_tools=["sacct"], clock_shift=6 * 3600)
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    box.as_root(["scancel", str(scene.jobs()[-1].job_id)], check=True)
    outcome = scene.finish(waiting)
    assert outcome.error == "JobFailedError"
    assert "CANCELLED" in outcome.message
    start = next(word for word in scene.calls("sacct")[-1].split() if word.startswith("--starttime="))
    assert start.partition("=")[2] <= time.strftime("%Y-%m-%dT%H:%M:%S")  # the box shares this host's clock
    scene.release()
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


# -- nothing remembers the job


@pytest.fixture(scope="module")
def forgetful(enroot_dir: Path) -> Iterator[Box]:
    """A cluster without accounting whose controller forgets ended jobs at once."""
    with temporary_box(False, enroot_dir, min_job_age=2) as box:
        yield box


@pytest.mark.slow
def test_a_job_that_nobody_remembers_is_known_by_its_record(make_scene: MakeScene, forgetful: Box, mode: str) -> None:
    scene = make_scene(forgetful, mode)
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    waiting.kill()
    scene.release()
    assert wait_until(lambda: not scene.jobs(), 150, 0.5), scene.jobs()
    scene.assert_published_by_record(scene.run())
    assert len(scene.imports()) == 1
    assert not scene.left()


@pytest.mark.slow
def test_a_job_that_left_no_trace_is_unknown_and_the_retry_starts_anew(
    make_scene: MakeScene, forgetful: Box, mode: str
) -> None:
    scene = make_scene(forgetful, mode, limits={"appear_grace": 1.0}, profile={"record_wait": 2})
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    forgetful.stop_sshd()
    try:
        kill(user_pids(forgetful))
        assert wait_until(lambda: not scene.jobs(), 150, 0.5), scene.jobs()
    finally:
        forgetful.start_sshd()
    outcome = scene.finish(waiting, 200)
    assert outcome.error == "JobStateUnknownError", outcome
    assert outcome.retryable
    scene.release()
    scene.assert_published_by_record(scene.run())
    assert len(scene.imports()) == 2
