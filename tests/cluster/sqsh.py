# SPDX-License-Identifier: Apache-2.0
"""Image files made without Enroot, from trees of the tests' own and from the layers of the test images."""

from __future__ import annotations

import copy
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .box import Box
from .image_recipes import SYSTEM_PATH
from .images import push_layout
from .oci import ImageConfig, Layer, Tree, write_layout

# Answers the question by which a Python is recognised, then does as it likes.
FALSE_PYTHON = """\
#!/bin/sh
case "$*" in *inspect_image.py*) ;; *) printf '\\nasi:3.11\\n'; exit 0 ;; esac
PATH={path}
{body}
"""


def layers_of(layout: Path) -> list[Path]:
    """The compressed layers of an OCI layout with one image."""

    def blob(descriptor: Mapping[str, str]) -> Path:
        return layout / "blobs" / descriptor["digest"].replace(":", "/")

    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    return [blob(layer) for layer in json.loads(blob(entry).read_text())["layers"]]


def tree_of(layout: Path) -> Tree:
    """All files of an image; there are no whiteouts in the test images."""
    tree = Tree()
    for layer in layers_of(layout):
        with tarfile.open(layer) as archive:
            for member in archive:
                _add(tree, archive, member)
    return tree


def _add(tree: Tree, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    name = member.name.removeprefix("./").rstrip("/")
    if member.issym():
        tree.symlink(name, member.linkname)
    elif member.isdir() and name not in ("", "."):
        tree.directory(name, member.mode)
    elif packed := archive.extractfile(member):  # of a hard link too
        tree.file(name, packed.read(), member.mode)


def changed(tree: Tree, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Tree:
    """A copy with these files (0755) and links added or replaced."""
    result = copy.deepcopy(tree)
    for path, text in files.items():
        result.file(path, text, 0o755)
    for path, target in (links or {}).items():
        result.symlink(path, target)
    return result


def false_python(body: str) -> dict[str, str]:
    return {"usr/bin/python3": FALSE_PYTHON.format(path=SYSTEM_PATH, body=body)}


def squash(tree: Tree, target: Path) -> Path:
    """Write a .sqsh that everybody can read."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "image.tar"
        tree.write(archive)
        options = ["-tar", "-noappend", "-quiet", "-no-progress", "-comp", "zstd", "-Xcompression-level", "1"]
        with archive.open("rb") as packed:
            subprocess.run(["mksquashfs", "-", str(target), *options], stdin=packed, check=True)
    target.chmod(0o644)
    return target


def place(box: Box, name: str) -> Path:
    """Where a test puts an image file: below the box, in reach of its users."""
    directory = box.root / "images"
    directory.mkdir(mode=0o755, exist_ok=True)
    return directory / f"{name}.sqsh"


@dataclass(frozen=True)
class OddConfig(ImageConfig):
    """An image's settings, also the ones that become mounts and shell text."""

    volumes: Sequence[str] = ()
    working_directory: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def document(self, layers: Sequence[Layer]) -> dict[str, Any]:
        document = super().document(layers)
        document["config"] |= {
            "Volumes": {path: {} for path in self.volumes},
            "WorkingDir": self.working_directory,
            **self.more,
        }
        return document


def push(box: Box, tree: Tree, config: ImageConfig, repository: str) -> str:
    """Put an image of one layer into the box's registry; returns its pinned reference."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "layer.tar"
        tree.write(archive)
        layout = Path(scratch) / "layout"
        write_layout(layout, [Layer.compress(archive)], config)
        digest = push_layout(box.registry, layout, repository, "latest")
    return f"{box.registry}/{repository}@{digest}"
