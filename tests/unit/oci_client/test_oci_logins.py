# SPDX-License-Identifier: Apache-2.0
"""Logins go where they belong and nowhere else, redirects included."""

from __future__ import annotations

import logging

import httpx
import pytest

from airflow_slurm_images.core import oci
from airflow_slurm_images.core.endpoint import RegistryEndpoint
from airflow_slurm_images.core.errors import (
    RegistryAuthError,
    RegistryResponseError,
    SlurmImagesError,
)
from airflow_slurm_images.hooks import _oci_login
from airflow_slurm_images.hooks._oci_client import OciClient
from airflow_slurm_images.hooks._oci_failures import refused_login
from airflow_slurm_images.hooks._oci_http import Answer, Transport
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import (
    REPOSITORY,
    BadReply,
    MisbehavingRegistry,
    descriptor,
    document,
    errors,
)

from .helpers import BASIC, SECRET, bearer, fetch, make_client, to, wants_basic


def test_a_redirect_to_another_host_is_followed_without_the_login(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry
) -> None:
    location = f"http://localhost:{elsewhere.port}/bucket/config?Signature=abc"
    registry.script(registry.config_path, wants_basic(), to(location))
    elsewhere.script("/bucket/config", Reply(200, registry.config))
    wanted = oci.Descriptor.model_validate(descriptor("x", registry.config))
    assert client.blob(REPOSITORY, wanted) == registry.config
    assert registry.authorizations == [BASIC]
    assert [request.path for request in elsewhere.requests] == ["/bucket/config"]
    assert elsewhere.authorizations == []


@pytest.mark.parametrize("offer", ['Basic realm="give me"', 'Bearer realm="http://127.0.0.1:1/token",service="s"'])
def test_a_host_behind_a_redirect_gets_no_login_even_if_it_asks(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry, offer: str
) -> None:
    registry.script(registry.tag_path, wants_basic(), to(f"http://localhost:{elsewhere.port}/steal"))
    elsewhere.script("/steal", Reply(401, b"", [("WWW-Authenticate", offer)]))
    with pytest.raises(RegistryResponseError, match=f"localhost:{elsewhere.port}"):
        fetch(client)
    assert elsewhere.authorizations == [] and len(elsewhere.requests) == 1


def test_a_redirect_within_the_registry_keeps_the_login(client: OciClient, registry: MisbehavingRegistry) -> None:
    registry.script(registry.tag_path, wants_basic(), to("/other/place"))
    registry.script("/other/place", registry.healthy(registry.tag_path))
    assert fetch(client) == registry.manifest
    assert registry.authorizations == [BASIC, BASIC]


def test_redirects_without_end_and_to_other_schemes_are_refused(
    client: OciClient, registry: MisbehavingRegistry
) -> None:
    registry.script(registry.tag_path, to(registry.tag_path))
    with pytest.raises(RegistryResponseError, match="more than 5 redirects"):
        fetch(client)
    registry.script(registry.tag_path, to("file:///etc/passwd"))
    with pytest.raises(RegistryResponseError, match="without TLS"):
        fetch(client)


def test_a_login_is_sent_only_after_the_registry_asked_and_then_kept(
    client: OciClient, registry: MisbehavingRegistry
) -> None:
    registry.script(registry.tag_path, wants_basic(), registry.healthy(registry.tag_path))
    fetch(client)
    fetch(client)
    assert [request.authorization for request in registry.requests] == [None, BASIC, BASIC]


def test_the_password_goes_to_the_token_service_and_the_token_to_the_registry(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry
) -> None:
    realm = f"http://localhost:{elsewhere.port}/token?tenant=t"
    registry.script(registry.tag_path, bearer(realm), registry.healthy(registry.tag_path))
    elsewhere.script("/token", Reply(200, document({"access_token": "tok-1"})))
    fetch(client)
    assert registry.authorizations == ["Bearer tok-1"]
    (asked,) = elsewhere.requests
    assert asked.authorization == BASIC
    assert asked.query == [
        ("tenant", "t"), ("service", "s"), ("account", "bob"), ("scope", f"repository:{REPOSITORY}:pull"),
    ]  # fmt: skip


def test_a_token_service_that_hands_on_gets_the_login_where_it_is_known_to(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nvcr.io does to authn.nvidia.com."""
    monkeypatch.setattr(_oci_login, "TOKEN_HOSTS", {"127.0.0.1": "localhost"})
    registry.script(registry.tag_path, bearer(f"http://{registry.address}/auth"), registry.healthy(registry.tag_path))
    registry.script("/auth", to(f"http://localhost:{elsewhere.port}/token?scope=s"))
    elsewhere.script("/token", Reply(200, document({"token": "tok-1"})))
    assert fetch(client) == registry.manifest
    assert [(asked.path, asked.authorization) for asked in elsewhere.requests] == [("/token", BASIC)]
    assert registry.authorizations == [BASIC, "Bearer tok-1"]


def test_a_token_service_that_hands_on_to_any_other_host_takes_no_login_along(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry
) -> None:
    registry.script(registry.tag_path, bearer(f"http://{registry.address}/auth"), registry.healthy(registry.tag_path))
    registry.script("/auth", to(f"http://localhost:{elsewhere.port}/token"))
    elsewhere.script("/token", Reply(200, document({"token": "tok-1"})))
    assert fetch(client) == registry.manifest
    assert len(elsewhere.requests) == 1 and elsewhere.authorizations == []


def test_a_token_service_over_tls_takes_the_login_nowhere_without(
    secure: MisbehavingRegistry, elsewhere: MisbehavingRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_oci_login, "TOKEN_HOSTS", {"127.0.0.1": "localhost"})
    client = make_client(secure.address, [], login="bob", password=SECRET, insecure=False)
    secure.script(secure.tag_path, bearer(f"https://{secure.address}/auth"))
    secure.script("/auth", to(f"http://localhost:{elsewhere.port}/token"))
    with pytest.raises(RegistryResponseError, match="without TLS"):
        fetch(client)
    assert elsewhere.requests == []


def test_an_expired_token_is_renewed_once(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry
) -> None:
    ask, fine = bearer(f"http://localhost:{elsewhere.port}/token"), registry.healthy(registry.tag_path)
    registry.script(registry.tag_path, ask, fine, ask, fine)
    tokens = [Reply(200, document({"token": f"tok-{number}", "expires_in": 1})) for number in (1, 2)]
    elsewhere.script("/token", *tokens)
    assert fetch(client) == fetch(client) == registry.manifest
    assert registry.authorizations == ["Bearer tok-1", "Bearer tok-1", "Bearer tok-2"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Reply(200, b"<html>"), "no token"),
        (Reply(200, document({})), "no token"),
        (Reply(200, document({"token": "two\r\nX-Injected: lines"})), "no token"),
        (Reply(200, document({"token": 5})), "no token"),
        (Reply(404), "unexpected status 404"),
        (errors(401, "UNAUTHORIZED", "incorrect username or password"), "refused the login"),
        (errors(403, "DENIED"), "refused the login"),
    ],
)
def test_a_token_service_that_gives_no_token_is_named(
    client: OciClient,
    registry: MisbehavingRegistry,
    elsewhere: MisbehavingRegistry,
    answer: Reply,
    reason: str,
) -> None:
    registry.script(registry.tag_path, bearer(f"http://localhost:{elsewhere.port}/token"))
    elsewhere.script("/token", answer)
    with pytest.raises((RegistryAuthError, RegistryResponseError), match=reason) as caught:
        fetch(client)
    assert "localhost" in caught.value.message and not caught.value.retryable
    assert len(elsewhere.requests) == 1


@pytest.mark.parametrize("realm", ["ftp://t.example/", "/token", "http://u:p@t.example/", "http://t.example:port/"])
def test_a_realm_that_is_no_url_is_refused(client: OciClient, registry: MisbehavingRegistry, realm: str) -> None:
    registry.script(registry.tag_path, bearer(realm))
    with pytest.raises(RegistryResponseError, match="token service"):
        fetch(client)


def test_a_login_of_an_unknown_kind_is_named(client: OciClient, registry: MisbehavingRegistry) -> None:
    registry.script(registry.tag_path, Reply(401, b"", [("WWW-Authenticate", "Negotiate")]))
    with pytest.raises(RegistryAuthError, match="'negotiate'"):
        fetch(client)


def test_a_refused_login_says_host_repository_account_and_causes(
    client: OciClient, registry: MisbehavingRegistry
) -> None:
    registry.script(registry.tag_path, wants_basic())
    with pytest.raises(RegistryAuthError) as caught:
        fetch(client)
    text = str(caught.value)
    for part in (registry.address, REPOSITORY, "account bob", "wrong", "expired", "does not exist"):
        assert part in text


def test_ngc_and_docker_hub_get_their_own_hints() -> None:
    answer = Answer(401, httpx.URL("https://nvcr.io/proxy_auth"), httpx.Headers(), b"")
    ngc = refused_login(RegistryEndpoint(host="nvcr.io", login="$oauthtoken", password="x"), answer, "no")
    assert "authn.nvidia.com" in str(ngc) and "nvcr.io" in str(ngc)
    hub = refused_login(RegistryEndpoint(host="registry-1.docker.io", login="b", password="x"), answer, "no")
    assert "does not prove that the password was right" in str(hub)


@pytest.mark.parametrize("failing", ["basic", "token", "integrity", "5xx", "closed"])
def test_the_secret_is_in_no_message_log_or_detail(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry, failing: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    last = {
        "basic": wants_basic(),
        "token": bearer(f"http://localhost:{elsewhere.port}/token"),
        "integrity": Reply(200, b"{}", [("Docker-Content-Digest", registry.digest)]),
        "5xx": Reply(500, SECRET.encode()),
        "closed": BadReply(fault="closed"),
    }[failing]
    registry.script(registry.tag_path, wants_basic(), last)
    elsewhere.script("/token", errors(401, "UNAUTHORIZED"))
    with pytest.raises(SlurmImagesError) as caught:
        fetch(client)
    told = str(caught.value) + repr(caught.value.details) + repr(caught.value.__cause__) + caplog.text
    for secret in (SECRET, BASIC.removeprefix("Basic ")):
        assert secret not in told


@pytest.mark.parametrize("failing", ["refused", "other bytes", "closed"])
def test_a_token_is_in_no_message_log_or_repr(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry, failing: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Airflow's masker does not know it."""
    caplog.set_level(logging.DEBUG)
    last = {
        "refused": errors(403, "DENIED", "tok-1 may not"),
        "other bytes": Reply(200, b"{}", [("Docker-Content-Digest", registry.digest)]),
        "closed": BadReply(fault="closed"),
    }[failing]
    registry.script(registry.tag_path, bearer(f"http://localhost:{elsewhere.port}/token"), last)
    elsewhere.script("/token", Reply(200, document({"token": "tok-1"})))
    with pytest.raises(SlurmImagesError) as caught:
        fetch(client)
    assert caplog.text
    for text in (*told_of(caught.value), caplog.text, repr(client)):
        assert "tok-1" not in text


def told_of(err: BaseException | None) -> list[str]:
    """All that a log may show of an exception and its causes."""
    told = []
    while err is not None:
        told += [str(err), repr(err), repr(err.__dict__)]
        err = err.__cause__ or err.__context__
    return told


def test_an_answer_that_holds_a_token_does_not_show_it(
    registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry
) -> None:
    elsewhere.script("/token", Reply(200, document({"token": "tok-1"})))
    transport = Transport()
    answer = transport.send("GET", httpx.URL(f"http://{elsewhere.address}/token"), {}, 1000)
    transport.close()
    assert b"tok-1" in answer.content and "tok-1" not in repr(answer)


@pytest.mark.parametrize("status", [403, 429, 500, 418])
@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_a_registry_that_repeats_the_login_is_not_quoted_with_it(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry, kind: str, status: int
) -> None:
    asks = wants_basic() if kind == "basic" else bearer(f"http://localhost:{elsewhere.port}/token")
    said = f"Bob may not: {SECRET if kind == 'basic' else ''} ({BASIC if kind == 'basic' else 'Bearer tok-1'})"
    registry.script(registry.tag_path, asks, errors(status, "DENIED", said))
    elsewhere.script("/token", Reply(200, document({"token": "tok-1"})))
    with pytest.raises(SlurmImagesError, match="Bob may not") as caught:
        fetch(client)
    for text in (str(caught.value), repr(caught.value), str(caught.value.details)):
        assert not any(secret in text for secret in (SECRET, BASIC.partition(" ")[2], "tok-1"))


def test_a_token_service_that_repeats_the_login_is_not_quoted_with_it(
    client: OciClient, registry: MisbehavingRegistry, elsewhere: MisbehavingRegistry
) -> None:
    registry.script(registry.tag_path, bearer(f"http://localhost:{elsewhere.port}/token"))
    elsewhere.script("/token", errors(401, "UNAUTHORIZED", f"password {SECRET} of bob is wrong"))
    with pytest.raises(RegistryAuthError, match="of bob is wrong") as caught:
        fetch(client)
    assert SECRET not in str(caught.value)


def test_over_tls_no_redirect_leaves_tls(secure: MisbehavingRegistry, elsewhere: MisbehavingRegistry) -> None:
    client = make_client(secure.address, [], login="bob", password=SECRET, insecure=False)
    secure.script(secure.tag_path, wants_basic(), to(f"http://localhost:{elsewhere.port}/plain"))
    with pytest.raises(RegistryResponseError, match="without TLS"):
        fetch(client)
    assert secure.authorizations == [BASIC] and elsewhere.requests == []


def test_over_tls_no_login_goes_to_a_token_service_without(
    secure: MisbehavingRegistry, elsewhere: MisbehavingRegistry
) -> None:
    client = make_client(secure.address, [], login="bob", password=SECRET, insecure=False)
    secure.script(secure.tag_path, bearer(f"http://localhost:{elsewhere.port}/token"))
    with pytest.raises(RegistryResponseError, match="over plain HTTP; no login is sent"):
        fetch(client)
    assert elsewhere.requests == []
