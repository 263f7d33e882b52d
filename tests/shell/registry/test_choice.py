# SPDX-License-Identifier: Apache-2.0
"""The job reads documents by the rules of core/oci.py: what they are, and which entry is a platform's."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

from airflow_slurm_images.core import oci
from airflow_slurm_images.core.errors import RegistryError
from airflow_slurm_images.core.platform import Platform
from tests.cluster.misbehaving_registry import document

from .functions import CLUSTER

ARCHITECTURES = ("amd64", "arm64")
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
READ = """
ASI_ATTEMPT_DIR=/nonexistent
source "$0/manifest.sh"
for file in "$@"; do
    printf '%s|%s|%s\\n' "$(asi::kind "${file}")" "$(asi::choose "${file}" amd64)" "$(asi::choose "${file}" arm64)"
done
"""


def some_entry(choose: random.Random, number: int) -> dict[str, Any]:
    platform = {
        "architecture": choose.choice(["amd64", "arm64", "AMD64", "x86_64", "aarch64", "unknown", "", None, "arm"]),
        "os": choose.choice(["linux", "linux", "Linux", "windows", "", None]),
        "variant": choose.choice([None, None, "", "v8", "v1", "v2", "8", "V8", "1", "v9"]),
    }
    entry = {
        "digest": f"sha256:{number:064x}",
        "size": 1,
        "mediaType": choose.choice([oci.OCI_MANIFEST, oci.DOCKER_MANIFEST, oci.OCI_INDEX, "", "application/x"]),
        "platform": choose.choice([platform, platform, platform, platform, platform, None, {}]),
        "annotations": choose.choice([None, {}, {"a": "b"}, {"vnd.docker.reference.type": "attestation-manifest"}]),
    }
    return {key: value for key, value in entry.items() if value is not None or choose.random() < 0.5}


def some_document(choose: random.Random) -> dict[str, Any]:
    types = [oci.OCI_INDEX, oci.DOCKER_LIST, oci.OCI_MANIFEST, oci.DOCKER_MANIFEST, "application/x", *(9 * [None])]
    configs = [*(3 * [oci.OCI_CONFIG]), oci.DOCKER_CONFIG, "application/vnd.oci.empty.v1+json"]
    foreign = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
    layers = [*(6 * [LAYER]), foreign, f"{LAYER}+encrypted", "a/b"]
    made: dict[str, Any] = {"schemaVersion": choose.choice([1, *(9 * [2])])}
    if media_type := choose.choice(types):
        made["mediaType"] = media_type
    shape = choose.choice(["index", "index", "index", "image", "image", "both"])
    if shape != "image":
        made["manifests"] = [some_entry(choose, number) for number in range(choose.randint(0, 4))]
    if shape != "index":
        config = {"mediaType": choose.choice(configs), "digest": "sha256:1", "size": 1}
        named = [{"mediaType": choose.choice(layers), "digest": "sha256:1", "size": 1} for _ in range(2)]
        made["config"] = choose.choice([config, config, config, None])
        made["layers"] = choose.choice([named, named, named, [], None])
    return made


def read_by_the_worker(content: bytes) -> tuple[str, list[str]]:
    """Kind, and for an index the digest chosen for each architecture (empty for none)."""
    try:
        parsed = oci.parse_manifest(content)
    except RegistryError:
        return "no", []
    if isinstance(parsed, oci.ImageManifest):
        return "image", []
    chosen = []
    for architecture in ARCHITECTURES:
        try:
            chosen.append(oci.choose(parsed, Platform.of(architecture)).digest)
        except RegistryError:
            chosen.append("")
    return "index", chosen


def read_by_the_job(contents: list[bytes], directory: Path) -> list[str]:
    """A line for each document."""
    files = [directory / str(number) for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    asked = ["bash", "-euc", READ, str(CLUSTER), *map(str, files)]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_document_is_read_as_the_worker_reads_it(tmp_path: Path) -> None:
    choose = random.Random(0)
    contents = [document(some_document(choose)) for _ in range(60)]
    kinds = []
    for content, line in zip(contents, read_by_the_job(contents, tmp_path), strict=True):
        kind, *chosen = line.split("|")
        kinds.append(kind.split()[0])
        expected, digests = read_by_the_worker(content)
        assert (kinds[-1], chosen if kinds[-1] == "index" else []) == (expected, digests), content
    assert set(kinds) == {"index", "image", "no"}


LAYERS: dict[str, bool] = {
    LAYER: True,
    "application/vnd.oci.image.layer.v1.tar": True,
    "application/vnd.oci.image.layer.v1.tar+zstd": True,
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": True,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": True,
    "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip": True,
    "application/vnd.oci.image.layer.nydus.blob.v1": False,
    "application/vnd.oci.image.layer.v2.tar": False,
    "application/vnd.oci.image.layer.v1": False,
    "application/vndXoci.image.layer.v1.tar": False,
    "x\napplication/vnd.oci.image.layer.v1.tar": False,
    "": False,
}


def test_a_layer_that_enroot_cannot_read_is_none_for_both(tmp_path: Path) -> None:
    """Also beside a good one; a layer has to say what it is."""
    config = {"mediaType": oci.OCI_CONFIG, "digest": "sha256:1", "size": 1}
    good = {"mediaType": LAYER, "digest": "sha256:1", "size": 1}
    plain = {"digest": "sha256:1", "size": 1}
    odd: list[tuple[dict[str, Any], bool]] = [({**plain, "mediaType": name}, fine) for name, fine in LAYERS.items()]
    odd += [(plain, False), ({**plain, "mediaType": None}, False), ({**plain, "mediaType": 5}, False)]
    contents = [document({"schemaVersion": 2, "config": config, "layers": [good, layer]}) for layer, _ in odd]
    expected = ["image" if fine else "no" for _, fine in odd]
    assert [line.split()[0] for line in read_by_the_job(contents, tmp_path)] == expected
    assert [read_by_the_worker(content)[0] for content in contents] == expected
