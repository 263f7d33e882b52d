# SPDX-License-Identifier: Apache-2.0
"""OciTagTrigger goes on through whatever fails: the registry, the login, the state, the author."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_slurm_images.core.errors import InvalidRequestError, RegistryError
from airflow_slurm_images.core.reference import TagReference
from airflow_slurm_images.triggers import registry_watch
from airflow_slurm_images.triggers.registry import OciTagTrigger
from airflow_slurm_images.triggers.registry_watch import SharedRegistry
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import REPOSITORY, errors

from .watching import Registry, Store, play, running, until


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
