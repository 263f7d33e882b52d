# SPDX-License-Identifier: Apache-2.0
"""Asking Airflow something from a trigger, without harm to the others when the trigger is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

_T = TypeVar("_T")

_open: set[asyncio.Future[Any]] = set()
"""Exchanges on their way; a loop alone keeps no hold of them."""


async def whole(exchange: Awaitable[_T]) -> _T:
    """Await an exchange with Airflow, which goes on to its end also when we are cancelled.

    All triggers share one channel. An exchange that is abandoned in the middle leaves its answer there, where the next
    one to ask would read it; Airflow 3.1 then runs no trigger any more.
    """
    task = asyncio.ensure_future(exchange)
    _open.add(task)
    task.add_done_callback(_open.discard)
    return await asyncio.shield(task)
