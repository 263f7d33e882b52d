"""OCI image layouts, written with the standard library: the same input gives the same digests."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

# All files of ours have this time, so that digests repeat.
EPOCH = 1_700_000_000
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Tree:
    """The files of one layer."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def directory(self, path: str, mode: int = 0o755) -> None:
        self._add(path, tarfile.DIRTYPE, mode)

    def file(self, path: str, content: bytes | str, mode: int = 0o644) -> None:
        data = content.encode() if isinstance(content, str) else content
        self._add(path, tarfile.REGTYPE, mode, data)

    def symlink(self, path: str, target: str) -> None:
        self._add(path, tarfile.SYMTYPE, 0o777, target=target)

    def _add(self, path: str, kind: bytes, mode: int, data: bytes = b"", target: str = "") -> None:
        name = path.strip("/")
        for parent in reversed(PurePosixPath(name).parents[:-1]):
            if str(parent) not in self._members:
                self.directory(str(parent))
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime, info.size, info.linkname = kind, mode, EPOCH, len(data), target
        self._members[name] = info, data

    def write(self, target: Path) -> None:
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(self._members):
                info, data = self._members[name]
                archive.addfile(info, io.BytesIO(data))


@dataclass(frozen=True)
class Layer:
    """A compressed layer; `diff_id` is the digest of the tar inside."""

    blob: Path
    digest: str
    diff_id: str

    @classmethod
    def compress(cls, archive: Path) -> Layer:
        """Write `archive` beside itself with gzip."""
        blob = archive.with_suffix(".tar.gz")
        with (
            archive.open("rb") as source,
            blob.open("wb") as target,
            gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=6, mtime=0) as packed,
        ):
            shutil.copyfileobj(source, packed, 1 << 20)
        return cls.of(blob, archive)

    @classmethod
    def of(cls, blob: Path, archive: Path) -> Layer:
        return cls(blob, file_digest(blob), file_digest(archive))


@dataclass(frozen=True)
class ImageConfig:
    """What an image says about running it."""

    architecture: str
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def document(self, layers: Sequence[Layer]) -> dict[str, Any]:
        run = {
            "Env": [f"{name}={value}" for name, value in self.env.items()],
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "Labels": dict(self.labels),
        }
        return {
            "created": "2023-11-14T22:13:20Z",
            "architecture": self.architecture,
            "os": "linux",
            "config": {key: value for key, value in run.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }


def write_layout(target: Path, layers: Sequence[Layer], config: ImageConfig) -> None:
    """An OCI layout that holds this one image."""
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for layer in layers:
        shutil.copyfile(layer.blob, blobs / layer.digest.removeprefix("sha256:"))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _put_json(blobs, CONFIG, config.document(layers)),
        "layers": [_descriptor(LAYER, layer.digest, layer.blob.stat().st_size) for layer in layers],
    }
    index = {"schemaVersion": 2, "manifests": [_put_json(blobs, MANIFEST, manifest)]}
    (target / "index.json").write_text(json.dumps(index))
    (target / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _put_json(blobs: Path, media_type: str, document: Mapping[str, Any]) -> dict[str, Any]:
    data = json.dumps(document).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return _descriptor(media_type, f"sha256:{digest}", len(data))


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size}
