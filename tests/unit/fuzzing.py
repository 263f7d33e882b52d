# SPDX-License-Identifier: Apache-2.0
"""Tests with made-up input: a few examples at each run, many more where slow tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

LONGER = 20


def twice(examples: int, *strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make two tests of one property: with `examples` of them, and a slow one with 20 times as many."""

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def test(count: int) -> None:
            checked: Callable[[], None] = settings(deadline=None, max_examples=count)(given(*strategies)(check))
            checked()

        test.__doc__ = check.__doc__
        many = pytest.param(examples * LONGER, id="many", marks=pytest.mark.slow)
        return pytest.mark.parametrize("count", [pytest.param(examples, id="few"), many])(test)

    return decorate
