# SPDX-License-Identifier: Apache-2.0
"""What the secrets masker is told: what lives long, and never a token.

Airflow's masker forgets nothing and makes one regular expression of all it knows, anew with each addition: a token an
hour would in the end stop a triggerer.
"""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_slurm_images.hooks import registry as hook_module
from airflow_slurm_images.hooks.registry import OciRegistryHook
from airflow_slurm_images.triggers.registry import OciTagTrigger
from tests.cluster.http_servers import Reply, Request
from tests.cluster.misbehaving_registry import document, errors

from .watching import Registry, Store, play, running, until

PASSWORD = "a-password"
LONG_LIVED = {PASSWORD, base64.b64encode(f"robot:{PASSWORD}".encode()).decode()}
RENEWALS = 10


class OneLookTokens(Registry):
    """Its tokens are good for one request."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self.tokens: list[str] = []
        self._used: set[str | None] = set()

    def reply(self, request: Request) -> Reply:
        if request.path == "/token":
            self.tokens.append(f"token-{next(self._numbers)}-of-the-test")
            return Reply(200, document({"token": self.tokens[-1], "expires_in": 1}))
        known = [f"Bearer {token}" for token in self.tokens[-1:]]
        if request.authorization not in known or request.authorization in self._used:
            refusal = errors(401, "UNAUTHORIZED")
            challenge = f'Bearer realm="http://{self.address}/token",service="s"'
            return Reply(401, refusal.body, [*refusal.headers, ("WWW-Authenticate", challenge)])
        self._used.add(request.authorization)
        return super().reply(request)


@pytest.fixture
def server() -> Iterator[Registry]:
    with OneLookTokens() as running:
        assert isinstance(running, OneLookTokens)
        running.put("old")
        yield running


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the masker is told; in a triggerer on the loop's thread only."""
    told: list[str] = []

    def mask(secret: Any, name: str | None = None) -> None:
        assert threading.current_thread() is threading.main_thread()
        if isinstance(secret, str):  # Airflow itself tells it a connection's extra
            told.append(secret)

    async def amask(secret: Any, name: str | None = None) -> None:
        mask(secret)

    monkeypatch.setattr("airflow.sdk.log.amask_secret", amask, raising=False)
    monkeypatch.setattr("airflow.sdk.log.mask_secret", mask)
    monkeypatch.setattr(hook_module, "mask_secret", mask)
    return told


def test_a_watch_masks_the_login_before_it_is_used_and_no_token_however_many_there_are(
    server: OneLookTokens, trigger: Callable[..., OciTagTrigger], connect: Any, masked: list[str]
) -> None:
    connect(server.address, login="robot", password=PASSWORD)
    before: list[set[str]] = []
    reply = server.reply

    def noting(request: Request) -> Reply:
        before.append(set(masked))
        return reply(request)

    server.reply = noting  # type: ignore[method-assign]

    async def story() -> None:
        async with running(trigger(Store())):
            await until(lambda: len(set(server.tokens)) > RENEWALS)

    play(story())
    assert before[0] >= LONG_LIVED
    assert set(masked) == LONG_LIVED and len(masked) < RENEWALS


def test_a_hook_masks_the_login_and_no_token_however_many_there_are(
    server: OneLookTokens, connect: Any, masked: list[str]
) -> None:
    connect(server.address, login="robot", password=PASSWORD)
    with OciRegistryHook("images") as hook:
        for _ in range(RENEWALS):
            hook.manifest(server.image)
    assert len(set(server.tokens)) >= RENEWALS
    assert set(masked) == LONG_LIVED and len(masked) < RENEWALS
