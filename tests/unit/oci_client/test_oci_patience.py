# SPDX-License-Identifier: Apache-2.0
"""Retries, waits and proxies: bounded, and only where they can help."""

from __future__ import annotations

import socket
import threading
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from airflow_slurm_images.core.errors import (
    InvalidRequestError,
    RegistryAuthError,
    RegistryNotFoundError,
    RegistryRateLimitedError,
    RegistryUnavailableError,
)
from airflow_slurm_images.hooks._oci_client import OciClient
from airflow_slurm_images.hooks._oci_http import Transport
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import (
    BadReply,
    Fault,
    MisbehavingRegistry,
    errors,
)

from .helpers import fetch, make_client, wants_basic


def test_a_server_error_is_retried_and_then_fine(
    client: OciClient, registry: MisbehavingRegistry, waits: list[float]
) -> None:
    registry.script(registry.tag_path, Reply(500), Reply(502), registry.healthy(registry.tag_path))
    assert fetch(client) == registry.manifest
    assert len(waits) == 2 and 0.7 < waits[0] < 1.3 and 1.4 < waits[1] < 2.6


def test_a_lasting_server_error_is_given_up_after_four_attempts(
    client: OciClient, registry: MisbehavingRegistry, waits: list[float]
) -> None:
    registry.script(registry.tag_path, Reply(503))
    with pytest.raises(RegistryUnavailableError, match="status 503") as caught:
        fetch(client)
    assert caught.value.retryable
    assert (len(registry.requests), len(waits)) == (4, 3)


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_obeyed(
    client: OciClient, registry: MisbehavingRegistry, waits: list[float], as_date: bool
) -> None:
    later = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=10), usegmt=True)
    limited = Reply(429, b"", [("Retry-After", later if as_date else "7")])
    registry.script(registry.tag_path, limited, registry.healthy(registry.tag_path))
    assert fetch(client) == registry.manifest
    assert len(waits) == 1 and (5 < waits[0] <= 10 if as_date else waits[0] == 7)


def test_a_long_retry_after_is_reported_instead_of_slept(
    client: OciClient, registry: MisbehavingRegistry, waits: list[float]
) -> None:
    registry.script(registry.tag_path, Reply(429, b"", [("Retry-After", "3600")]))
    with pytest.raises(RegistryRateLimitedError, match="3600 s") as caught:
        fetch(client)
    assert caught.value.retryable and caught.value.details["retry_after"] == 3600
    assert (len(registry.requests), waits) == (1, [])


@pytest.mark.parametrize("status", [401, 403, 404])
def test_refusals_are_not_retried(
    client: OciClient, registry: MisbehavingRegistry, waits: list[float], status: int
) -> None:
    registry.script(registry.tag_path, wants_basic() if status == 401 else errors(status, "DENIED"))
    with pytest.raises((RegistryAuthError, RegistryNotFoundError)) as caught:
        fetch(client)
    assert not caught.value.retryable
    asked = [request for request in registry.requests if request.path == registry.tag_path]
    assert (len(asked), waits) == (2 if status == 401 else 1, [])


@pytest.mark.parametrize("fault", ["truncated", "closed"])
def test_an_answer_that_breaks_off_is_retried(client: OciClient, registry: MisbehavingRegistry, fault: Fault) -> None:
    broken = BadReply(200, registry.manifest[:20], fault=fault)
    registry.script(registry.tag_path, broken, registry.healthy(registry.tag_path))
    assert fetch(client) == registry.manifest


@pytest.mark.parametrize("fault", ["truncated", "closed"])
def test_an_answer_that_always_breaks_off_is_unavailable(
    client: OciClient, registry: MisbehavingRegistry, fault: Fault
) -> None:
    registry.script(registry.tag_path, BadReply(200, registry.manifest[:20], fault=fault))
    with pytest.raises(RegistryUnavailableError, match="broke off"):
        fetch(client)


def test_a_tls_handshake_that_breaks_off_is_retried_and_no_fault_of_the_certificate(waits: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        served: list[bytes] = []

        def hang_up() -> None:
            for _ in range(4):
                connection, _ = listener.accept()
                with connection:
                    served.append(connection.recv(65536))

        thread = threading.Thread(target=hang_up)
        thread.start()
        client = make_client(f"127.0.0.1:{listener.getsockname()[1]}", waits, insecure=False)
        with pytest.raises(RegistryUnavailableError, match="broke off") as caught:
            fetch(client)
        thread.join(30)
    assert caught.value.retryable and len(served) == 4 and len(waits) == 3


def test_silence_is_bounded(registry: MisbehavingRegistry, waits: list[float]) -> None:
    registry.script(registry.tag_path, BadReply(fault="silent"))
    with pytest.raises(RegistryUnavailableError, match="did not answer in time"):
        fetch(make_client(registry.address, waits, silence=0.1, attempts=2))
    assert len(registry.requests) == 2


@pytest.mark.parametrize("fault", ["dripping", "headers", "undelimited"])
def test_an_answer_that_drips_is_given_up(registry: MisbehavingRegistry, fault: Fault) -> None:
    registry.script(registry.tag_path, BadReply(200, fault=fault))
    with pytest.raises(RegistryUnavailableError, match="too slowly"):
        fetch(make_client(registry.address, [], total=0.2))
    assert len(registry.requests) == 1


def test_an_answer_that_drips_over_tls_or_a_kept_connection_is_given_up(secure: MisbehavingRegistry) -> None:
    client = make_client(secure.address, [], total=1, insecure=False)
    assert fetch(client) == secure.manifest
    secure.script(secure.tag_path, BadReply(200, fault="headers"), secure.healthy(secure.tag_path))
    with pytest.raises(RegistryUnavailableError, match="too slowly"):
        fetch(client)
    assert fetch(client) == secure.manifest  # the client is as good as new


def test_a_registry_that_is_down_is_unavailable(waits: list[float]) -> None:
    with MisbehavingRegistry() as gone:
        address = gone.address
    with pytest.raises(RegistryUnavailableError, match="cannot be reached") as caught:
        fetch(make_client(address, waits))
    assert caught.value.retryable and address in caught.value.message


def test_an_unknown_host_is_said_so_and_not_retried(waits: list[float]) -> None:
    with pytest.raises(RegistryUnavailableError, match="cannot be resolved"):
        fetch(make_client("no-such-host.invalid", waits))
    assert waits == [] or len(waits) == 3  # a resolver that is down counts as temporary


def test_the_proxy_of_the_environment_is_used_except_for_no_proxy(
    registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{elsewhere.address}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    elsewhere.script(registry.tag_path, registry.healthy(registry.tag_path))
    assert fetch(make_client("registry.example", [])) == registry.manifest
    assert elsewhere.requests[0].target == f"http://registry.example{registry.tag_path}"
    assert fetch(make_client(registry.address, [])) == registry.manifest
    assert len(elsewhere.requests) == 1


@pytest.mark.parametrize("value", ["gopher://proxy.example", "socks5://proxy.example"])
def test_proxy_settings_that_cannot_be_used_are_said_so(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", value)
    with pytest.raises(InvalidRequestError, match="proxy settings"):
        Transport()


def test_a_ca_bundle_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/no/such/bundle.pem")
    with pytest.raises(InvalidRequestError, match="REQUESTS_CA_BUNDLE"):
        Transport()


def test_a_login_in_a_netrc_of_the_worker_is_not_used(
    registry: MisbehavingRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    netrc = tmp_path_factory.mktemp("home") / ".netrc"
    netrc.write_text("machine 127.0.0.1 login worker password private\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("HOME", str(netrc.parent))
    monkeypatch.setenv("NETRC", str(netrc))
    assert fetch(make_client(registry.address, [])) == registry.manifest
    assert registry.authorizations == []
