# SPDX-License-Identifier: Apache-2.0
"""One look for all: however many tasks wait, one SSH connection and one remote command per cluster and interval.

The connection is resolved on the triggerer's loop (Airflow 3.1's channel breaks when a thread does that); the
finished hook then works in a thread, so that proxies, jump hosts and all else of the sync hook stay the same.
Observers are kept per running loop, connection and workspace. Only the rest of the output of jobs that have ended is
asked for out of turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from airflow.providers.common.compat.sdk import BaseHook

from airflow_slurm_images.cluster_protocol import Log, emit
from airflow_slurm_images.core.decide import Limits, Verdict
from airflow_slurm_images.core.observation import Observation, Watch
from airflow_slurm_images.core.records import CompletionRecord, JobHandle
from airflow_slurm_images.core.watch import JobWatch, Line
from airflow_slurm_images.hooks.slurm import KILL_SECONDS, KILL_TIMEOUT, SlurmHook
from airflow_slurm_images.hooks.ssh_exchange import ClusterAccessError
from airflow_slurm_images.triggers.channel import whole

Outcome = tuple[Verdict, CompletionRecord | None, int]

_PLACE = ("slurm_bin", "slurm_conf", "group")
"""Profile fields that say where and how the cluster is asked; the cluster's name stands in every handle."""
_ANSWER_BYTES = 4 * 1024 * 1024
"""Output of all jobs in one answer; shared fairly among the tasks that wait."""


@dataclass(eq=False)
class _Waiting:
    """One waiting task. News goes to its own coroutine: Airflow files log lines by the task that writes them."""

    watch: JobWatch
    interval: float
    due: float
    news: asyncio.Queue[list[Line] | Outcome | Exception] = field(default_factory=asyncio.Queue)


class SharedObserver:
    """Looks at all waiting jobs of one connection, one command at a time."""

    _all: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, str], SharedObserver]]] = (
        WeakKeyDictionary()
    )

    def __init__(
        self, hook: SlurmHook, renewed: Callable[[], Awaitable[SlurmHook]], forget: Callable[[], object]
    ) -> None:
        self._hook = hook
        self._renewed = renewed
        self._refused = False
        self._forget = forget
        self._waiting: set[_Waiting] = set()
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._last_look = float("-inf")

    @classmethod
    async def get(cls, handle: JobHandle) -> SharedObserver:
        """The observer of this loop for the handle's connection and workspace; it lives while somebody waits.

        The connection is looked up when the observer is made, and anew after a refused login: a key may have been
        changed, or a certificate renewed, while somebody waits all the time.
        """
        observers = cls._all.setdefault(asyncio.get_running_loop(), {})
        # Of a task's own profile only this changes what is asked; everything else must not cost a connection.
        profile = {name: handle.profile[name] for name in _PLACE if name in handle.profile}
        key = (handle.slurm_conn_id, handle.workspace, repr(sorted(profile.items())))
        if key not in observers:
            hook_now = partial(_hook, handle.model_copy(update={"profile": profile}))
            made = cls(await hook_now(), renewed=hook_now, forget=partial(observers.pop, key, None))
            observers.setdefault(key, made)
        return observers[key]

    async def wait(self, handle: JobHandle, limits: Limits, interval: float, stream: str, log: Log) -> Outcome:
        """Wait for one job; returns its verdict, record and id. Cancelling the wait leaves the job alone."""
        now = time.monotonic()
        watch = JobWatch(handle, limits, now, stream=stream, resume=True)
        waiting = _Waiting(watch, interval, due=now)
        self._waiting.add(waiting)
        self._changed.set()
        if self._task is None:
            # In an empty context: what it does belongs to no single task.
            self._task = contextvars.Context().run(asyncio.create_task, self._run())
        try:
            while True:
                news = await waiting.news.get()
                if isinstance(news, Exception):
                    raise news
                if isinstance(news, tuple):
                    return news
                emit(log, news)
        finally:
            self._waiting.discard(waiting)
            self._changed.set()

    async def _run(self) -> None:
        try:
            while await self._somebody_waits():
                delay = self._next_look() - time.monotonic()
                ending = [item for item in self._waiting if item.watch.ending]
                if delay <= 0:
                    self._last_look = time.monotonic()
                    await self._look(list(self._waiting))
                elif ending:  # an end is not held up by its output, which has an end too
                    await self._look(ending)
                else:
                    self._changed.clear()
                    with contextlib.suppress(asyncio.TimeoutError):  # another class than TimeoutError on 3.10
                        await asyncio.wait_for(self._changed.wait(), delay)
        except Exception as err:  # a fault of ours must not leave anybody waiting for ever
            for item in self._waiting:
                item.news.put_nowait(err)
            self._waiting.clear()
        finally:
            self._task = None

    async def _somebody_waits(self) -> bool:
        if self._waiting:
            return True
        self._forget()
        await asyncio.to_thread(self._hook.close)
        return bool(self._waiting)  # somebody may have come while the connection was closed

    def _next_look(self) -> float:
        """When the first task is due, but at most one look an interval, the shortest of all."""
        shortest = min(item.interval for item in self._waiting)
        return max(min(item.due for item in self._waiting), self._last_look + shortest)

    async def _look(self, waiting: list[_Waiting]) -> None:
        by_cluster: dict[str | None, list[_Waiting]] = {}
        for item in waiting:
            by_cluster.setdefault(item.watch.handle.cluster, []).append(item)
        for cluster, group in by_cluster.items():
            watches = [item.watch.request(_ANSWER_BYTES // len(group)) for item in group]
            try:
                seen = await self._ask(watches, cluster)
            except Exception as err:  # whatever it was, it is doubt, and doubt is never failure
                for item in group:
                    self._settle(item, getattr(err, "message", None) or repr(err))
                continue
            for item, observation in zip(group, seen, strict=True):
                self._settle(item, observation)

    async def _ask(self, watches: Sequence[Watch], cluster: str | None) -> list[Observation]:
        """One remote command; after a refused login over the connection as Airflow has it now."""
        if self._refused:
            await asyncio.to_thread(self._hook.close)
            self._hook = await self._renewed()
            self._refused = False
        try:
            return await asyncio.to_thread(self._hook.observe, watches, cluster)
        except ClusterAccessError:
            self._refused = True
            raise

    def _settle(self, item: _Waiting, seen: Observation | str) -> None:
        """Feed one task; what goes wrong with it stays with it."""
        now = time.monotonic()
        try:
            if isinstance(seen, str):
                verdict, lines = item.watch.feed_failure(seen, now)
            else:
                verdict, lines = item.watch.feed(seen, now)
            item.due = now + item.watch.delay(item.interval, random.random())  # noqa: S311 - jitter
            item.news.put_nowait(lines)
            if verdict.kind == "wait":
                return
            item.news.put_nowait((verdict, item.watch.record, item.watch.job_id))
        except Exception as err:
            item.news.put_nowait(err)
        self._waiting.discard(item)


async def cancel(handle: JobHandle, generation: int | None = None) -> None:
    """``scancel`` the job by its name, over a fresh connection and without retries: Airflow allows seconds.

    The name is one task's alone, and which of two jobs runs the attempt may not be known here. A later generation of
    tries than the handle's, or than ``generation``, has adopted or replaced the job already: it is left alone then.
    """
    hook = await _hook(handle, connect_attempts=1, conn_timeout=KILL_SECONDS)
    try:
        cancelling = partial(hook.cancel, generation=generation or handle.generation)
        await asyncio.to_thread(cancelling, None, handle.job_name, handle.cluster, KILL_TIMEOUT)
    finally:
        await asyncio.to_thread(hook.close)


async def _hook(handle: JobHandle, **options: Any) -> SlurmHook:
    connection = await whole(BaseHook.aget_connection(handle.slurm_conn_id))
    profile = {**handle.profile, "workspace_root": handle.workspace}
    return SlurmHook(handle.slurm_conn_id, profile, connection=connection, **options)
