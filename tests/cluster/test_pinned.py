# SPDX-License-Identifier: Apache-2.0
"""Pinned means pinned, on a cluster: what is imported is what the digest names, for the platform that was asked for."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import IntegrityError, JobFailedError
from airflow_slurm_images.hooks.registry import OciRegistryHook
from tests.enroot_contract.images import OCI_MANIFEST, Image, Tree, base_tree, build
from tests.enroot_contract.registries import OddRegistry, odd_registry

from . import multiplatform
from .box import Box
from .works import import_task

HERE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
THERE = {"amd64": ("arm64", "aarch64"), "arm64": ("amd64", "x86_64")}[HERE]


@pytest.fixture
def hook(box_plain: Box, monkeypatch: pytest.MonkeyPatch) -> Iterator[OciRegistryHook]:
    fields = {"conn_type": "oci_registry", "host": box_plain.registry, "extra": {"insecure": True}}
    monkeypatch.setenv("AIRFLOW_CONN_BOX", json.dumps(fields))
    monkeypatch.setenv("NO_PROXY", "*")
    with OciRegistryHook("box") as hook:
        yield hook


@pytest.fixture
def odd() -> Iterator[OddRegistry]:
    with odd_registry() as running:
        yield running


def nothing_published(box: Box, name: str) -> bool:
    store = box.workspace / "store" / "sha256"
    partial = list(store.glob(".*")) if store.exists() else []
    return partial == [] and not (box.workspace / "aliases" / f"{name}.sqsh").exists()


def image(text: str) -> Image:
    return build([base_tree().plus({"etc/motd": f"{text}\n"})], architecture=HERE, Labels={"text": text})


@pytest.mark.parametrize("pin", ["index", "platform"])
def test_an_index_is_imported_for_the_nodes_platform_and_both_digests_are_kept(
    box_plain: Box, hook: OciRegistryHook, tmp_path: Path, pin: str
) -> None:
    layout = multiplatform.write_index(tmp_path / "index", [f"linux/{HERE}", f"linux/{THERE[0]}"], pin)
    multiplatform.push(box_plain.registry, layout, "pinned/app", pin, "--format=v2s2")
    name = f"{box_plain.registry}/pinned/app:{pin}"
    resolved = hook.resolve(name, arch=HERE)
    assert resolved.index_digest is not None
    digest = resolved.index_digest if pin == "index" else resolved.platform_digest
    source = import_task(box_plain, f"{name}@{digest}", f"pinned-{pin}").run().source
    assert source is not None and source.manifest_verified
    assert source.oci_digest == digest
    assert source.platform_digest == resolved.platform_digest
    assert source.index_digest == (resolved.index_digest if pin == "index" else None)


def test_an_image_for_another_platform_is_refused(box_plain: Box, hook: OciRegistryHook, tmp_path: Path) -> None:
    """Enroot itself only warns."""
    multiplatform.write_image(tmp_path / "single", THERE[0])
    multiplatform.push(box_plain.registry, tmp_path / "single" / "layout", "pinned/other", "1", "--format=v2s2")
    name = f"{box_plain.registry}/pinned/other:1"
    digest = hook.resolve(name, arch=THERE[0]).platform_digest
    with pytest.raises(JobFailedError) as caught:
        import_task(box_plain, f"{name}@{digest}", "other-platform").run()
    assert caught.value.reason == "architecture_mismatch" and not caught.value.retryable
    assert f"the image is for linux/{THERE[0]}, asked was linux/{HERE}" in str(caught.value)
    assert nothing_published(box_plain, "other-platform")


def test_an_image_of_a_verified_import_says_what_its_config_says(box_plain: Box, odd: OddRegistry) -> None:
    wanted = image("wanted")
    odd.add("team/tool", wanted, wanted.digest, media_type=OCI_MANIFEST)
    record = import_task(box_plain, f"{odd.address}/team/tool@{wanted.digest}", "described", insecure=True).run()
    assert record.image["labels"] == {"text": "wanted"}
    assert [layer["digest"] for layer in record.image["layers"]] == [
        layer["digest"] for layer in json.loads(wanted.manifest)["layers"]
    ]


def test_other_bytes_for_the_digest_publish_nothing(box_plain: Box, odd: OddRegistry) -> None:
    wanted, served = image("wanted"), image("served instead")
    odd.add("team/tool", served, wanted.digest, media_type=OCI_MANIFEST)
    task = import_task(box_plain, f"{odd.address}/team/tool@{wanted.digest}", "swapped", insecure=True)
    with pytest.raises(IntegrityError, match="other bytes") as caught:
        task.run()
    assert not caught.value.retryable and odd.address in str(caught.value)
    assert task.completion()["phase"] == "manifest" and nothing_published(box_plain, "swapped")


def layers_in_another_order(wanted: Image) -> bytes:
    """The lower layer's files would cover those of the upper one."""
    manifest = json.loads(wanted.manifest)
    manifest["layers"].reverse()
    return json.dumps(manifest).encode()


def list_of(served: Image) -> bytes:
    """An index, which Enroot asks for first and follows to whatever it names."""
    entry = {"mediaType": OCI_MANIFEST, "digest": served.digest, "size": len(served.manifest)}
    return json.dumps({"manifests": [{**entry, "platform": {"os": "linux", "architecture": HERE}}]}).encode()


@pytest.mark.parametrize("instead", ["another image", "layers in another order", "a list"])
def test_other_bytes_for_enroot_alone_publish_nothing(box_plain: Box, odd: OddRegistry, instead: str) -> None:
    """A registry (or what stands before it) that answers the second question otherwise."""
    upper = Tree({"etc/motd": "upper\n"})
    wanted, served = build([base_tree(), upper], architecture=HERE), image("served to enroot")
    odd.add("team/tool", served, served.digest, media_type=OCI_MANIFEST)
    odd.add("team/tool", wanted, wanted.digest, media_type=OCI_MANIFEST)
    content = {
        "another image": served.manifest,
        "layers in another order": layers_in_another_order(wanted),
        "a list": list_of(served),
    }[instead]

    def swap() -> None:
        odd.bodies[f"/v2/team/tool/manifests/{wanted.digest}"] = (OCI_MANIFEST, content)

    odd.before_blob = swap  # the first blob is the config that the job itself asks for, after the manifest
    task = import_task(box_plain, f"{odd.address}/team/tool@{wanted.digest}", "swapped-later", insecure=True)
    with pytest.raises(IntegrityError, match=f"gave Enroot other bytes than {wanted.digest} names"):
        task.run()
    assert nothing_published(box_plain, "swapped-later")


def test_with_the_check_switched_off_the_record_says_so(box_plain: Box, odd: OddRegistry) -> None:
    wanted, served = image("wanted"), image("rewritten")
    odd.add("team/tool", served, wanted.digest, media_type=OCI_MANIFEST)
    name = f"{odd.address}/team/tool@{wanted.digest}"
    source = import_task(box_plain, name, "unverified", insecure=True, verify_manifest=False).run().source
    assert source is not None and not source.manifest_verified
    assert source.platform_digest is None and source.oci_digest == wanted.digest
