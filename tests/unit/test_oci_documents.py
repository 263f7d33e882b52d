# SPDX-License-Identifier: Apache-2.0
"""Indexes, manifests and configs are read as the specifications say; everything else is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm_images.core import oci
from airflow_slurm_images.core.digest import sha256_digest, verify
from airflow_slurm_images.core.errors import (
    IntegrityError,
    RegistryError,
    RegistryNotFoundError,
    RegistryResponseError,
)
from airflow_slurm_images.core.platform import Platform

DIGEST = "sha256:" + 64 * "a"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def entry(digit: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": oci.OCI_MANIFEST, "digest": "sha256:" + 64 * digit, "size": 1, **more}


def on(platform: str, digit: str, **more: Any) -> dict[str, Any]:
    names = ("os", "architecture", "variant")
    return entry(digit, platform=dict(zip(names, platform.split("/"), strict=False)), **more)


def index(*entries: dict[str, Any]) -> oci.ImageIndex:
    raw = json.dumps({"schemaVersion": 2, "mediaType": oci.OCI_INDEX, "manifests": entries}).encode()
    document = oci.parse_manifest(raw)
    assert isinstance(document, oci.ImageIndex)
    return document


def manifest(**changes: Any) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": oci.OCI_MANIFEST,
        "config": {"mediaType": oci.OCI_CONFIG, "digest": DIGEST, "size": 2},
        "layers": [
            {"mediaType": LAYER, "digest": DIGEST, "size": 30},
            {"mediaType": LAYER, "digest": DIGEST, "size": 12},
        ],
    }
    return json.dumps({key: value for key, value in (document | changes).items() if value is not None}).encode()


def chosen(document: oci.ImageIndex, arch: str, variant: str | None = None) -> str:
    return oci.choose(document, Platform.of(arch, variant=variant)).digest[-1]


# -- documents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("media_type", [oci.OCI_MANIFEST, oci.DOCKER_MANIFEST])
def test_both_families_of_image_manifests_are_read(media_type: str) -> None:
    document = oci.parse_manifest(manifest(mediaType=media_type), media_type)
    assert isinstance(document, oci.ImageManifest)
    assert (document.media_type, document.size, document.config.digest) == (media_type, 42, DIGEST)


@pytest.mark.parametrize("header", ["application/json", "", "text/plain; charset=utf-8"])
def test_a_manifest_without_media_type_is_known_by_its_shape(header: str) -> None:
    document = oci.parse_manifest(manifest(mediaType=None), header)
    assert isinstance(document, oci.ImageManifest)


def test_a_document_without_media_type_takes_the_header_s() -> None:
    document = oci.parse_manifest(manifest(mediaType=None), f"{oci.DOCKER_MANIFEST}; charset=utf-8")
    assert document.media_type == oci.DOCKER_MANIFEST


@pytest.mark.parametrize(
    "content",
    [
        manifest(schemaVersion=1, mediaType=None, config=None, layers=None, fsLayers=[]),
        manifest(mediaType="application/vnd.docker.distribution.manifest.v1+prettyjws"),
    ],
)
def test_schema_1_is_refused_by_name(content: bytes) -> None:
    header = "application/vnd.docker.distribution.manifest.v1+prettyjws"
    with pytest.raises(RegistryResponseError, match="schema 1"):
        oci.parse_manifest(content, header)


def test_schema_1_is_refused_without_a_header_too() -> None:
    content = manifest(schemaVersion=1, mediaType=None, config=None, layers=None, fsLayers=[])
    with pytest.raises(RegistryResponseError, match="schema 1"):
        oci.parse_manifest(content, "application/json")


HELM = "application/vnd.cncf.helm.config.v1+json"
SIGNATURE = "application/vnd.dev.cosign.simplesigning.v1+json"
ORAS = "application/vnd.oci.artifact.manifest.v1+json"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (manifest(config={"mediaType": HELM, "digest": DIGEST, "size": 2}), HELM),
        (
            manifest(
                artifactType="application/vnd.example+type",
                config={"mediaType": "application/vnd.oci.empty.v1+json", "digest": DIGEST, "size": 2},
            ),
            "application/vnd.example+type",
        ),
        (manifest(layers=[{"mediaType": SIGNATURE, "digest": DIGEST, "size": 2}]), SIGNATURE),
        (
            manifest(layers=[{"mediaType": "application/vnd.in-toto+json", "digest": DIGEST, "size": 2}]),
            "in-toto",
        ),
        (manifest(mediaType=ORAS), ORAS),
    ],
    ids=["helm chart", "oci artifact", "cosign signature", "attestation", "oras artifact"],
)
def test_artifacts_that_are_no_images_are_named(content: bytes, named: str) -> None:
    with pytest.raises(RegistryResponseError, match="no container image") as caught:
        oci.parse_manifest(content, oci.OCI_MANIFEST)
    assert named in caught.value.message


def test_encrypted_layers_and_images_without_layers_are_refused() -> None:
    encrypted = manifest(layers=[{"mediaType": f"{LAYER}+encrypted", "digest": DIGEST, "size": 2}])
    with pytest.raises(RegistryResponseError, match="encrypted"):
        oci.parse_manifest(encrypted)
    with pytest.raises(RegistryResponseError, match="no layers"):
        oci.parse_manifest(manifest(layers=[]))


@pytest.mark.parametrize("size", [-1, 2**63, 10**4000])
def test_a_size_that_no_layer_has_is_refused(size: int) -> None:
    with pytest.raises(RegistryResponseError, match=r"layers\.0\.size"):
        oci.parse_manifest(manifest(layers=[{"mediaType": LAYER, "digest": DIGEST, "size": size}]))


def test_a_document_that_is_index_and_image_at_once_is_refused() -> None:
    with pytest.raises(RegistryResponseError, match="CVE-2021-41190"):
        oci.parse_manifest(manifest(manifests=[entry("1")]))


def test_a_header_that_contradicts_the_document_is_refused() -> None:
    with pytest.raises(RegistryResponseError, match="calls itself"):
        oci.parse_manifest(manifest(), oci.OCI_INDEX)


@pytest.mark.parametrize(
    "content",
    [
        b"<html>login</html>",
        b"",
        b"[]",
        b"\xff\xfe",
        b"{}",
        b"[" * 100_000,
        manifest(config=3),
        manifest(layers=None),
    ],
    ids=["html", "empty", "list", "binary", "no manifest", "deep", "wrong type", "half"],
)
def test_what_is_no_manifest_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(RegistryResponseError) as caught:
        oci.parse_manifest(content, "text/html")
    assert len(str(caught.value)) < 600


@given(st.binary(max_size=200) | st.recursive(st.none() | st.text(), st.lists, max_leaves=5).map(
    lambda value: json.dumps({"manifests": value, "config": value, "layers": value}).encode()
))  # fmt: skip
def test_no_bytes_raise_anything_but_registry_errors(content: bytes) -> None:
    try:
        oci.parse_manifest(content)
        oci.config_platform(content)
    except RegistryError:
        pass


# -- platforms of an index ---------------------------------------------------------------------------------

COMMON = index(
    on("linux/amd64", "1"),
    on("linux/arm64/v8", "2"),
    on("linux/arm/v6", "3"),
    on("linux/arm/v7", "4"),
    on("windows/amd64", "5"),
    on("unknown/unknown", "6", annotations={"vnd.docker.reference.type": "attestation-manifest"}),
)


@pytest.mark.parametrize(
    ("arch", "variant", "expected"),
    [
        ("amd64", None, "1"), ("x86_64", None, "1"), ("amd64", "v1", "1"),
        ("arm64", None, "2"), ("aarch64", None, "2"), ("arm64", "v8", "2"), ("arm64", "8", "2"),
        ("arm", None, "4"), ("armv7l", None, "4"), ("arm", "v6", "3"), ("armv6l", None, "3"),
    ],
)  # fmt: skip
def test_the_asked_platform_is_chosen(arch: str, variant: str | None, expected: str) -> None:
    assert chosen(COMMON, arch, variant) == expected


def test_a_missing_platform_lists_those_there_without_attestations() -> None:
    with pytest.raises(RegistryNotFoundError) as caught:
        oci.choose(COMMON, Platform.of("ppc64le"))
    assert caught.value.details["platforms"] == [
        "linux/amd64", "linux/arm", "linux/arm/v6", "linux/arm64", "windows/amd64",
    ]  # fmt: skip
    assert "linux/ppc64le" in caught.value.message and "unknown" not in caught.value.message


def test_the_operating_system_counts() -> None:
    assert oci.choose(COMMON, Platform.of("amd64", os="windows")).digest.endswith("5")


def test_a_lone_variant_is_taken_and_several_ask_for_a_name() -> None:
    assert chosen(index(on("linux/amd64/v3", "7")), "amd64") == "7"
    several = index(on("linux/amd64/v2", "7"), on("linux/amd64/v3", "8"))
    with pytest.raises(RegistryNotFoundError, match="several variants"):
        chosen(several, "amd64")
    assert chosen(several, "amd64", "v3") == "8"


def test_an_explicit_variant_never_falls_back_to_another() -> None:
    with pytest.raises(RegistryNotFoundError, match="linux/amd64/v4"):
        chosen(COMMON, "amd64", "v4")


def test_the_first_of_two_entries_for_one_platform_counts() -> None:
    assert chosen(index(on("linux/amd64", "1"), on("linux/amd64", "2")), "amd64") == "1"


def test_a_lone_entry_without_platform_is_left_to_its_config() -> None:
    assert chosen(index(entry("9")), "amd64") == "9"
    with pytest.raises(RegistryNotFoundError, match="none that states its platform"):
        chosen(index(entry("8"), entry("9")), "amd64")


@pytest.mark.parametrize("digest", ["other-tag", "../../../other/manifests/x", "", "sha512:" + 128 * "a"])
def test_an_entry_is_taken_only_by_its_sha256_digest(digest: str) -> None:
    hostile = on("linux/amd64", "1") | {"digest": digest}
    with pytest.raises(RegistryResponseError, match="linux/amd64 has the digest"):
        chosen(index(hostile), "amd64")
    assert chosen(index(hostile, on("linux/arm64", "2")), "arm64") == "2"


def test_an_entry_for_an_unknown_platform_is_no_image() -> None:
    """BuildKit's attestations after a tool dropped the annotations."""
    assert chosen(index(entry("9"), on("unknown/unknown", "6")), "amd64") == "9"


def test_a_platform_without_an_operating_system_is_linux() -> None:
    unnamed = entry("1", platform={"os": None, "architecture": "amd64", "variant": None})
    assert chosen(index(unnamed), "amd64") == "1"


def test_what_an_index_says_of_its_platforms_is_shown_bounded_and_printable() -> None:
    hostile = [on(f"linux/{text}", "1") for text in ("a\n::error::", "\x1b[31m", 100 * "x")]
    many = [on(f"linux/arch{number}", "1") for number in range(500)]
    with pytest.raises(RegistryNotFoundError) as caught:
        chosen(index(*hostile, *many), "amd64")
    assert caught.value.message.isprintable() and len(caught.value.message) < 2000
    assert len(caught.value.details["platforms"]) == 50


def test_where_a_document_is_wrong_is_shown_bounded_and_printable() -> None:
    wrong = entry("1", annotations={"\n\x1b[31m" + 5000 * "x": 1})
    with pytest.raises(RegistryResponseError) as caught:
        index(wrong)
    assert caught.value.message.isprintable() and len(caught.value.message) < 600


# -- configs and digests -----------------------------------------------------------------------------------


def test_the_config_tells_the_platform_of_a_single_image() -> None:
    stated = oci.config_platform(b'{"architecture": "arm64", "os": "linux", "variant": "v8", "rootfs": {}}')
    assert str(stated) == "linux/arm64"
    oci.check_platform(stated, Platform.of("aarch64"), from_index=False)
    with pytest.raises(RegistryNotFoundError, match="single image for linux/arm64"):
        oci.check_platform(stated, Platform.of("amd64"), from_index=False)


def test_an_index_that_lies_about_its_image_is_refused() -> None:
    with pytest.raises(RegistryResponseError, match="own config says linux/arm64"):
        oci.check_platform(Platform.of("arm64"), Platform.of("amd64"), from_index=True)


@pytest.mark.parametrize("config", [b"{}", b'{"architecture": "unknown"}', b'{"architecture": "a\\nb"}'])
def test_a_config_without_architecture_is_refused(config: bytes) -> None:
    with pytest.raises(RegistryResponseError, match="no architecture"):
        oci.config_platform(config)


def test_other_bytes_than_asked_for_are_an_integrity_error_with_both_digests() -> None:
    content = manifest()
    verify(content, sha256_digest(content), "the manifest")
    with pytest.raises(IntegrityError) as caught:
        verify(content + b" ", sha256_digest(content), "the manifest")
    assert caught.value.details["expected"] == sha256_digest(content)
    assert caught.value.details["actual"] == sha256_digest(content + b" ")


@pytest.mark.parametrize("digest", ["sha512:" + 128 * "a", "md5:aa", "sha256:" + 64 * "A", "sha256:../../x", ""])
def test_digests_of_other_kinds_are_refused(digest: str) -> None:
    with pytest.raises(RegistryResponseError, match="only sha256"):
        verify(b"", digest, "the manifest")
