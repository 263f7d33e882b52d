"""Small images written by hand: OCI layouts for a registry, directories for mksquashfs."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUSYBOX = "/bin/busybox"
APPLETS = ("cat", "echo", "env", "id", "kill", "ls", "mkdir", "readlink", "sh", "sleep", "touch", "true", "wget")
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
PATH_INSIDE = "/opt/tools:/bin"


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass
class Tree:
    """A layer's or an image's files: text or bytes, None for a directory, a path for a symbolic link."""

    files: dict[str, str | bytes | None] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)

    def plus(self, files: Mapping[str, str | bytes | None] = {}, links: Mapping[str, str] = {}) -> Tree:
        return Tree({**self.files, **files}, {**self.links, **links}, dict(self.modes))

    def members(self) -> list[tuple[tarfile.TarInfo, bytes]]:
        found = []
        for name, content in self.files.items():
            info = tarfile.TarInfo(name)
            data = b"" if content is None else content.encode() if isinstance(content, str) else content
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            info.mode = self.modes.get(name, 0o755 if content is None else 0o644)
            info.size = len(data)
            found.append((info, data))
        for name, target in self.links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
            found.append((info, b""))
        return found

    def layer(self) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for info, data in self.members():
                archive.addfile(info, io.BytesIO(data))
        return gzip.compress(buffer.getvalue(), compresslevel=1, mtime=0)

    def write(self, root: Path) -> Path:
        for name, content in self.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            path.chmod(self.modes.get(name, 0o755 if content is None else 0o644))
        for name, target in self.links.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
        return root


def base_tree() -> Tree:
    """Busybox, the usual empty directories, accounts, and a profile that resets PATH as Debian's does."""
    tree = Tree()
    for name in ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "opt/tools"):
        tree.files[name] = None
    tree.files["bin/busybox"] = Path(BUSYBOX).read_bytes()
    tree.modes["bin/busybox"] = 0o755
    tree.files["etc/passwd"] = "root:x:0:0:root:/root:/bin/sh\n"
    tree.files["etc/group"] = "root:x:0:\n"
    tree.files["etc/profile"] = "PATH=/usr/local/bin:/bin\nexport PATH\n"
    tree.files["opt/tools/tool"] = "#!/bin/sh\necho a tool of the image\n"
    tree.modes["opt/tools/tool"] = 0o755
    tree.links |= {f"bin/{applet}": "busybox" for applet in APPLETS}
    return tree


@dataclass(frozen=True)
class Image:
    """An image's blobs by digest, and its manifest."""

    blobs: Mapping[str, bytes]
    manifest: bytes
    config: str
    layers: tuple[str, ...]

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)


def build(layers: Sequence[Tree], *, architecture: str = "amd64", history: bool = True, **settings: Any) -> Image:
    """`settings` are the fields of the image's configuration: Env, Entrypoint, Cmd, Volumes, ..."""
    blobs = [tree.layer() for tree in layers]
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": settings,
            # An old registry cannot answer a request without media types for an image without a history.
            "history": [{"created_by": "contract tests"} for _ in blobs] if history else [],
            "rootfs": {"type": "layers", "diff_ids": [digest_of(gzip.decompress(blob)) for blob in blobs]},
        },
        sort_keys=True,
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": OCI_CONFIG, "digest": digest_of(config), "size": len(config)},
            "layers": [{"mediaType": OCI_LAYER, "digest": digest_of(blob), "size": len(blob)} for blob in blobs],
        }
    ).encode()
    names = tuple(digest_of(blob) for blob in blobs)
    contents = dict(zip(names, blobs, strict=True)) | {digest_of(config): config}
    return Image(contents, manifest, digest_of(config), names)


def write_layout(image: Image, target: Path) -> Path:
    blobs = target / "blobs/sha256"
    blobs.mkdir(parents=True)
    for name, data in {**image.blobs, image.digest: image.manifest}.items():
        (blobs / name.removeprefix("sha256:")).write_bytes(data)
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entry = {"mediaType": OCI_MANIFEST, "digest": image.digest, "size": len(image.manifest)}
    entry["annotations"] = {"org.opencontainers.image.ref.name": "image"}
    (target / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return target


def squash(tree: Tree, target: Path, work: Path) -> Path:
    """A .sqsh made without Enroot, so with whatever an image must not have."""
    root = tree.write(work / f"{target.stem}.root")
    command = ["mksquashfs", str(root), str(target), "-all-root", "-no-progress", "-comp", "gzip"]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(root)
    target.chmod(0o644)
    return target


def listing(image: Path) -> dict[str, str]:
    """Path inside -> the line `unsquashfs -ll` has for it."""
    done = subprocess.run(["unsquashfs", "-lln", str(image)], check=True, capture_output=True, text=True)
    found = {}
    for line in done.stdout.splitlines():
        if "squashfs-root" in line:
            path = line.partition("squashfs-root")[2].partition(" -> ")[0]
            found[path.lstrip("/")] = line
    return found


def content(image: Path, path: str) -> str:
    done = subprocess.run(["unsquashfs", "-cat", str(image), path], check=True, capture_output=True, text=True)
    return done.stdout


def compression(image: Path) -> str:
    done = subprocess.run(["unsquashfs", "-s", str(image)], check=True, capture_output=True, text=True)
    return next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("Compression"))
