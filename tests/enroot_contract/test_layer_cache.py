"""Layers kept between imports below ENROOT_CACHE_PATH."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import pytest

from .images import OCI_MANIFEST, Image, Tree, build, content
from .registries import DockerRegistry, OddRegistry
from .runner import Enroot


def _blobs(image: Image) -> set[str]:
    return {name.removeprefix("sha256:") for name in image.blobs}


def _compressed(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout


def test_blobs_are_kept_by_digest_as_zstd(enroot: Enroot, odd: OddRegistry, plain_image: Image) -> None:
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    assert enroot.import_(odd.uri("team/tool:1")).status == 0
    kept = list(enroot.paths["cache"].iterdir())
    assert {path.name for path in kept} == _blobs(plain_image)
    assert {path.stat().st_mode & 0o7777 for path in kept} == {0o640}
    subprocess.run(["zstd", "-q", "-t", *map(str, kept)], check=True)


def test_a_second_import_downloads_no_blob(enroot: Enroot, odd: OddRegistry, plain_image: Image) -> None:
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    assert enroot.import_(odd.uri("team/tool:1")).status == 0
    odd.asked.clear()
    result = enroot.import_(odd.uri("team/tool:1"), "second.sqsh")
    assert "[INFO] Found all layers in cache\n" in result.err
    assert not [request for request in odd.asked if "/blobs/" in request.path]


def test_only_missing_layers_are_downloaded(enroot: Enroot, odd: OddRegistry, base_layer: Tree) -> None:
    first, second = build([base_layer]), build([base_layer, Tree({"new": "layer"})])
    odd.add("team/tool", first, "1", media_type=OCI_MANIFEST)
    odd.add("team/tool", second, "2", media_type=OCI_MANIFEST)
    assert enroot.import_(odd.uri("team/tool:1")).status == 0
    odd.asked.clear()
    result = enroot.import_(odd.uri("team/tool:2"), "second.sqsh")
    assert "[INFO] Downloading 1 missing layers...\n" in result.err
    asked = {request.path for request in odd.asked if "/blobs/" in request.path}
    assert asked == {f"/v2/team/tool/blobs/{digest}" for digest in (second.config, second.layers[1])}


def test_a_kept_layer_is_trusted_by_its_name(enroot: Enroot, registry: DockerRegistry, image: Image) -> None:
    enroot.imported(registry, "team/tool:1")
    kept = enroot.paths["cache"] / image.layers[1].removeprefix("sha256:")
    kept.write_bytes(_compressed(gzip.decompress(Tree({"srv/forged": "forged"}).layer())))
    second = enroot.imported(registry, "team/tool:1", "second.sqsh")
    assert content(second, "srv/forged") == "forged"


def test_hard_links_from_another_cache_are_used(enroot: Enroot, registry: DockerRegistry) -> None:
    enroot.imported(registry, "team/tool:1")
    other = enroot.base / "other-cache"
    other.mkdir()
    enroot.account.own(other)
    for path in enroot.paths["cache"].iterdir():
        (other / path.name).hardlink_to(path)
    result = enroot.import_(registry.uri("team/tool:1"), "second.sqsh", env={"ENROOT_CACHE_PATH": str(other)})
    assert result.status == 0, result.err
    assert "[INFO] Found all layers in cache\n" in result.err


def test_symbolic_links_in_the_cache_fail(enroot: Enroot, registry: DockerRegistry) -> None:
    enroot.imported(registry, "team/tool:1")
    other = enroot.base / "other-cache"
    other.mkdir()
    enroot.account.own(other)
    for path in enroot.paths["cache"].iterdir():
        (other / path.name).symlink_to(path)
    result = enroot.import_(registry.uri("team/tool:1"), "second.sqsh", env={"ENROOT_CACHE_PATH": str(other)})
    assert result.status != 0
    assert not (enroot.base / "second.sqsh").exists()


@pytest.mark.parametrize("which", ["layer", "config"])
def test_a_blob_that_is_not_its_digest_fails_and_is_not_kept(
    enroot: Enroot, odd: OddRegistry, plain_image: Image, which: str
) -> None:
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    digest = plain_image.layers[0] if which == "layer" else plain_image.config
    odd.bodies[f"/v2/team/tool/blobs/{digest}"] = ("application/octet-stream", Tree({"evil": "x"}).layer())
    result = enroot.import_(odd.uri("team/tool:1"))
    name = digest.removeprefix("sha256:")
    assert result.status == 1
    assert f"Checksum mismatch: {name}\n" in result.err
    assert not (enroot.base / "image.sqsh").exists()
    assert not list(enroot.paths["cache"].glob(f"{name}*"))


@pytest.mark.parametrize("which", ["layer", "config"])
def test_a_blob_the_registry_does_not_have(enroot: Enroot, odd: OddRegistry, plain_image: Image, which: str) -> None:
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    digest = plain_image.layers[0] if which == "layer" else plain_image.config
    del odd.bodies[f"/v2/team/tool/blobs/{digest}"]
    result = enroot.import_(odd.uri("team/tool:1"))
    assert result.status == (1 if which == "layer" else 22)
    assert "curl: (22) The requested URL returned error: 404" in result.err
    assert not Path(enroot.base / "image.sqsh").exists()
