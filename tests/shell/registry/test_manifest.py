# SPDX-License-Identifier: Apache-2.0
"""Pinned means pinned: what the job checks at the registry before and after Enroot's import."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_slurm_images.core.image_facts import static_facts
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import CONFIG, INDEX, LAYER, MANIFEST, REPOSITORY, BadReply, document
from tests.shell.fake_slurm.login import LocalCluster
from tests.shell.fake_slurm.registry import HERE, LAYERS, OTHER, Registry, entry, imported, refused, run


def test_the_manifest_of_a_single_image_is_compared_and_imported(cluster: LocalCluster, registry: Registry) -> None:
    settings = {"User": "app", "Labels": {"a": "b\n c"}, "Volumes": {"/data": {}}}
    digest = registry.image(created="2024-01-01T00:00:00Z", config=settings)
    done = run(cluster, registry, digest)
    assert done.status == 0, done.output
    assert (done.record.platform_digest, done.record.index_digest) == (digest, None)
    assert imported(cluster) == [digest]
    facts = static_facts({"oci-config": (done.directory / "output/static/oci-config").read_bytes()})
    assert (facts["user"], facts["labels"], facts["volumes"]) == ("app", {"a": "b\n c"}, ["/data"])
    assert facts["created"] == "2024-01-01T00:00:00Z"
    assert [layer["digest"] for layer in facts["layers"]] == LAYERS


def test_of_an_index_the_platforms_own_manifest_is_imported(cluster: LocalCluster, registry: Registry) -> None:
    foreign = registry.image(OTHER)
    attestation = {"vnd.docker.reference.type": "attestation-manifest"}
    own = registry.image(HERE)
    pinned = registry.index(
        entry(foreign, OTHER),
        entry("sha256:" + 64 * "a", HERE, annotations=attestation),
        entry("sha256:" + 64 * "b", HERE, "v9"),
        entry(own, HERE),
    )
    done = run(cluster, registry, pinned)
    assert done.status == 0, done.output
    assert (done.record.platform_digest, done.record.index_digest) == (own, pinned)
    assert imported(cluster) == [own]


@pytest.mark.parametrize("variant", ["v9", None])
def test_the_only_entry_that_can_be_meant_is_taken(
    cluster: LocalCluster, registry: Registry, variant: str | None
) -> None:
    own = registry.image(HERE)
    done = run(cluster, registry, registry.index(entry(own, HERE if variant else None, variant)))
    assert done.status == 0 and imported(cluster) == [own]


def test_other_names_of_the_architecture_mean_the_same(cluster: LocalCluster, registry: Registry) -> None:
    name = {"amd64": "x86_64", "arm64": "aarch64"}[HERE]
    variant = {"amd64": "V1", "arm64": "8"}[HERE]
    own = registry.image(name)
    pinned = registry.index(entry("sha256:" + 64 * "b", HERE, "v9"), entry(own, name, variant))
    done = run(cluster, registry, pinned)
    assert done.status == 0 and imported(cluster) == [own], done.output


def test_an_entry_for_an_unknown_platform_is_no_image(cluster: LocalCluster, registry: Registry) -> None:
    own = registry.image(HERE)
    attestation = entry("sha256:" + 64 * "a", "unknown")
    done = run(cluster, registry, registry.index(entry(own, None), attestation))
    assert done.status == 0 and imported(cluster) == [own], done.output


def test_an_index_without_the_platform_is_another_architecture(cluster: LocalCluster, registry: Registry) -> None:
    done = run(cluster, registry, registry.index(entry(registry.image(OTHER), OTHER)))
    assert f"it holds linux/{OTHER}" in refused(cluster, done, "architecture_mismatch")
    assert imported(cluster) == []


@pytest.mark.parametrize("in_index", [False, True])
def test_an_image_that_calls_itself_another_architectures_is_refused(
    cluster: LocalCluster, registry: Registry, in_index: bool
) -> None:
    digest = registry.image(OTHER)
    done = run(cluster, registry, registry.index(entry(digest, HERE)) if in_index else digest)
    assert f"for linux/{OTHER}, asked was linux/{HERE}" in refused(cluster, done, "architecture_mismatch")


def test_the_architecture_asked_for_counts(cluster: LocalCluster, registry: Registry) -> None:
    own, foreign = registry.image(HERE), registry.image(OTHER)
    digest = registry.index(entry(own, HERE), entry(foreign, OTHER))
    done = run(cluster, registry, digest, arch=OTHER)
    assert done.record.platform_digest == foreign, done.output


@pytest.mark.parametrize("place", ["pinned", "platform", "config"])
def test_other_bytes_than_the_digest_names_are_refused(cluster: LocalCluster, registry: Registry, place: str) -> None:
    own = registry.image(HERE)
    pinned = registry.index(entry(own, HERE))
    config = "sha256:" + next(name for name in registry.layers if name not in (layer[7:] for layer in LAYERS))
    path = {"pinned": f"manifests/{pinned}", "platform": f"manifests/{own}", "config": f"blobs/{config}"}[place]
    good = registry.now(f"/v2/{REPOSITORY}/{path}")
    registry.script(f"/v2/{REPOSITORY}/{path}", Reply(200, good.body + b" ", good.headers))
    done = run(cluster, registry, pinned)
    output = refused(cluster, done, "manifest_mismatch")
    assert registry.address in output and path.partition("/")[2] in output
    assert imported(cluster) == []


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"[]",
        document({"schemaVersion": 1, "fsLayers": []}),
        document({"manifests": [], "config": {}, "layers": []}),
        document(
            {"schemaVersion": 2, "config": {"mediaType": "application/vnd.cncf.helm.config.v1+json"}, "layers": []}
        ),
        document(
            {"mediaType": INDEX, "config": {"mediaType": CONFIG, "digest": "x"}, "layers": [{"mediaType": LAYER}]}
        ),
        document({"mediaType": MANIFEST, "manifests": []}),
        document({"config": {"mediaType": CONFIG, "digest": "x"}, "layers": [{"mediaType": LAYER + "+encrypted"}]}),
        document({"mediaType": "application/vnd.oci.artifact.manifest.v1+json", "blobs": []}),
        document({"config": {"mediaType": CONFIG, "digest": "x"}, "layers": [{"mediaType": "application/spdx+json"}]}),
        document({"config": {"mediaType": CONFIG, "digest": "../../x"}, "layers": [{"mediaType": LAYER}]}),
    ],
)
def test_what_is_no_image_is_said_so(cluster: LocalCluster, registry: Registry, content: bytes) -> None:
    refused(cluster, run(cluster, registry, registry.add("manifests", content)), "no_image")


def test_schema_1_is_said_so_though_its_digest_is_not_that_of_its_bytes(
    cluster: LocalCluster, registry: Registry
) -> None:
    digest = "sha256:" + 64 * "d"
    signed = [("Content-Type", "application/vnd.docker.distribution.manifest.v1+prettyjws")]
    registry.script(f"/v2/{REPOSITORY}/manifests/{digest}", Reply(200, b"{}", signed))
    assert "schema 1" in refused(cluster, run(cluster, registry, digest), "no_image")


def test_documents_are_asked_for_as_they_are_stored(cluster: LocalCluster, registry: Registry) -> None:
    """A body that is compressed on the way is not what the digest names."""
    done = run(cluster, registry, registry.image())
    assert done.status == 0, done.output
    assert {request.headers.get("Accept-Encoding") for request in registry.requests} == {"identity"}


@pytest.mark.parametrize("fault", ["none", "unannounced", "dripping"])
def test_an_endless_manifest_is_given_up(cluster: LocalCluster, registry: Registry, fault: Any) -> None:
    digest = "sha256:" + 64 * "d"
    registry.script(f"/v2/{REPOSITORY}/manifests/{digest}", BadReply(200, b" " * 5_000_000, fault=fault))
    assert "4194304 bytes" in refused(cluster, run(cluster, registry, digest), "no_image")


def test_a_second_answer_with_other_layers_is_noticed(cluster: LocalCluster, registry: Registry) -> None:
    """Enroot asks for the manifest again and compares nothing."""
    digest = registry.image()
    registry.layers.append("e" * 64)
    done = run(cluster, registry, digest)
    assert "gave Enroot other layers" in refused(cluster, done, "manifest_mismatch")


def test_only_the_images_own_layers_come_from_the_layer_cache(cluster: LocalCluster, registry: Registry) -> None:
    cluster.hook.prepare("")
    cache = next((cluster.workspace / "users").iterdir()) / "cache"
    for name in (LAYERS[0][7:], "f" * 64):
        (cache / name).write_text("kept")
    done = run(cluster, registry, registry.image())
    assert done.status == 0, done.output
    assert (cache / LAYERS[0][7:]).read_text() == "kept"
    assert (cache / LAYERS[1][7:]).read_text() == "new\n"


def test_switched_off_nothing_is_asked_and_the_record_says_so(cluster: LocalCluster, registry: Registry) -> None:
    cluster.profile["verify_manifest"] = False
    cluster.hook = cluster.new_hook()
    digest = registry.image(OTHER)
    done = run(cluster, registry, digest)
    assert done.status == 0 and done.record.platform_digest is None
    assert registry.requests == [] and imported(cluster) == [digest]
