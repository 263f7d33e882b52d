# SPDX-License-Identifier: Apache-2.0
"""Boxes to break, and tasks on them whose tries are processes of their own."""

from __future__ import annotations

from tests.airflow import environment  # isort: skip  # settles Airflow's configuration, so it comes first

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.box import Box
from tests.cluster.conftest import (
    box_accounting,
    box_plain,
    enroot_dir,
    image_layouts,
    push_images,
    repaired,
    shared_boxes,
)
from tests.faults.scene import Scene

__all__ = [
    "box_accounting",
    "box_plain",
    "enroot_dir",
    "environment",
    "image_layouts",
    "push_images",
    "repaired",
    "shared_boxes",
]

MakeScene = Callable[..., Scene]

blocking_first = pytest.mark.parametrize("mode", ["blocking", pytest.param("deferred", marks=pytest.mark.slow)])
deferred_first = pytest.mark.parametrize("mode", ["deferred", pytest.param("blocking", marks=pytest.mark.slow)])
"""Both ways of waiting, one of them only in `make test-all`: each such test takes many seconds."""


@pytest.fixture(params=["blocking", "deferred"])
def mode(request: pytest.FixtureRequest) -> str:
    """How the task waits."""
    return str(request.param)


@pytest.fixture
def box(box_accounting: Box) -> Box:
    """The cluster that the faults happen to."""
    return box_accounting


@pytest.fixture
def make_scene(push_images: Callable[[Box], dict[str, str]]) -> Iterator[Callable[[Box, str], Scene]]:
    """Make a task on a box; whatever it leaves running is ended after the test."""
    made: list[Scene] = []

    def make(box: Box, mode: str, **options: object) -> Scene:
        digest = push_images(box)["static"]
        made.append(Scene(box, f"{box.registry}/images/static@{digest}", mode, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for scene in made:
        scene.close()


@pytest.fixture
def scene(make_scene: MakeScene, box: Box, mode: str) -> Scene:
    """A task on the box."""
    return make_scene(box, mode)
