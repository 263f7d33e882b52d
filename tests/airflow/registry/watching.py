# SPDX-License-Identifier: Apache-2.0
"""A tag that moves, a store that outlives triggerers, and a trigger that runs meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_slurm_images.triggers.registry import OciTagTrigger
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import (
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    REPOSITORY,
    MisbehavingRegistry,
    descriptor,
    digest_of,
    document,
)

INTERVAL = 0.05


class Store:
    """Airflow 3.3's store of one asset."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def aget(self, key: str, default: Any = None) -> Any:
        return json.loads(self.values[key]) if key in self.values else default

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = json.dumps(value)

    @property
    def state(self) -> dict[str, Any]:
        (value,) = self.values.values()
        return dict(json.loads(value))


class Registry(MisbehavingRegistry):
    """One tag that moves; ETags as real registries send them."""

    def put(self, text: str, wrapper: str | None = None) -> str:
        """Let the tag stand for another image (in an index where there is a wrapper); gives the image's digest."""
        config = document({"architecture": "amd64", "os": "linux", "author": text})
        layers = [{"mediaType": LAYER, "digest": "sha256:" + 64 * "1", "size": 7}]
        parts = {"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, config), "layers": layers}
        manifest = document(parts)
        self.script(f"/v2/{REPOSITORY}/blobs/{digest_of(config)}", Reply(200, config))
        self._put(f"/v2/{REPOSITORY}/manifests/{digest_of(manifest)}", manifest, MANIFEST)
        top, media_type = manifest, MANIFEST
        if wrapper is not None:
            entry = descriptor(MANIFEST, manifest, platform={"os": "linux", "architecture": "amd64"})
            index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry], "annotations": {"a": wrapper}}
            top, media_type = document(index), INDEX
        self._put(self.tag_path, top, media_type)
        return digest_of(manifest)

    def _put(self, path: str, content: bytes, media_type: str) -> None:
        digest = digest_of(content)
        headers = [("Content-Type", media_type), ("Docker-Content-Digest", digest), ("ETag", f'"{digest}"')]
        self.script(path, Reply(200, content, headers))

    def asked(self, method: str) -> int:
        return len([request for request in self.requests if request.method == method])


@asynccontextmanager
async def running(trigger: OciTagTrigger) -> AsyncIterator[list[dict[str, Any]]]:
    """Let the trigger run meanwhile as the triggerer does; gives the payloads as they come."""
    payloads: list[dict[str, Any]] = []

    async def collect() -> None:
        async for event in trigger.run():
            assert isinstance(event, TriggerEvent)
            payloads.append(event.payload)

    task = asyncio.create_task(collect())
    try:
        yield payloads
    finally:
        if task.done():
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 10 s")


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)
