# SPDX-License-Identifier: Apache-2.0
"""Registries over TLS behind the proxy of the worker's environment: it carries bytes and learns nothing."""

from __future__ import annotations

import pytest

from airflow_slurm_images.core.errors import RegistryUnavailableError
from tests.cluster.connect_proxy import ConnectProxy
from tests.cluster.misbehaving_registry import MisbehavingRegistry

from .helpers import BASIC, SECRET, fetch, make_client, wants_basic

HOST = "localhost:1"  # nothing listens there: what arrives came through the proxy


def test_the_proxy_carries_tls_and_sees_no_login(secure: MisbehavingRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    secure.script(secure.tag_path, wants_basic(), secure.healthy(secure.tag_path))
    with ConnectProxy(secure.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://door:opener@{proxy.address}")
        client = make_client(HOST, [], login="bob", password=SECRET, insecure=False)
        assert fetch(client) == secure.manifest
        client.close()
    assert secure.authorizations == [BASIC]
    assert {target for target in proxy.targets} == {HOST}
    assert {headers.get("Authorization") for _, headers in proxy.asked} == {None}
    assert {headers.get("Proxy-Authorization") for _, headers in proxy.asked} == {"Basic ZG9vcjpvcGVuZXI="}
    assert {request.headers.get("Proxy-Authorization") for request in secure.requests} == {None}


@pytest.mark.parametrize("exempt", ["127.0.0.1", "localhost,127.0.0.1", "*", "127.0.0.1:{port}"])
def test_no_proxy_leaves_a_registry_to_itself(
    secure: MisbehavingRegistry, monkeypatch: pytest.MonkeyPatch, exempt: str
) -> None:
    with ConnectProxy(secure.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        monkeypatch.setenv("NO_PROXY", exempt.format(port=secure.port))
        client = make_client(secure.address, [], insecure=False)
        assert fetch(client) == secure.manifest
        client.close()
    assert proxy.asked == []


@pytest.mark.parametrize("status", [403, 407, 502])
def test_a_proxy_that_refuses_is_said_so_without_its_password(
    secure: MisbehavingRegistry, monkeypatch: pytest.MonkeyPatch, waits: list[float], status: int
) -> None:
    with ConnectProxy(secure.port, status) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://door:opener-of-it@{proxy.address}")
        with pytest.raises(RegistryUnavailableError, match=f"through the proxy .* {status}") as caught:
            fetch(make_client(HOST, waits, insecure=False))
    assert "opener-of-it" not in f"{caught.value} {caught.value.__cause__!r}"
    assert secure.requests == []
