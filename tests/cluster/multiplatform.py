# SPDX-License-Identifier: Apache-2.0
"""Multi-platform images of a few bytes, pushed by skopeo as other people's tools push them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .oci import EPOCH, ImageConfig, Layer, Tree, write_layout

INDEX = "application/vnd.oci.image.index.v1+json"


def write_image(target: Path, architecture: str, text: str = "hello") -> None:
    """An OCI layout of one image with one small file."""
    tree = Tree()
    tree.file("etc/motd", f"{text} on {architecture} since {EPOCH}\n")
    target.mkdir(parents=True)
    archive = target / "layer.tar"
    tree.write(archive)
    write_layout(target / "layout", [Layer.compress(archive)], ImageConfig(architecture))


def write_index(target: Path, platforms: Sequence[str], text: str = "hello") -> Path:
    """An OCI layout of an index; platforms are written `linux/arm/v7`."""
    layout = target / "layout"
    entries = []
    for platform in platforms:
        one = target / platform.replace("/", "-")
        names = ("os", "architecture", "variant")
        fields = dict(zip(names, platform.split("/"), strict=False))
        write_image(one, fields["architecture"], text)
        shutil.copytree(one / "layout", layout, dirs_exist_ok=True)
        entries.append(_only_entry(one / "layout") | {"platform": fields})
    _wrap(layout, {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
    return layout


def push(registry: str, layout: Path, repository: str, tag: str, *options: str) -> None:
    """Copy a layout, all platforms, to a registry that is open and speaks plain HTTP."""
    argv = ["skopeo", "--insecure-policy", "copy", "--all", "--quiet", "--dest-tls-verify=false", *options]
    subprocess.run([*argv, f"oci:{layout}", f"docker://{registry}/{repository}:{tag}"], check=True)


def _only_entry(layout: Path) -> dict[str, Any]:
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    assert isinstance(entry, dict)
    return entry


def _wrap(layout: Path, index: dict[str, Any]) -> None:
    """Put the index into the layout as a blob: a layout's own index.json holds what can be copied."""
    data = json.dumps(index).encode()
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(data)
    entry = {"mediaType": INDEX, "digest": f"sha256:{digest}", "size": len(data)}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
