# SPDX-License-Identifier: Apache-2.0
"""OciTagTrigger goes on through whatever fails: the registry, the login, the state, the author."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
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


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the trigger tells; Airflow's own loggers tell it past pytest."""
    monkeypatch.setattr(OciTagTrigger, "log", logging.getLogger("trigger of the test"))
    caplog.set_level(logging.WARNING)
    return caplog


def test_a_registry_that_fails_is_a_line_in_the_log(
    server: Registry,
    trigger: Callable[..., OciTagTrigger],
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(registry_watch, "_OUTAGE_PAUSE", 0.05)

    async def story() -> None:
        store = Store()
        server.put("old")
        async with running(trigger(store)) as payloads:
            await until(lambda: bool(store.values))
            bad_days = {
                "status 500": Reply(500),
                "unknown tag 1.0": errors(404, "MANIFEST_UNKNOWN"),
                "of a kind that is not supported": errors(401, "UNAUTHORIZED"),
            }
            for said, bad in bad_days.items():
                server.script(server.tag_path, bad)
                looks = server.asked("HEAD")
                await until(lambda start=looks: server.asked("HEAD") > start + 1)  # type: ignore[misc]
                (line,) = {record.getMessage() for record in log.records if said in record.getMessage()}
                assert line.startswith(f"{server.image}: ")
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


# -- mistakes


never = pytest.mark.parametrize(
    "arguments",
    [
        {"image": "127.0.0.1:1/a/b@sha256:" + 64 * "a"},
        {"image": "No Image"},
        {"arch": "no arch"},
        {"poll_interval": 0},
    ],
)


@never
def test_what_can_never_be_watched_is_said_where_the_dag_is_parsed(arguments: dict[str, Any]) -> None:
    """Airflow serializes an asset's trigger there."""
    trigger = OciTagTrigger(**{"image": "team/app:1.0", **arguments})
    with pytest.raises(InvalidRequestError):
        trigger.serialize()


@never
def test_a_triggerer_bears_what_can_never_be_watched(arguments: dict[str, Any], log: pytest.LogCaptureFixture) -> None:
    """Another version of this package may have let it through; an error of the constructor would end the triggerer."""
    trigger = OciTagTrigger(**{"image": "team/app:1.0", **arguments})
    assert "OciTagTrigger" in repr(trigger)

    async def watch() -> None:
        await anext(trigger.run())

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(watch(), 0.2))
    assert log.text.count("cannot be watched before this is corrected") == 1


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that a trigger means to make, in seconds of an interval of one; they take almost no time."""
    meant: list[float] = []
    delay = OciTagTrigger._delay

    def quick(self: OciTagTrigger, failures: int) -> float:
        meant.append(delay(OciTagTrigger("a/b:c", poll_interval=1), failures))
        return 0.01

    monkeypatch.setattr(OciTagTrigger, "_delay", quick)
    return meant


class BrokenStore(Store):
    """A database that is away; later it comes back."""

    broken = True

    async def aget(self, key: str, default: Any = None) -> Any:
        if self.broken:
            raise RuntimeError("the database is away")
        return await super().aget(key, default)

    async def aset(self, key: str, value: Any) -> None:
        if self.broken:
            raise RuntimeError("the database is away")
        await super().aset(key, value)


def grows(delays: list[float]) -> bool:
    """Each wait is about twice the one before."""
    return all(earlier * 1.5 < later for earlier, later in itertools.pairwise(delays[:5]))


@pytest.mark.parametrize(
    ("mistake", "said"),
    [("a connection for another host", "connection images is for other.example"), ("no connection", "none_such")],
)
def test_what_the_author_has_to_correct_is_said_and_the_watch_goes_on_once_it_is(
    server: Registry,
    trigger: Callable[..., OciTagTrigger],
    connect: Any,
    delays: list[float],
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    mistake: str,
    said: str,
) -> None:
    conn_id = "images" if mistake == "a connection for another host" else "none_such"
    connect("other.example")

    async def story() -> None:
        store = Store()
        server.put("old")
        async with running(trigger(store, registry_conn_id=conn_id)) as payloads:
            await until(lambda: len(delays) > 5)
            assert said in log.text and server.requests == [] and grows(delays)
            connect(server.address)
            monkeypatch.setenv("AIRFLOW_CONN_NONE_SUCH", os.environ["AIRFLOW_CONN_IMAGES"])
            await until(lambda: bool(store.values))
            server.put("new")
            await until(lambda: bool(payloads))

    play(story())


def test_a_state_store_that_fails_does_not_end_the_watch_nor_lose_a_move(
    server: Registry, trigger: Callable[..., OciTagTrigger], delays: list[float], log: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        store, old = BrokenStore(), server.put("old")
        async with running(trigger(store)) as payloads:
            await until(lambda: len(delays) > 5)
            assert "the database is away" in log.text and grows(delays)
            store.broken = False
            await until(lambda: bool(store.values))
            store.broken = True
            new = server.put("new")
            looks = len(delays)
            await until(lambda: len(delays) > looks + 5)
            assert payloads == []  # what is not kept yet is not fired: nobody would know of it afterwards
            store.broken = False
            await until(lambda: bool(payloads))
            await until(lambda: store.state["event"] is None)
            looks = len(delays)
            await until(lambda: len(delays) > looks + 2)
        assert [(payload["old"], payload["new"]) for payload in payloads] == [(old, new)]

    play(story())


def test_an_event_that_could_not_be_crossed_out_is_crossed_out_later(
    server: Registry, trigger: Callable[..., OciTagTrigger], delays: list[float]
) -> None:
    async def story() -> None:
        store = BrokenStore()
        store.broken = False
        server.put("old")
        async with running(trigger(store)) as payloads:
            await until(lambda: bool(store.values))
            write = store.aset

            async def fails_without_event(key: str, value: Any) -> None:
                store.broken = value["event"] is None and len(delays) < 20
                await write(key, value)

            store.aset = fails_without_event  # type: ignore[method-assign]
            server.put("new")
            await until(lambda: len(delays) >= 20)
            await until(lambda: store.state["event"] is None)
            assert len(payloads) == 1

    play(story())
