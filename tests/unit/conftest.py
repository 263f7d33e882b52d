"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest

from tests.unit.trees.interpreters import Interpreter, interpreters


@pytest.fixture(params=interpreters(), ids=lambda one: one.name)
def interpreter(request: pytest.FixtureRequest) -> Interpreter:
    """Every Python of this machine in turn: the inspector has to run under each of them."""
    assert isinstance(request.param, Interpreter)
    return request.param
