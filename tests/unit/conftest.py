"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest

from tests.unit.trees.interpreters import Interpreter, interpreters, quickly_tested

EVERY_PYTHON = [
    pytest.param(one, id=one.name, marks=[] if one in quickly_tested() else [pytest.mark.slow])
    for one in interpreters()
]


@pytest.fixture(params=EVERY_PYTHON)
def interpreter(request: pytest.FixtureRequest) -> Interpreter:
    """Every Python of this machine in turn: the inspector has to run under each of them."""
    assert isinstance(request.param, Interpreter)
    return request.param
