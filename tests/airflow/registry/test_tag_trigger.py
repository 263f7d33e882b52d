# SPDX-License-Identifier: Apache-2.0
"""OciTagTrigger: every move of a tag fires once, whatever happens to the triggerer; watchers share what they can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseHook

from airflow_slurm_images.hooks._oci_client import OciClient
from airflow_slurm_images.triggers import registry as trigger_module
from airflow_slurm_images.triggers import registry_watch
from airflow_slurm_images.triggers.registry import OciTagTrigger

from .watching import Registry, Store, play, running, until

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
