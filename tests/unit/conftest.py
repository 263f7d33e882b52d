"""Fixtures of the unit tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.trees.interpreters import Interpreter, interpreters, quickly_tested
from tests.unit.trees.shells import FakeImage, shells

EVERY_PYTHON = [
    pytest.param(one, id=one.name, marks=[] if one in quickly_tested() else [pytest.mark.slow])
    for one in interpreters()
]


@pytest.fixture(params=EVERY_PYTHON)
def interpreter(request: pytest.FixtureRequest) -> Interpreter:
    """Every Python of this machine in turn: the inspector has to run under each of them."""
    assert isinstance(request.param, Interpreter)
    return request.param


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="asi-rc-") as name:  # not tmp_path: another user must reach it
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture(params=shells(), ids=lambda command: Path(command[-1]).name)
def image(request: pytest.FixtureRequest, directory: Path) -> FakeImage:
    """For what the shells could do differently."""
    return FakeImage(directory, request.param)


@pytest.fixture
def sh_image(directory: Path) -> FakeImage:
    """For what is the same in every shell."""
    return FakeImage(directory, ("/bin/sh",))
