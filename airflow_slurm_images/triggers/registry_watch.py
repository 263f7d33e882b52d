# SPDX-License-Identifier: Apache-2.0
"""One client for all watchers of a registry, and the state that outlives a triggerer.

The client works in a thread and never calls Airflow; its connection is resolved on the triggerer's loop, and the login
that has to be masked is told to Airflow there too (Airflow 3.1's channel breaks when a thread does that). Clients are
kept per running loop, connection and registry; they ask one thing at a time and pause together when the registry
says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from airflow.providers.common.compat.sdk import BaseHook
from airflow.sdk import log as sdk_log
from asgiref.sync import sync_to_async

from airflow_slurm_images.core.endpoint import RegistryEndpoint
from airflow_slurm_images.core.errors import (
    RegistryAuthError,
    RegistryError,
    RegistryRateLimitedError,
    RegistryUnavailableError,
)
from airflow_slurm_images.core.reference import TagReference
from airflow_slurm_images.hooks._oci_client import OciClient
from airflow_slurm_images.hooks._oci_http import Limits, Transport
from airflow_slurm_images.hooks.registry import endpoint_of, serving
from airflow_slurm_images.triggers.channel import whole

_T = TypeVar("_T")

_ONE_ATTEMPT = Limits(attempts=1, total=60)
"""Waiting is done on the loop, where it holds no thread."""
_RATE_PAUSE = 60.0
_OUTAGE_PAUSE = 15.0
_LONGEST_PAUSE = 6 * 3600.0
"""Registries count pulls in windows of at most six hours; a longer ``Retry-After`` is a mistake (a date, a unit)."""


class SharedRegistry:
    """The client of one registry and connection in one triggerer; use it with :meth:`joined`."""

    _all: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str | None, str], SharedRegistry]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, conn_id: str | None) -> None:
        self._conn_id = conn_id
        self._lock = asyncio.Lock()
        self._client: OciClient | None = None
        self._not_before = 0.0
        self._users = 0

    @classmethod
    @asynccontextmanager
    async def joined(cls, conn_id: str | None, registry: str) -> AsyncIterator[SharedRegistry]:
        """The client of this loop, made by the first watcher and closed by the last."""
        clients = cls._all.setdefault(asyncio.get_running_loop(), {})
        shared = clients.setdefault((conn_id, registry), cls(conn_id))
        shared._users += 1
        try:
            yield shared
        finally:
            shared._users -= 1
            if shared._users == 0:
                clients.pop((conn_id, registry), None)
                shared._drop()

    async def ask(self, ref: TagReference, question: Callable[[OciClient], _T]) -> _T:
        """Put a question to the registry of ``ref``, after any pause it asked for.

        Raises what the client raises, InvalidRequestError for a connection to another registry.
        """
        async with self._lock:
            await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
            client = await self._get(ref)
            try:
                return await asyncio.to_thread(question, client)
            except RegistryRateLimitedError as err:
                self._pause(err, _RATE_PAUSE)
                raise
            except RegistryUnavailableError as err:
                self._pause(err, _OUTAGE_PAUSE)
                raise
            except RegistryAuthError:
                self._drop()  # the connection is read again at the next look: logins get renewed
                raise

    async def _get(self, ref: TagReference) -> OciClient:
        if self._client is None:
            connection = await whole(BaseHook.aget_connection(self._conn_id)) if self._conn_id else None
            endpoint = serving(endpoint_of(connection) if connection else None, ref, self._conn_id)
            await _mask(endpoint)
            self._client = OciClient(endpoint, transport=Transport(_ONE_ATTEMPT))
        serving(self._client.endpoint, ref, self._conn_id)
        return self._client

    def _pause(self, err: RegistryError, usual: float) -> None:
        """As long as the registry says, but never for good: the watchers would be blind."""
        asked = err.details.get("retry_after")
        seconds = usual if asked is None else min(float(asked), _LONGEST_PAUSE)
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


async def _mask(endpoint: RegistryEndpoint) -> None:
    for secret in endpoint.secrets:
        if hasattr(sdk_log, "amask_secret"):  # Airflow 3.3
            await whole(sdk_log.amask_secret(secret))
        else:
            sdk_log.mask_secret(secret)


class WatchState:
    """What one watcher keeps: Airflow's asset state store (3.3), else an Airflow Variable.

    Before 3.3, and where one trigger watches for several assets, there is no store of the asset; a Variable named
    after the watcher serves. Both are in the metadata database and outlive triggerers.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key

    @classmethod
    async def open(cls, store: Any, key: str) -> WatchState:
        """Use ``store`` (the trigger's ``asset_state_store`` or None) if it can hold the state."""
        if store is not None:
            try:
                await whole(store.aget(key))
            except ValueError:  # several assets: it wants to be told which
                store = None
        return cls(store, key)

    async def read(self) -> dict[str, Any] | None:
        """The state of the last run, or None."""
        if self._store is not None:
            value = await whole(self._store.aget(self._key))
        else:
            value = await whole(sync_to_async(_read_variable)(self._key))
        return value if isinstance(value, dict) else None

    async def write(self, value: dict[str, Any]) -> None:
        """Keep ``value``."""
        if self._store is not None:
            await whole(self._store.aset(self._key, value))
        else:
            await whole(sync_to_async(_write_variable)(self._key, value))


def _read_variable(key: str) -> Any:
    from airflow.sdk import Variable

    return Variable.get(key, default=None, deserialize_json=True)


def _write_variable(key: str, value: dict[str, Any]) -> None:
    from airflow.sdk import Variable

    Variable.set(key, value, description="State of an OciTagTrigger; delete it to start afresh", serialize_json=True)
