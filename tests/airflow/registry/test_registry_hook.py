# SPDX-License-Identifier: Apache-2.0
"""OciRegistryHook against the real registry in four set-ups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.errors import (
    IntegrityError,
    InvalidRequestError,
    RegistryAuthError,
    RegistryNotFoundError,
    RegistryResponseError,
    RegistryTlsError,
)
from airflow_slurm_images.core.oci import ResolvedImage
from airflow_slurm_images.core.reference import ImageReference, TagReference
from airflow_slurm_images.hooks import registry as hook_module
from airflow_slurm_images.hooks._oci_client import TagState
from airflow_slurm_images.hooks.registry import OciRegistryHook
from tests.cluster import multiplatform
from tests.cluster.misbehaving_registry import MisbehavingRegistry
from tests.cluster.registries import Registries


def resolve(conn_id: str | None, reference: str, arch: str = "amd64", **more: Any) -> ResolvedImage:
    with OciRegistryHook(conn_id) as hook:
        return hook.resolve(reference, arch=arch, **more)


# -- set-ups


@pytest.mark.parametrize("setup", ["open", "basic", "bearer", "tls"])
def test_a_tag_is_resolved_in_every_set_up(
    registries: Registries, connect: Any, monkeypatch: pytest.MonkeyPatch, setup: str
) -> None:
    server = getattr(registries, setup)
    monkeypatch.setenv("SSL_CERT_FILE", str(registries.ca_file))
    conn_id = connect(server, login=setup in ("basic", "bearer"))
    resolved = resolve(conn_id, f"{server.address}/team/app:oci", "aarch64")
    assert resolved.platform == "linux/arm64"
    assert resolved.registry == server.address and resolved.tag == "oci"
    assert resolved.index_digest and resolved.index_digest != resolved.platform_digest
    assert resolved.reference == f"{server.address}/team/app:oci@{resolved.platform_digest}"
    assert ImageReference.parse(resolved.reference).digest == resolved.platform_digest


@pytest.mark.parametrize("field", ["token", "access_token"])
def test_a_public_repository_is_read_without_a_login(
    registries: Registries, connect: Any, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr(registries.tokens, "token_field", field)
    resolved = resolve(connect(registries.bearer), f"{registries.bearer.address}/public/app:oci")
    assert resolved.platform == "linux/amd64"


def test_a_docker_connection_works_too(registries: Registries, connect: Any) -> None:
    extra = {"insecure": "true", "reauth": False}
    host = f"http://{registries.basic.address}/v1/"
    conn_id = connect(host, login=True, conn_type="docker", extra=extra)
    assert resolve(conn_id, f"{registries.basic.address}/team/app:oci").platform == "linux/amd64"


@pytest.mark.parametrize("setup", ["basic", "bearer"])
@pytest.mark.parametrize("password", [None, "wrong-password"])
def test_a_missing_or_wrong_login_says_who_asked_whom_for_what(
    registries: Registries, connect: Any, setup: str, password: str | None
) -> None:
    server = getattr(registries, setup)
    fields = {"login": registries.login, "password": password} if password else {}
    conn_id = connect(server, **fields)
    with pytest.raises(RegistryAuthError) as caught:
        resolve(conn_id, f"{server.address}/team/app:oci")
    text = str(caught.value)
    for part in (server.address, "team/app", registries.login if password else "no login"):
        assert part in text
    assert "wrong-password" not in text and not caught.value.retryable


def test_an_untrusted_certificate_is_said_so(registries: Registries, connect: Any) -> None:
    with pytest.raises(RegistryTlsError, match="not trusted") as caught:
        resolve(connect(registries.tls), f"{registries.tls.address}/team/app:oci")
    assert not caught.value.retryable and "REQUESTS_CA_BUNDLE" in (caught.value.remedy or "")


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_any_usual_variable_may_name_the_ca_bundle(
    registries: Registries, connect: Any, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(registries.ca_file))
    assert resolve(connect(registries.tls), f"{registries.tls.address}/team/app:oci").size > 0


def test_plain_http_needs_insecure(registries: Registries, connect: Any) -> None:
    reference = f"{registries.open.address}/team/app:oci"
    for conn_id in (None, connect(registries.open, extra={})):
        with pytest.raises(RegistryTlsError, match="no TLS connection") as caught:
            resolve(conn_id, reference)
        assert "insecure" in (caught.value.remedy or "") and not caught.value.retryable


def test_https_spoken_to_as_plain_http_is_said_so(registries: Registries, connect: Any) -> None:
    conn_id = connect(registries.tls.address, extra={"insecure": True})
    with pytest.raises(RegistryResponseError, match="status 400") as caught:
        resolve(conn_id, f"{registries.tls.address}/team/app:oci")
    assert "insecure" in (caught.value.remedy or "")


def test_a_login_is_not_sent_to_another_registry(registries: Registries, connect: Any) -> None:
    conn_id = connect(registries.basic, login=True)
    with pytest.raises(InvalidRequestError, match="not sent elsewhere"):
        resolve(conn_id, f"{registries.open.address}/team/app:oci")
    with pytest.raises(InvalidRequestError, match=r"registry-1\.docker\.io"):
        resolve(conn_id, "team/app:oci")


# -- images


@pytest.mark.parametrize("tag", ["oci", "docker"])
@pytest.mark.parametrize(
    ("arch", "variant", "platform"),
    [
        ("x86_64", None, "linux/amd64"),
        ("arm64", "v8", "linux/arm64"),
        ("arm", None, "linux/arm"),
        ("armv6l", None, "linux/arm/v6"),
    ],
)
def test_an_index_is_resolved_to_one_platform(
    registries: Registries, connect: Any, tag: str, arch: str, variant: str | None, platform: str
) -> None:
    conn_id = connect(registries.open)
    resolved = resolve(conn_id, f"{registries.open.address}/team/app:{tag}", arch, variant=variant)
    assert resolved.platform == platform
    assert ("docker" in resolved.media_type) == (tag == "docker")


def test_the_digests_of_index_and_platform_lead_to_the_same_image(registries: Registries, connect: Any) -> None:
    conn_id = connect(registries.open)
    name = f"{registries.open.address}/team/app"
    by_tag = resolve(conn_id, f"{name}:oci")
    by_index = resolve(conn_id, f"{name}:oci@{by_tag.index_digest}")
    by_platform = resolve(conn_id, f"{name}@{by_tag.platform_digest}")
    assert by_index == by_tag
    assert by_platform.platform_digest == by_tag.platform_digest and by_platform.index_digest is None


def test_a_single_image_tells_its_platform(registries: Registries, connect: Any) -> None:
    conn_id, name = connect(registries.open), f"{registries.open.address}/team/app:single"
    resolved = resolve(conn_id, name, "aarch64")
    assert (resolved.platform, resolved.index_digest) == ("linux/arm64", None)
    with pytest.raises(RegistryNotFoundError, match="single image for linux/arm64"):
        resolve(conn_id, name, "amd64")


@pytest.mark.parametrize(
    ("name", "arch", "reason"),
    [
        ("team/app:nope", "amd64", "unknown tag nope"),
        ("team/none:oci", "amd64", "unknown repository team/none"),
        ("team/app@sha256:" + 64 * "0", "amd64", "no manifest sha256"),
        ("team/app:oci", "s390x", "there is no image for linux/s390x; the index holds linux/amd64"),
    ],
)
def test_what_is_not_there_is_named(registries: Registries, connect: Any, name: str, arch: str, reason: str) -> None:
    with pytest.raises(RegistryNotFoundError, match=reason) as caught:
        resolve(connect(registries.open), f"{registries.open.address}/{name}", arch)
    assert registries.open.address in caught.value.message


def test_wrong_bytes_are_an_integrity_error(connect: Any) -> None:
    with MisbehavingRegistry() as server:
        pinned = f"{server.address}/team/app@{server.digest}"
        broken = server.healthy(server.tag_path)
        broken.body += b" "
        server.script(f"/v2/team/app/manifests/{server.digest}", broken)
        with pytest.raises(IntegrityError, match=server.digest):
            resolve(connect(server.address), pinned)


# -- the other methods


def test_manifest_gives_the_bytes_and_head_notices_a_move(registries: Registries, connect: Any, tmp_path: Path) -> None:
    with OciRegistryHook(connect(registries.basic, login=True)) as hook:
        moving = TagReference.parse(f"{registries.basic.address}/team/app:moving")
        states: list[TagState] = []
        for text in ("first", "second"):
            layout = multiplatform.write_index(tmp_path / text, ["linux/amd64"], text)
            multiplatform.push(registries.open.address, layout, "team/app", "moving")
            states.append(hook.head(moving, states[-1] if states else None))
            assert states[-1].changed
            assert states[-1].digest == hook.manifest(moving).digest
            assert not hook.head(moving, states[-1]).changed


@pytest.mark.parametrize(("setup", "host"), [("open", None), ("basic", None), ("bearer", "localhost")])
def test_the_host_of_the_token_service_is_told(
    registries: Registries, connect: Any, setup: str, host: str | None
) -> None:
    with OciRegistryHook(connect(getattr(registries, setup), login=True)) as hook:
        assert hook.token_realm_host("team/app") == host


@pytest.mark.parametrize(
    ("setup", "login", "works", "text"),
    [
        ("open", False, True, "asks for no login"),
        ("open", True, True, "the password was not checked"),
        ("basic", False, True, "only public repositories"),
        ("basic", True, True, "accepts account robot (basic login)"),
        ("bearer", True, True, "accepts account robot (bearer login)"),
        ("tls", False, False, "not trusted"),
    ],
)
def test_the_connection_test(
    registries: Registries, connect: Any, setup: str, login: bool, works: bool, text: str
) -> None:
    result = OciRegistryHook(connect(getattr(registries, setup), login=login)).test_connection()
    assert result[0] is works and text in result[1]


def test_the_connection_test_sees_a_wrong_password(registries: Registries, connect: Any) -> None:
    for server in (registries.basic, registries.bearer):
        conn_id = connect(server, login="robot", password="wrong-password")
        works, text = OciRegistryHook(conn_id).test_connection()
        assert not works and "robot" in text and "wrong-password" not in text


def test_a_login_is_masked_in_every_form(registries: Registries, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[str] = []
    monkeypatch.setattr(hook_module, "mask_secret", masked.append)
    resolve(connect(registries.bearer, login=True), f"{registries.bearer.address}/team/app:oci")
    assert registries.password in masked
    assert len(masked) == 2  # the password and the pair in base64
