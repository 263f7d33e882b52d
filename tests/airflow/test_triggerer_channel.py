# SPDX-License-Identifier: Apache-2.0
"""The triggerer's channel to its supervisor: on Airflow 3.1 a message from a thread breaks it for every trigger."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseHook, Connection
from airflow.sdk.execution_time import task_runner
from asgiref.sync import async_to_sync

from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.core.reference import TagReference
from airflow_slurm_images.hooks import ssh_exchange
from airflow_slurm_images.triggers import images, observer, registry_watch
from airflow_slurm_images.triggers.images import SlurmJobTrigger
from airflow_slurm_images.triggers.registry_watch import SharedRegistry, WatchState
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


# -- who asks and is cancelled before the answer comes


class OrderedChannel:
    """As Airflow 3.1's: the next to ask reads the answer that a given up exchange left there, and all is over."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._answers: asyncio.Queue[int] = asyncio.Queue()
        self._numbers = itertools.count()
        self.asked = asyncio.Event()

    async def ask(self, *_: object) -> Any:
        number = next(self._numbers)
        async with self._lock:
            self.asked.set()
            asyncio.get_running_loop().call_later(0.2, self._answers.put_nowait, number)
            assert await self._answers.get() == number, "read out of order"
        return Connection(conn_id="c", conn_type="slurm_ssh", host="login.example", extra='{"workspace_root": "/ws"}')

    def ask_from_a_thread(self, **_: object) -> Any:
        return async_to_sync(self.ask)()


def _deferred() -> SlurmJobTrigger:
    trigger = SlurmJobTrigger(handle())
    trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1)  # type: ignore[assignment]
    return trigger


async def _ask_registry() -> None:
    tag = TagReference.parse("registry.example/team/app:latest")
    async with SharedRegistry.joined("registry", tag.registry) as registry:
        await registry.ask(tag, lambda client: None)


QUESTIONS: dict[str, Callable[[OrderedChannel], Awaitable[Any]]] = {
    "connection": lambda _: anext(_deferred().run()),
    "kill": lambda _: _deferred().on_kill(),
    "state": lambda _: _deferred()._task_state(),
    "registry": lambda _: _ask_registry(),
    "store": lambda channel: WatchState.open(SimpleNamespace(aget=channel.ask), "k"),
    "read": lambda channel: WatchState(SimpleNamespace(aget=channel.ask), "k").read(),
    "write": lambda channel: WatchState(SimpleNamespace(aset=channel.ask), "k").write({}),
    "variable": lambda _: WatchState(None, "k").read(),
}


@pytest.fixture
def put_in_place(monkeypatch: pytest.MonkeyPatch) -> Callable[[OrderedChannel], None]:
    def put(channel: OrderedChannel) -> None:
        monkeypatch.setattr(BaseHook, "aget_connection", channel.ask)
        monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", channel.ask_from_a_thread)
        monkeypatch.setattr(registry_watch, "_read_variable", lambda _: channel.ask_from_a_thread())

    return put


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_trigger_cancelled_while_it_asks_leaves_it_whole(
    put_in_place: Callable[[OrderedChannel], None], question: str
) -> None:
    async def story() -> None:
        channel = OrderedChannel()
        put_in_place(channel)
        asking = asyncio.ensure_future(QUESTIONS[question](channel))
        await channel.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await channel.ask()  # somebody else

    asyncio.run(asyncio.wait_for(story(), 20))


def test_an_answer_that_comes_too_late_leaves_it_whole(
    put_in_place: Callable[[OrderedChannel], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_STATE_SECONDS", 0.05)

    async def story() -> None:
        channel = OrderedChannel()
        put_in_place(channel)
        assert await _deferred()._task_state() is None
        await channel.ask()  # somebody else

    asyncio.run(asyncio.wait_for(story(), 20))
