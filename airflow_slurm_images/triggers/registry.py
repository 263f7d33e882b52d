# SPDX-License-Identifier: Apache-2.0
"""OciTagTrigger: an event whenever a tag comes to stand for another image, for ``AssetWatcher``."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_slurm_images.core.errors import InvalidRequestError, SlurmImagesError
from airflow_slurm_images.core.oci import ResolvedImage
from airflow_slurm_images.core.platform import Platform
from airflow_slurm_images.core.reference import TagReference
from airflow_slurm_images.hooks._oci_client import TagState
from airflow_slurm_images.hooks.registry import resolve_with
from airflow_slurm_images.triggers.registry_watch import SharedRegistry, WatchState

HANDED_OVER = 3.0
"""Seconds after which a fired event is in the database: the triggerer hands events over every second."""
_LONGEST_WAIT = 3600.0


@dataclass(frozen=True)
class _Known:
    """What is known of the tag: ``digest`` and ``etag`` as the registry's headers say, ``platform`` as resolved.

    ``event`` was or is to be fired, and it is not certain yet that it reached the database.
    """

    digest: str
    etag: str | None
    platform: str
    event: dict[str, Any] | None = None

    @classmethod
    def of(cls, kept: dict[str, Any] | None) -> _Known | None:
        """Keys of a later version are skipped; what cannot be read is as good as nothing."""
        kept = kept or {}
        if not all(isinstance(kept.get(name), str) for name in ("digest", "platform")):
            return None
        return cls(kept["digest"], kept.get("etag"), kept["platform"], kept.get("event"))

    @property
    def head(self) -> TagState:
        return TagState(self.digest, self.etag, changed=False)


class OciTagTrigger(BaseEventTrigger):
    """Fires when a tag moves to another image for one platform; payload: see :meth:`run`.

    :param image: ``[registry/]repository:tag``.
    :param registry_conn_id: connection of the registry (``oci_registry`` or ``docker``); none: anonymous.
    :param arch: architecture whose image counts, ``amd64`` or ``x86_64`` style.
    :param os: operating system in the index.
    :param variant: CPU variant such as ``v7``; none: the usual one.
    :param poll_interval: seconds between looks. A look is one conditional HEAD request, which registries that
        count pulls do not count; watchers of one registry and connection share its connections and its pauses.

    The first look only takes note. What is known is kept in the asset's state store (Airflow 3.3) or in an Airflow
    Variable named ``oci_tag_<hash>`` (before), so that a move while no triggerer ran fires once, afterwards. A
    triggerer that is killed in the three seconds after it fired fires again: an import of what is there costs no job.

    What can never be watched is an InvalidRequestError of :meth:`serialize`, where the DAG is parsed. Not of the
    constructor: a triggerer does not outlive that, and may have to make a trigger that an older version let through.
    """

    def __init__(
        self,
        image: str,
        registry_conn_id: str | None = None,
        arch: str = "amd64",
        os: str = "linux",
        variant: str | None = None,
        poll_interval: float = 300,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.image = image
        self.registry_conn_id = registry_conn_id
        self.arch = arch
        self.os = os
        self.variant = variant
        self.poll_interval = poll_interval
        self._wrong: InvalidRequestError | None = None
        try:
            self._ref = TagReference.parse(image)
            self._platform = Platform.requested(arch, os=os, variant=variant)
            if self._ref.tag is None or poll_interval <= 0:
                raise InvalidRequestError(f"{image!r} with poll_interval {poll_interval} is nothing to watch")
        except InvalidRequestError as err:
            self._wrong = err

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and JSON arguments; raises InvalidRequestError for what can never be watched."""
        if self._wrong is not None:
            raise self._wrong
        return self._named()

    def __repr__(self) -> str:
        return str(self.repr(*self._named()))

    def _named(self) -> tuple[str, dict[str, Any]]:
        names = ("image", "registry_conn_id", "arch", "os", "variant", "poll_interval")
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    @property
    def state_key(self) -> str:
        """Name of what this watcher keeps: what it looks at, not how often."""
        parts = [self.image, self.registry_conn_id, self.arch, self.os, self.variant]
        return f"oci_tag_{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look for ever; what fails is a line in the log, and looked at again, later each time.

        Also an author's mistake: Airflow starts an asset's trigger again as soon as it ended, so an end is a loop.

        Payload of an event: ``image`` as watched, ``reference`` pinned to the new image, ``old`` and ``new`` digest
        of the platform's manifest, ``index_digest`` or None, ``platform``.
        """
        while self._wrong is not None:
            self._tell(self._wrong)
            await asyncio.sleep(_LONGEST_WAIT)
        state: WatchState | None = None
        known: _Known | None = None
        kept: _Known | None = None  # of what is known, what the state store has
        failures = 0
        async with SharedRegistry.joined(self.registry_conn_id, self._ref.registry) as registry:
            while True:
                try:
                    if state is None:
                        state, known = await self._open()
                        kept = known
                    if known == kept and (known is None or known.event is None):
                        known = await self._look(registry, known)
                    if known is not None and known != kept:
                        await state.write(asdict(known))
                        kept = known
                    failures = 0
                except Exception as err:
                    failures += 1
                    self._tell(err)
                if state is not None and known is not None and known == kept and known.event is not None:
                    event, known = known.event, replace(known, event=None)
                    try:
                        yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                    except GeneratorExit:  # whoever closes us has the event
                        await state.write(asdict(known))
                        raise
                    await asyncio.sleep(HANDED_OVER)
                else:
                    await asyncio.sleep(self._delay(failures))

    async def _open(self) -> tuple[WatchState, _Known | None]:
        state = await WatchState.open(getattr(self, "asset_state_store", None), self.state_key)
        return state, _Known.of(await state.read())

    def _tell(self, err: Exception) -> None:
        if isinstance(err, InvalidRequestError):
            self.log.error("%s cannot be watched before this is corrected: %s", self.image, err)
        elif isinstance(err, SlurmImagesError):
            self.log.warning("%s: %s", self.image, err)
        else:
            self.log.exception("%s cannot be watched at present", self.image)

    async def _look(self, registry: SharedRegistry, known: _Known | None) -> _Known:
        """One look: the same state when nothing moved, else the new one, with the event to fire in it."""
        ref, wanted, tag = self._ref, self._platform, str(self._ref.tag)
        head = await registry.ask(
            ref, lambda client: client.head(ref.repository, tag, known.head if known is not None else None)
        )
        if known is not None and not head.changed:
            return known
        moving = TagReference(registry=ref.registry, repository=ref.repository, tag=ref.tag, digest=None)
        resolved = await registry.ask(ref, lambda client: resolve_with(client, moving, wanted))
        digest = resolved.index_digest or resolved.platform_digest
        etag = head.etag if head.digest == digest else None  # it may have moved between the two questions
        if known is None:
            self.log.info("%s is %s; watching it", self.image, resolved.platform_digest)
            return _Known(digest, etag, resolved.platform_digest)
        if resolved.platform_digest == known.platform:
            self.log.info("%s moved to %s, which holds the same image for %s", self.image, digest, resolved.platform)
            return _Known(digest, etag, known.platform)
        self.log.info("%s moved: old %s, new %s", self.image, known.platform, resolved.platform_digest)
        event = _payload(self.image, resolved, known.platform)
        return _Known(digest, etag, resolved.platform_digest, event)

    def _delay(self, failures: int) -> float:
        """The interval with a tenth of jitter, doubled with each failure in a row up to an hour."""
        longest = max(self.poll_interval, _LONGEST_WAIT)
        wait = min(longest, self.poll_interval * 2 ** min(max(failures - 1, 0), 10))
        return float(wait * random.uniform(1.0, 1.1))  # noqa: S311 - jitter


def _payload(image: str, resolved: ResolvedImage, old: str) -> dict[str, Any]:
    return {
        "image": image,
        "reference": resolved.reference,
        "old": old,
        "new": resolved.platform_digest,
        "index_digest": resolved.index_digest,
        "platform": resolved.platform,
    }
