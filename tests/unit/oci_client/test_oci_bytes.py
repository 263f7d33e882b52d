# SPDX-License-Identifier: Apache-2.0
"""Bytes are hashed, bounded and told apart, whatever the registry says about them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_slurm_images.core import oci
from airflow_slurm_images.core.errors import (
    IntegrityError,
    RegistryAuthError,
    RegistryNotFoundError,
    RegistryResponseError,
)
from airflow_slurm_images.hooks._oci_client import OciClient
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import (
    REPOSITORY,
    BadReply,
    Fault,
    MisbehavingRegistry,
    descriptor,
    digest_of,
    document,
    errors,
)

from .helpers import bearer, fetch


def test_the_manifest_asked_by_tag_or_digest_comes_as_its_bytes(
    client: OciClient, registry: MisbehavingRegistry
) -> None:
    assert fetch(client) == registry.manifest
    raw = client.manifest(REPOSITORY, registry.digest)
    assert (raw.content, raw.digest) == (registry.manifest, registry.digest)
    assert registry.requests[0].headers["Accept"] == oci.ACCEPT


def test_other_bytes_for_a_digest_are_an_integrity_error_and_not_retried(
    client: OciClient, registry: MisbehavingRegistry
) -> None:
    path = f"/v2/{REPOSITORY}/manifests/{registry.digest}"
    registry.script(path, Reply(200, registry.manifest + b"\n", [("Docker-Content-Digest", registry.digest)]))
    with pytest.raises(IntegrityError) as caught:
        client.manifest(REPOSITORY, registry.digest)
    assert caught.value.details["expected"] == registry.digest
    assert registry.address in caught.value.message
    assert len(registry.requests) == 1


def test_a_tag_whose_digest_header_disagrees_with_its_bytes_is_an_integrity_error(
    client: OciClient, registry: MisbehavingRegistry
) -> None:
    header = ("Docker-Content-Digest", "sha256:" + 64 * "0")
    registry.script(registry.tag_path, Reply(200, registry.manifest, [header]))
    with pytest.raises(IntegrityError, match="own header"):
        fetch(client)


def test_a_config_with_other_bytes_is_an_integrity_error(client: OciClient, registry: MisbehavingRegistry) -> None:
    registry.script(registry.config_path, Reply(200, registry.config + b" "))
    wanted = oci.Descriptor.model_validate(descriptor("x", registry.config))
    with pytest.raises(IntegrityError, match="config"):
        client.blob(REPOSITORY, wanted)


def test_a_descriptor_never_leads_to_another_path(client: OciClient, registry: MisbehavingRegistry) -> None:
    hostile = oci.Descriptor(digest="sha256:../../../v2/other/secret/blobs/x", size=1)
    with pytest.raises(RegistryResponseError, match="only sha256"):
        client.blob(REPOSITORY, hostile)
    assert registry.requests == []


@pytest.mark.parametrize("fault", ["none", "unannounced"])
def test_too_large_a_manifest_is_refused_announced_or_not(
    client: OciClient, registry: MisbehavingRegistry, fault: Fault
) -> None:
    registry.script(registry.tag_path, BadReply(200, b" " * (oci.MAX_DOCUMENT + 1), fault=fault))
    with pytest.raises(RegistryResponseError, match="sends more than 4194304 bytes"):
        fetch(client)
    assert len(registry.requests) == 1


def test_an_unknown_tag_names_similar_ones(client: OciClient, registry: MisbehavingRegistry) -> None:
    with pytest.raises(RegistryNotFoundError, match=r"unknown tag 1\.0-cud in repository team/app") as caught:
        client.manifest(REPOSITORY, "1.0-cud")
    assert "1.0-cuda" in (caught.value.remedy or "")


def test_an_unknown_repository_is_told_from_an_unknown_tag(client: OciClient) -> None:
    with pytest.raises(RegistryNotFoundError, match="unknown repository team/nope"):
        client.manifest("team/nope", "1.0")


def test_an_unknown_digest_is_said_so(client: OciClient) -> None:
    with pytest.raises(RegistryNotFoundError, match="no manifest sha256"):
        client.manifest(REPOSITORY, "sha256:" + 64 * "0")


def test_a_host_that_is_no_registry_is_said_so(client: OciClient, registry: MisbehavingRegistry) -> None:
    registry.script(registry.tag_path, Reply(404, b"<html>nothing here</html>"))
    with pytest.raises(RegistryNotFoundError, match="not as a container registry does"):
        fetch(client)


def test_words_of_the_registry_are_one_bounded_printable_line(client: OciClient, registry: MisbehavingRegistry) -> None:
    registry.script(registry.tag_path, errors(403, "DENIED", "no\n::error::\x1b[31m" + 5000 * "x"))
    with pytest.raises(RegistryAuthError) as caught:
        fetch(client)
    assert caught.value.message.isprintable() and len(caught.value.message) < 600


@pytest.mark.parametrize("tag", ["1.0\n::error::", "\x1b[31m1.0", 5000 * "1", 5, None])
def test_only_what_can_be_a_tag_is_named_as_similar(client: OciClient, registry: MisbehavingRegistry, tag: Any) -> None:
    registry.script(f"/v2/{REPOSITORY}/tags/list", Reply(200, document({"tags": [tag, "1.0-cuda"]})))
    with pytest.raises(RegistryNotFoundError) as caught:
        client.manifest(REPOSITORY, "1.0-cud")
    assert caught.value.remedy == "some of the tags there: 1.0-cuda"


@pytest.mark.parametrize("status", [405, 501])
def test_where_looking_is_not_allowed_the_bytes_tell(
    client: OciClient, registry: MisbehavingRegistry, status: int
) -> None:
    registry.script(registry.tag_path, Reply(status), registry.healthy(registry.tag_path))
    assert client.head(REPOSITORY, "1.0").digest == registry.digest
    assert [request.method for request in registry.requests] == ["HEAD", "GET"]


def test_where_looking_is_not_allowed_the_token_service_is_still_found(
    client: OciClient, registry: MisbehavingRegistry
) -> None:
    asks = bearer("https://tokens.example/token")
    registry.script(f"/v2/{REPOSITORY}/manifests/latest", Reply(405), asks)
    assert client.token_realm_host(REPOSITORY) == "tokens.example"


def test_an_etag_that_cannot_be_sent_back_is_not(client: OciClient, registry: MisbehavingRegistry) -> None:
    odd = Reply(200, b"", [("Docker-Content-Digest", registry.digest), ("ETag", '"\xe4"')])
    registry.script(registry.tag_path, odd)
    assert not client.head(REPOSITORY, "1.0", client.head(REPOSITORY, "1.0")).changed
    assert [request.headers.get("If-None-Match") for request in registry.requests] == [None, None]


def test_a_look_at_a_tag_is_conditional_and_notices_a_move(client: OciClient, registry: MisbehavingRegistry) -> None:
    def head(digest: str, etag: str) -> Reply:
        return Reply(200, b"", [("Docker-Content-Digest", digest), ("ETag", etag)])

    other = "sha256:" + 64 * "2"
    registry.script(registry.tag_path, head(registry.digest, '"a"'), Reply(304), head(other, '"b"'))
    first = client.head(REPOSITORY, "1.0")
    same = client.head(REPOSITORY, "1.0", first)
    moved = client.head(REPOSITORY, "1.0", same)
    assert (first.changed, same.changed, moved.changed) == (True, False, True)
    assert (same.digest, moved.digest) == (registry.digest, other)
    assert [request.headers.get("If-None-Match") for request in registry.requests] == [None, '"a"', '"a"']
    assert {request.method for request in registry.requests} == {"HEAD"}


def test_without_a_digest_header_the_bytes_tell(client: OciClient, registry: MisbehavingRegistry) -> None:
    registry.script(registry.tag_path, Reply(200, registry.manifest))
    assert client.head(REPOSITORY, "1.0").digest == digest_of(registry.manifest)
