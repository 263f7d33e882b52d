# SPDX-License-Identifier: Apache-2.0
"""One look for all: however many tasks wait, one SSH connection and one remote command per cluster and interval.

The connection is resolved on the triggerer's loop (Airflow 3.1's channel breaks when a thread does that); the
finished hook then works in a thread, so that proxies, jump hosts and all else of the sync hook stay the same.
Observers are kept per running loop, connection and workspace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from airflow.providers.common.compat.sdk import BaseHook

from airflow_slurm_images.core.decide import Limits, Verdict
from airflow_slurm_images.core.errors import SlurmImagesError
from airflow_slurm_images.core.observation import Observation
from airflow_slurm_images.core.records import CompletionRecord, JobHandle
from airflow_slurm_images.core.watch import JobWatch
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.lifecycle import emit

Outcome = tuple[Verdict, CompletionRecord | None, int]

_ANSWER_BYTES = 4 * 1024 * 1024
"""Output of all jobs in one answer; shared fairly among the tasks that wait."""


@dataclass(eq=False)
class _Waiting:
    watch: JobWatch
    interval: float
    log: Any
    due: float
    done: asyncio.Future[Outcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class SharedObserver:
    """Looks at all waiting jobs of one connection, one command at a time."""

    _all: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, str], SharedObserver]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, hook: SlurmHook) -> None:
        self._hook = hook
        self._lock = asyncio.Lock()
        self._waiting: set[_Waiting] = set()
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @classmethod
    async def get(cls, handle: JobHandle) -> SharedObserver:
        """The observer of this loop for the handle's connection and workspace; made on first use."""
        observers = cls._all.setdefault(asyncio.get_running_loop(), {})
        key = (handle.slurm_conn_id, handle.workspace, repr(sorted(handle.profile.items())))
        if key not in observers:
            connection = await BaseHook.aget_connection(handle.slurm_conn_id)
            hook = SlurmHook(
                handle.slurm_conn_id,
                {**handle.profile, "workspace_root": handle.workspace},
                connection=connection,
            )
            observers.setdefault(key, cls(hook))
        return observers[key]

    async def wait(
        self, handle: JobHandle, limits: Limits, interval: float, stream: str, log: logging.Logger | Any
    ) -> Outcome:
        """Wait for one job; returns its verdict, record and id. Cancelling the wait leaves the job alone."""
        now = time.monotonic()
        watch = JobWatch(handle, limits, now, stream=stream, resume=True)
        waiting = _Waiting(watch, interval, log, due=now)
        self._waiting.add(waiting)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            return await waiting.done
        finally:
            self._waiting.discard(waiting)
            self._changed.set()

    async def cancel(self, handle: JobHandle) -> None:
        """``scancel`` one job under its name; errors are a log line, the job's fate is not changed."""
        async with self._lock:
            try:
                await asyncio.to_thread(self._hook.cancel, handle.job_id, handle.job_name, handle.cluster)
            except SlurmImagesError as err:
                logging.getLogger(__name__).error("Job %s could not be cancelled: %s", handle.job_id, err)

    async def _run(self) -> None:
        """Look whenever the first task is due; those due within the same tenth of an interval come along."""
        try:
            while self._waiting:
                wake = min(item.due for item in self._waiting)
                delay = wake - time.monotonic()
                if delay > 0:
                    self._changed.clear()
                    with contextlib.suppress(asyncio.TimeoutError):  # another class than TimeoutError on 3.10
                        await asyncio.wait_for(self._changed.wait(), delay)
                    continue
                await self._look(list(self._waiting))
        finally:
            async with self._lock:
                await asyncio.to_thread(self._hook.close)

    async def _look(self, waiting: list[_Waiting]) -> None:
        by_cluster: dict[str | None, list[_Waiting]] = {}
        for item in waiting:
            by_cluster.setdefault(item.watch.handle.cluster, []).append(item)
        for cluster, group in by_cluster.items():
            watches = [item.watch.request(_ANSWER_BYTES // len(group)) for item in group]
            try:
                async with self._lock:
                    seen = await asyncio.to_thread(self._hook.observe, watches, cluster)
            except SlurmImagesError as err:
                for item in group:
                    self._settle(item, err.message)
                continue
            for item, observation in zip(group, seen, strict=True):
                self._settle(item, observation)

    def _settle(self, item: _Waiting, seen: Observation | str) -> None:
        """Feed one task; what goes wrong with it stays with it."""
        now = time.monotonic()
        try:
            if isinstance(seen, str):
                verdict, lines = item.watch.feed_failure(seen, now)
            else:
                verdict, lines = item.watch.feed(seen, now)
            emit(item.log, lines)
            item.due = now + item.watch.delay(item.interval, random.random())  # noqa: S311 - jitter
            if verdict.kind != "wait" and not item.done.done():
                item.done.set_result((verdict, item.watch.record, item.watch.job_id))
        except Exception as err:
            if not item.done.done():
                item.done.set_exception(err)
        if item.done.done():
            self._waiting.discard(item)
