"""Boxes for the tests below, with accounting and without, each started when a test first asks for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import images as images_module
from .box import Box, temporary_box

STANDIN = Path(__file__).with_name("enroot_standin")


def enroot_on_this_machine() -> Path:
    """The directory of the Enroot to use: $ENROOT's, else that of the one on PATH, else the stand-in."""
    enroot = os.environ.get("ENROOT") or shutil.which("enroot")
    return Path(enroot).absolute().parent if enroot else STANDIN


@pytest.fixture(scope="session")
def enroot_dir() -> Path:
    """The directory of the Enroot under test."""
    return enroot_on_this_machine()


@pytest.fixture(scope="session")
def shared_boxes() -> list[Box]:
    """The boxes of this session that are running."""
    return []


@pytest.fixture(autouse=True)
def repaired(shared_boxes: list[Box]) -> Iterator[None]:
    """A test that fails while a daemon is away spoils the box for no other."""
    yield
    for box in shared_boxes:
        box.repair()


@pytest.fixture(scope="session")
def box_accounting(enroot_dir: Path, shared_boxes: list[Box]) -> Iterator[Box]:
    with temporary_box(True, enroot_dir) as box:
        shared_boxes.append(box)
        yield box
        shared_boxes.remove(box)


@pytest.fixture(scope="session")
def box_plain(enroot_dir: Path, shared_boxes: list[Box]) -> Iterator[Box]:
    with temporary_box(False, enroot_dir) as box:
        shared_boxes.append(box)
        yield box
        shared_boxes.remove(box)


@pytest.fixture(params=["accounting", "plain"], scope="session")
def any_box(request: pytest.FixtureRequest) -> Box:
    """Every test that takes it runs on both kinds of cluster."""
    box = request.getfixturevalue(f"box_{request.param}")
    assert isinstance(box, Box)
    return box


@pytest.fixture(scope="session")
def image_layouts() -> dict[str, Path]:
    """The OCI layouts of the test images by name: client, serving, nopython, static."""
    return images_module.build_all()


@pytest.fixture(scope="session")
def push_images(image_layouts: dict[str, Path]) -> Callable[[Box], dict[str, str]]:
    """Put all images into a box's registry as `<registry>/images/<name>:latest`; gives name -> digest."""
    pushed: dict[str, dict[str, str]] = {}

    def push(box: Box) -> dict[str, str]:
        if box.registry not in pushed:
            pushed[box.registry] = {
                name: images_module.push_layout(box.registry, layout, f"images/{name}", "latest")
                for name, layout in image_layouts.items()
            }
        return pushed[box.registry]

    return push


@pytest.fixture(scope="session")
def images(any_box: Box, push_images: Callable[[Box], dict[str, str]]) -> dict[str, str]:
    """Pinned references (`registry/repository:tag@sha256:...`) of the images in the registry of `any_box`."""
    digests = push_images(any_box)
    return {name: f"{any_box.registry}/images/{name}:latest@{digest}" for name, digest in digests.items()}


@pytest.fixture
def home(box_plain: Box) -> Iterator[Path]:
    """The user's home, full of what must not be touched; compared when the test is over."""
    # Not above: it brings Airflow along, and who else reads this file settles Airflow's configuration first.
    from .remains import private_home, snapshot

    with private_home(box_plain) as directory:
        before = snapshot(directory)
        yield directory
        assert snapshot(directory) == before
