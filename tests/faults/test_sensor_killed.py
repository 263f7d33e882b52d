# SPDX-License-Identifier: Apache-2.0
"""A sensor dies, is killed or times out: its job goes on unless it was told to cancel, and the retry publishes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.box import Box
from tests.faults.conftest import MakeScene
from tests.faults.scene import Scene


def submitted(make_scene: MakeScene, box: Box, mode: str, **options: Any) -> Scene:
    """A job that an operator only submitted, held in its import; the tries from now on are the sensor's."""
    scene = make_scene(box, mode, wait_for_completion=False)
    scene.hold()
    scene.next_try()
    handle = scene.step("execute").outcome().value
    assert handle is not None
    scene.become_sensor(handle, **options)
    assert scene.importing()
    return scene


def test_killed_while_waiting_the_retry_publishes(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = submitted(make_scene, box, mode)
    scene.begin().kill()
    again = scene.begin()
    scene.release()
    scene.assert_published(scene.finish(again))
    scene.assert_settled(jobs=1, imports=1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_publishing_the_retry_publishes(make_scene: MakeScene, box: Box, mode: str, when: str) -> None:
    scene = submitted(make_scene, box, mode)
    scene.release()
    scene.crash(when, "publish")
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=1, imports=1)


def test_sigterm_leaves_the_job(make_scene: MakeScene, box: Box) -> None:
    scene = submitted(make_scene, box, "blocking")
    scene.begin().terminate(patience=2)
    assert scene.job_state() == "RUNNING"
    scene.release()
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=1, imports=1)


def test_sigterm_cancels_when_told_to(make_scene: MakeScene, box: Box) -> None:
    scene = submitted(make_scene, box, "blocking", cancel_on_kill=True)
    waiting = scene.begin()
    assert scene.looked(waiting)
    waiting.terminate()
    assert scene.reaches("CANCELLED"), scene.jobs()
    scene.assert_settled(jobs=1, imports=1)


def test_a_timeout_of_the_sensor_leaves_the_job(make_scene: MakeScene, box: Box) -> None:
    scene = submitted(make_scene, box, "blocking", timeout=3)
    outcome = scene.run()
    assert outcome.error is not None
    assert scene.job_state() == "RUNNING"
    scene.release()
    assert scene.reaches("COMPLETED")
    scene.assert_settled(jobs=1, imports=1)
