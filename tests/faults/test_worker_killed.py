# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the worker at each point of a task: the retry ends with one job in total and the right record."""

from __future__ import annotations

import pytest

from tests.cluster.polling import wait_until
from tests.faults.conftest import MakeScene
from tests.faults.scene import Scene

NOTHING_SUBMITTED = [("before", "stage"), ("after", "stage")]
SUBMITTED = [("after", "submit")]
FINISHED = [("before", "collect"), ("after", "collect"), ("before", "publish"), ("after", "publish")]


@pytest.mark.parametrize(("when", "verb"), NOTHING_SUBMITTED + SUBMITTED + FINISHED)
def test_killed_at_a_verb_the_retry_ends_with_one_job_and_the_record(scene: Scene, when: str, verb: str) -> None:
    scene.crash(when, verb)
    record = scene.assert_published(scene.run())
    assert record["job"]["job_id"] == scene.imports()[0]
    scene.assert_settled(jobs=1, imports=1)


def test_killed_while_waiting_the_retry_adopts(scene: Scene) -> None:
    scene.hold()
    scene.begin().kill()
    assert scene.importing()
    waiting = scene.begin()
    scene.release()
    outcome = scene.finish(waiting)
    scene.assert_published(outcome)
    scene.assert_settled(jobs=1, imports=1)
