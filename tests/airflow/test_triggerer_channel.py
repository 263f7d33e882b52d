# SPDX-License-Identifier: Apache-2.0
"""The triggerer's channel to its supervisor: on Airflow 3.1 a message from a thread breaks it for every trigger."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseHook, Connection
from airflow.sdk.execution_time import task_runner

from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.hooks import ssh_exchange
from airflow_slurm_images.triggers import observer
from airflow_slurm_images.triggers.images import SlurmJobTrigger
from tests.airflow.contexts import handle


class Channel:
    """Notes from which thread it was used."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def send(self, _message: object) -> None:
        self.threads.add(threading.get_ident())

    async def asend(self, message: object) -> None:
        self.send(message)


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Channel:
    made = Channel()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    return made


@pytest.fixture
def remote_threads(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """A login node that answers nothing but markers; gives the threads that asked it."""
    threads: set[int] = set()

    async def aget_connection(conn_id: str) -> Connection:
        extra = json.dumps({"workspace_root": "/ws", "memory": "1G"})
        return Connection(conn_id=conn_id, conn_type="slurm_ssh", host="login.example", login="ann", extra=extra)

    def exchange(_client: object, _command: str, stdin: bytes, *_: object) -> bytes:
        threads.add(threading.get_ident())
        mark = re.search(rb"ASI_MARK='([^']+)'", stdin)
        assert mark is not None
        return b"%s begin\n%s end 0\n" % (mark[1], mark[1])

    monkeypatch.setattr(BaseHook, "aget_connection", aget_connection)
    monkeypatch.setattr(ssh_exchange, "connect", lambda *_: None)
    monkeypatch.setattr(ssh_exchange, "exchange", exchange)
    return threads


async def _look(limit: float) -> Any:
    trigger = SlurmJobTrigger(handle(), poll_interval=0.1)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(anext(trigger.run()), limit)


def test_neither_looking_nor_cancelling_uses_it_from_a_thread(channel: Channel, remote_threads: set[int]) -> None:
    async def story() -> int:
        await _look(1)
        await observer.cancel(JobHandle.model_validate(handle()))
        return threading.get_ident()

    loop_thread = asyncio.run(story())
    assert remote_threads and loop_thread not in remote_threads
    assert channel.threads <= {loop_thread}
