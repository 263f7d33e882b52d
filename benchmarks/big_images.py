# SPDX-License-Identifier: Apache-2.0
"""Images of a wanted size, made on the spot: Debian, Python with a hundred distributions, and layers of data.

The data is a mix such as machine learning images hold: shared libraries that pack to two thirds, model files that do
not pack at all, and many small files of text. The same size gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import random
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.cluster import images, wheels
from tests.cluster.image_recipes import SYSTEM_PATH, pip_wheel
from tests.cluster.oci import EPOCH, ImageConfig, Layer, Tree, file_digest, write_layout
from tests.cluster.sqsh import layers_of

SITE = "/usr/local/lib/python3.11/dist-packages"
DATA_LAYERS = 4
TOP_SHARE = 0.05  # of the size: the last layer, which a refresh brings anew
KIB, MIB = 2**10, 2**20

# What the reference asks of an image of its kind "client".
REFERENCE_DISTRIBUTIONS = {
    "data-designer": "1.0.0rc1",
    "data-designer-config": "1.0.0rc1",
    "data-designer-engine": "1.0.0rc1",
    "data-designer-slurm": "1.0.0rc1",
    "aiohttp": "3.14.5",
}
MORE_DISTRIBUTIONS = 92


@dataclass(frozen=True)
class Share:
    """Files that make up a part of a layer: sizes between two bounds, some of the bytes random."""

    part: float
    smallest: int
    largest: int
    random: float
    name: str


SHARES = (
    Share(0.45, 8 * MIB, 48 * MIB, 0.5, "lib/lib{}.so"),
    Share(0.15, 4 * MIB, 16 * MIB, 1.0, "share/model-{}.bin"),
    Share(0.30, 20 * KIB, 400 * KIB, 0.5, "lib/modules/{}.so"),
    Share(0.10, 1 * KIB, 24 * KIB, 0.0, "lib/python/module_{}.py"),
)


@dataclass(frozen=True)
class BigImage:
    """Pinned references of an image and of its refresh, which differ in the last layer."""

    image: str
    refreshed: str
    layer_bytes: int
    top_bytes: int
    files: int
    layers: int


def push(registry: str, gigabytes: float, scratch: Path) -> BigImage:
    """Make both images below `scratch`, push them, and leave nothing there."""
    scratch.mkdir()
    size = int(gigabytes * 1e9)
    top = int(size * TOP_SHARE)
    each = (size - top) // DATA_LAYERS
    debian = layers_of(images.build_all()["client"])[0]
    base = [_debian(debian, scratch), _python(scratch)]
    files = 0
    for number in range(DATA_LAYERS):
        layer, count = _data_layer(scratch, f"data{number}", each)
        base.append(layer)
        files += count
    first, count = _data_layer(scratch, "top1", top)
    second, _ = _data_layer(scratch, "top2", top)
    repository = f"benchmark/client-{int(gigabytes * 1000)}"
    pinned = []
    for tag, last in (("1", first), ("2", second)):
        layout = scratch / f"layout{tag}"
        write_layout(layout, [*base, last], ImageConfig(_architecture(), {"PATH": SYSTEM_PATH}, command=["python3"]))
        digest = images.push_layout(registry, layout, repository, tag)
        pinned.append(f"{registry}/{repository}:{tag}@{digest}")
        shutil.rmtree(layout)
    total = sum(layer.blob.stat().st_size for layer in (*base, first))
    found = BigImage(pinned[0], pinned[1], total, first.blob.stat().st_size, files + count, len(base) + 1)
    shutil.rmtree(scratch)
    return found


def _architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()


def _debian(blob: Path, scratch: Path) -> Layer:
    archive = scratch / "debian.tar"
    with archive.open("wb") as target:
        subprocess.run(["gzip", "-dc", str(blob)], stdout=target, check=True)
    layer = Layer.of(blob, archive)
    archive.unlink()
    return layer


def _python(scratch: Path) -> Layer:
    tree = Tree()
    wheels.unpack(tree, pip_wheel(), SITE)
    tree.file("/usr/local/bin/pip", wheels.console_script("pip._internal.cli.main:main", "/usr/bin/python3"), 0o755)
    with zipfile.ZipFile(pip_wheel()) as wheel:  # the reference finds the script there and nowhere else
        record = next(name for name in wheel.namelist() if name.endswith(".dist-info/RECORD"))
        tree.file(f"{SITE}/{record}", wheel.read(record) + b"../../../bin/pip,,\n")
    more = {f"made-up-{number}": f"1.{number}.0" for number in range(MORE_DISTRIBUTIONS)}
    for name, version in {**REFERENCE_DISTRIBUTIONS, **more}.items():
        module = name.replace("-", "_")
        wheels.install(tree, SITE, name, version, {f"{module}/__init__.py": f'__version__ = "{version}"\n'})
    archive = scratch / "python.tar"
    tree.write(archive)
    return Layer.compress(archive)


class _Sink(io.RawIOBase):
    """Takes a tar, hashes it and passes it on to a compressor."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.digest.update(data)
        return self._target.write(data)


def _data_layer(scratch: Path, name: str, size: int) -> tuple[Layer, int]:
    """A layer of so many bytes below /opt/<name>, and the number of its files."""
    blob = scratch / f"{name}.tar.gz"
    packer = "pigz" if shutil.which("pigz") else "gzip"
    files = 0
    with blob.open("wb") as target, subprocess.Popen([packer, "-n", "-6"], stdin=subprocess.PIPE, stdout=target) as run:
        assert run.stdin is not None
        sink = _Sink(run.stdin)
        with tarfile.open(fileobj=sink, mode="w|", bufsize=MIB, format=tarfile.PAX_FORMAT) as archive:
            for path, data in _files(name, size):
                info = tarfile.TarInfo(f"opt/{name}/{path}")
                info.size, info.mtime = len(data), EPOCH
                archive.addfile(info, io.BytesIO(data))
                files += 1
        run.stdin.close()
    if run.returncode:
        raise RuntimeError(f"{packer} ended with status {run.returncode}")
    return Layer(blob, file_digest(blob), f"sha256:{sink.digest.hexdigest()}"), files


def _files(seed: str, size: int) -> Iterator[tuple[str, bytes]]:
    dice = random.Random(seed)
    content = _content(dice)
    for share in SHARES:
        left, number = int(size * share.part), 0
        while left > 0:
            length = min(dice.randint(share.smallest, share.largest), left)
            yield share.name.format(number), content(length, share.random)
            left -= length
            number += 1


def _content(dice: random.Random) -> Callable[[int, float], bytes]:
    """Makes bytes that are random in stretches, and text between."""
    words = ["".join(dice.choices("etaoinshrdlu_(),.=", k=dice.randint(2, 9))) for _ in range(4096)]
    text = " ".join(dice.choices(words, k=1_500_000)).encode()
    block = 16 * KIB

    def make(length: int, share: float) -> bytes:
        parts = []
        for start in range(0, length, block):
            size = min(block, length - start)
            noise = int(size * share)
            begin = dice.randrange(len(text) - block)
            parts += [dice.randbytes(noise), text[begin : begin + size - noise]]
        return b"".join(parts)

    return make
