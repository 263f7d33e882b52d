# SPDX-License-Identifier: Apache-2.0
"""OciTagTrigger: every move of a tag fires once, whatever happens to the triggerer and the registry."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseHook
from airflow.triggers.base import TriggerEvent

from airflow_slurm_images.core.errors import InvalidRequestError, RegistryError
from airflow_slurm_images.core.reference import TagReference
from airflow_slurm_images.hooks._oci_client import OciClient
from airflow_slurm_images.triggers import registry as trigger_module
from airflow_slurm_images.triggers import registry_watch
from airflow_slurm_images.triggers.registry import OciTagTrigger
from airflow_slurm_images.triggers.registry_watch import SharedRegistry
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import (
    CONFIG,
    LAYER,
    MANIFEST,
    REPOSITORY,
    MisbehavingRegistry,
    descriptor,
    digest_of,
    document,
    errors,
)

INTERVAL = 0.05
INDEX = "application/vnd.oci.image.index.v1+json"


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


@pytest.fixture
def server() -> Iterator[Registry]:
    with Registry() as running:
        assert isinstance(running, Registry)
        yield running


@pytest.fixture
def trigger(server: Registry, connect: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., OciTagTrigger]:
    """Make a trigger for the tag; another one with the same store is the one of a restarted triggerer."""
    monkeypatch.setattr(trigger_module, "HANDED_OVER", 0.01)
    conn_id = connect(server.address)

    def make(store: Store | None = None, **arguments: Any) -> OciTagTrigger:
        arguments = {"image": server.image, "registry_conn_id": conn_id, "poll_interval": INTERVAL, **arguments}
        path, serialized = OciTagTrigger(**arguments).serialize()
        assert path == "airflow_slurm_images.triggers.registry.OciTagTrigger"
        made = OciTagTrigger(**json.loads(json.dumps(serialized)))
        made.asset_state_store = store  # type: ignore[assignment]
        return made

    return make


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


# -- moves


def test_a_move_fires_once_with_old_and_new(server: Registry, trigger: Callable[..., OciTagTrigger]) -> None:
    async def story() -> None:
        store, old = Store(), server.put("old")
        async with running(trigger(store)) as payloads:
            await until(lambda: bool(store.values))
            new = server.put("new")
            await until(lambda: bool(payloads))
            await until(lambda: store.state["event"] is None)
            looks = server.asked("HEAD")
            await until(lambda: server.asked("HEAD") > looks + 2)
        assert payloads == [
            {
                "image": server.image,
                "reference": f"{server.image}@{new}",
                "old": old,
                "new": new,
                "index_digest": None,
                "platform": "linux/amd64",
            }
        ]

    play(story())


def test_looking_costs_conditional_heads_and_nothing_else(
    server: Registry, trigger: Callable[..., OciTagTrigger]
) -> None:
    async def story() -> None:
        digest = server.put("old")
        async with running(trigger(Store())):
            await until(lambda: server.asked("HEAD") > 3)
        heads = [request for request in server.requests if request.method == "HEAD"]
        assert heads[0].headers.get("If-None-Match") is None
        assert {head.headers["If-None-Match"] for head in heads[1:]} == {f'"{digest}"'}
        assert server.asked("GET") == 2  # manifest and config, at the first look

    play(story())


def test_an_index_that_moves_around_the_same_image_is_no_event(
    server: Registry, trigger: Callable[..., OciTagTrigger]
) -> None:
    async def story() -> None:
        store, digest = Store(), server.put("same", wrapper="first")
        async with running(trigger(store)) as payloads:
            await until(lambda: bool(store.values))
            before = store.state["digest"]
            assert server.put("same", wrapper="second") == digest
            await until(lambda: store.state["digest"] != before)
            assert store.state["platform"] == digest and payloads == []

    play(story())


# -- restarts


def test_a_move_while_no_triggerer_ran_fires_once_afterwards(
    server: Registry, trigger: Callable[..., OciTagTrigger]
) -> None:
    async def story() -> None:
        store, old = Store(), server.put("old")
        async with running(trigger(store)):
            await until(lambda: bool(store.values))
        server.put("between")
        new = server.put("new")
        async with running(trigger(store)) as payloads:
            await until(lambda: bool(payloads))
            await until(lambda: store.state["event"] is None)
        async with running(trigger(store)) as again:
            looks = server.asked("HEAD")
            await until(lambda: server.asked("HEAD") > looks + 2)
        assert [(payload["old"], payload["new"]) for payload in payloads + again] == [(old, new)]

    play(story())


def test_a_trigger_that_is_closed_after_its_event_does_not_repeat_it(
    server: Registry, trigger: Callable[..., OciTagTrigger]
) -> None:
    async def story() -> None:
        store = Store()
        server.put("old")
        async with running(trigger(store)):
            await until(lambda: bool(store.values))
        server.put("new")
        events = trigger(store).run()
        await asyncio.wait_for(anext(events), 10)
        await events.aclose()  # type: ignore[attr-defined]
        async with running(trigger(store)) as again:
            looks = server.asked("HEAD")
            await until(lambda: server.asked("HEAD") > looks + 2)
        assert again == []

    play(story())


def test_an_event_that_may_not_have_arrived_is_fired_again(
    server: Registry, trigger: Callable[..., OciTagTrigger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The triggerer died within seconds; nobody knows whether the event reached the database."""
    monkeypatch.setattr(trigger_module, "HANDED_OVER", 60)

    async def story() -> None:
        store = Store()
        server.put("old")
        async with running(trigger(store)):
            await until(lambda: bool(store.values))
        server.put("new")
        async with running(trigger(store)) as first:
            await until(lambda: bool(first))
        async with running(trigger(store)) as second:
            await until(lambda: bool(second))
        assert second == first

    play(story())


def test_without_an_asset_store_a_variable_keeps_the_state(
    server: Registry, trigger: Callable[..., OciTagTrigger], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables: dict[str, Any] = {}
    monkeypatch.setattr(registry_watch, "_read_variable", variables.get)
    monkeypatch.setattr(registry_watch, "_write_variable", variables.__setitem__)

    class ManyAssets:
        async def aget(self, key: str) -> Any:
            raise ValueError("Task has 2 concrete inlets and outlets")

    async def story() -> None:
        server.put("old")
        for store in (None, ManyAssets()):
            async with running(trigger(store)) as payloads:
                looks = server.asked("HEAD")
                await until(lambda start=looks: server.asked("HEAD") > start)  # type: ignore[misc]
                await until(lambda: bool(variables))
                assert payloads == []
        server.put("new")
        async with running(trigger(None)) as payloads:
            await until(lambda: bool(payloads))
        (name,) = variables
        assert name.startswith("oci_tag_") and len(name) < 60

    play(story())


def test_what_is_kept_belongs_to_what_is_watched_not_to_how_often(trigger: Callable[..., OciTagTrigger]) -> None:
    assert trigger().state_key == trigger(poll_interval=9).state_key
    assert len({trigger().state_key, trigger(arch="arm64").state_key, trigger(image="a/b:c").state_key}) == 3


# -- registries on bad days


def test_a_registry_that_fails_is_a_line_in_the_log(
    server: Registry,
    trigger: Callable[..., OciTagTrigger],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(registry_watch, "_OUTAGE_PAUSE", 0.05)
    caplog.set_level(logging.WARNING)

    async def story() -> None:
        store = Store()
        server.put("old")
        async with running(trigger(store)) as payloads:
            await until(lambda: bool(store.values))
            for bad in (Reply(500), errors(404, "MANIFEST_UNKNOWN"), errors(401, "UNAUTHORIZED")):
                server.script(server.tag_path, bad)
                looks = server.asked("HEAD")
                await until(lambda start=looks: server.asked("HEAD") > start + 1)  # type: ignore[misc]
            server.put("new")
            await until(lambda: bool(payloads))

    play(story())


def test_a_pause_that_the_registry_asks_for_holds_for_all_its_watchers(
    server: Registry, trigger: Callable[..., OciTagTrigger]
) -> None:
    async def story() -> None:
        server.put("old")
        async with running(trigger(Store())), running(trigger(Store(), arch="x86_64")):
            await until(lambda: server.asked("HEAD") > 4)
            server.script(server.tag_path, Reply(429, headers=[("Retry-After", "2")]))
            await until(lambda: bool([r for r in server.requests if r.method == "HEAD"]))
            await asyncio.sleep(0.5)
            looks = server.asked("HEAD")
            await asyncio.sleep(1.0)
            assert server.asked("HEAD") == looks
            server.put("old")
            await until(lambda: server.asked("HEAD") > looks)

    play(story())


@pytest.mark.parametrize(
    ("status", "after", "longest"),
    [(429, "70", 70), (429, "900000000", 6 * 3600), (503, "600", 600), (503, None, 15), (429, None, 60)],
)
def test_a_pause_is_as_long_as_the_registry_says_but_never_for_good(
    server: Registry, connect: Any, status: int, after: str | None, longest: float
) -> None:
    conn_id = connect(server.address)
    server.script(server.tag_path, Reply(status, headers=[("Retry-After", after)] if after else []))
    ref = TagReference.parse(server.image)

    async def story() -> None:
        async with SharedRegistry.joined(conn_id, ref.registry) as registry:
            with pytest.raises(RegistryError):
                await registry.ask(ref, lambda client: client.head(REPOSITORY, "1.0"))
            pause = registry._not_before - time.monotonic()
            assert longest - 5 < pause <= longest

    play(story())


@pytest.mark.parametrize("kept", [{"digest": 5}, {"etag": None}, "text", {}])
def test_a_state_that_cannot_be_read_is_started_afresh(
    server: Registry, trigger: Callable[..., OciTagTrigger], kept: Any
) -> None:
    async def story() -> None:
        store, made = Store(), trigger()
        await store.aset(made.state_key, kept)
        digest = server.put("old")
        async with running(trigger(store)) as payloads:
            await until(lambda: digest in next(iter(store.values.values())))
            assert payloads == []

    play(story())


def test_keys_of_a_later_version_do_not_stop_the_watch(server: Registry, trigger: Callable[..., OciTagTrigger]) -> None:
    async def story() -> None:
        store, made = Store(), trigger()
        old, new = server.put("old"), server.put("new")
        await store.aset(made.state_key, {"digest": old, "etag": None, "platform": old, "event": None, "later": 1})
        async with running(trigger(store)) as payloads:
            await until(lambda: [payload["new"] for payload in payloads] == [new])

    play(story())


def test_a_login_that_was_renewed_is_read_again(
    server: Registry, trigger: Callable[..., OciTagTrigger], connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        server.put("old")
        connect(server.address, login="robot", password="expired-token")
        refusal = errors(401, "UNAUTHORIZED")
        refusal.headers.append(("WWW-Authenticate", 'Basic realm="x"'))
        healthy = server._script[server.tag_path]
        server.script(server.tag_path, refusal)
        store = Store()
        async with running(trigger(store)):
            await until(lambda: server.asked("HEAD") > 1)
            connect(server.address, login="robot", password="renewed-token")
            server.script(server.tag_path, refusal, *healthy)
            await until(lambda: bool(store.values))
        assert len(set(server.authorizations)) == 2

    play(story())


# -- sharing


def test_watchers_of_one_registry_share_a_client_and_its_connection_is_read_on_the_loop(
    server: Registry, trigger: Callable[..., OciTagTrigger], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    threads: list[threading.Thread] = []
    client, get = OciClient, BaseHook.aget_connection

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(client(*arguments, **options))
        return made[-1]

    async def noted(conn_id: str) -> Any:
        threads.append(threading.current_thread())
        return await get(conn_id)

    monkeypatch.setattr(f"{registry_watch.__name__}.OciClient", counted)
    monkeypatch.setattr(BaseHook, "aget_connection", noted)

    async def story() -> None:
        server.put("old")
        async with running(trigger(Store())), running(trigger(Store(), arch="x86_64")):
            async with running(trigger(Store(), poll_interval=0.1)):
                await until(lambda: server.asked("HEAD") > 10)
            await until(lambda: server.asked("HEAD") > 12)
        assert len(made) == 1 and threads == [threading.main_thread()]
        assert made[0]._transport._client.is_closed
        async with running(trigger(Store())):
            await until(lambda: len(made) == 2)

    play(story())


def test_secrets_are_masked_on_the_loop_before_they_are_used(
    server: Registry, trigger: Callable[..., OciTagTrigger], connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked: list[str] = []

    async def amask(secret: str) -> None:
        assert threading.current_thread() is threading.main_thread()
        masked.append(secret)

    monkeypatch.setattr("airflow.sdk.log.amask_secret", amask, raising=False)
    connect(server.address, login="robot", password="a-password")

    async def story() -> None:
        server.put("old")
        async with running(trigger(Store())):
            await until(lambda: server.asked("HEAD") > 0)

    play(story())
    assert "a-password" in masked  # Airflow 3.3 does so too when it reads the connection
    assert base64.b64encode(b"robot:a-password").decode() in masked


@pytest.mark.parametrize(
    "arguments",
    [
        {"image": "other.example/a/b:c"},
        {"image": "127.0.0.1:1/a/b@sha256:" + 64 * "a"},
        {"image": "No Image"},
        {"arch": "no arch"},
        {"poll_interval": 0},
    ],
)
def test_what_the_author_has_to_correct_ends_the_watch(
    server: Registry, trigger: Callable[..., OciTagTrigger], arguments: dict[str, Any]
) -> None:
    async def story() -> None:
        server.put("old")
        with pytest.raises(InvalidRequestError):
            await asyncio.wait_for(anext(trigger(Store(), **arguments).run()), 10)

    play(story())
