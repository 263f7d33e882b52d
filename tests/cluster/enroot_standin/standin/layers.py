"""Layers: into the cache by digest, out of it into directories, and merged into one root file system."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .console import Exit, complain, fail, fix_permissions, info, remove_tree, status_of
from .registry import Layer, Manifest, Registry

ZSTD_LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
CONFIG = "application/vnd.oci.image.config.v1+json"
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
ATTEMPTS = 2


def cached(digest: str) -> Path:
    """A name in the cache is trusted: nothing is verified again."""
    return Path(os.environ["ENROOT_CACHE_PATH"]) / digest


def _stored_as(media_type: str, target: Path) -> list[list[str]]:
    """The programs a blob goes through on its way into the cache, where everything is zstd."""
    if media_type == ZSTD_LAYER:
        return [["dd", "status=none", f"of={target}"]]
    compress = ["zstd", "-T1", "-q", "-f", "-o", str(target), *os.environ["ENROOT_ZSTD_OPTIONS"].split()]
    return [[os.environ["ENROOT_GZIP_PROGRAM"], "-d", "-f", "-c"], compress]


def _pump(download: subprocess.Popen[bytes], programs: list[list[str]]) -> tuple[str, int]:
    """Feed a download through the programs; the checksum of what came in, and the worst status."""
    digest, stages = hashlib.sha256(), []
    source: int = subprocess.PIPE
    for program in programs:
        stage = subprocess.Popen(program, stdin=source, stdout=subprocess.PIPE if program is not programs[-1] else None)
        stages.append(stage)
        if stage.stdout is not None:
            source = stage.stdout.fileno()
    first = stages[0]
    assert download.stdout is not None and first.stdin is not None
    try:
        while chunk := download.stdout.read(1 << 20):
            digest.update(chunk)
            first.stdin.write(chunk)
        first.stdin.close()
    except BrokenPipeError:
        download.kill()
    for stage in stages[:-1]:
        if stage.stdout is not None:
            stage.stdout.close()
    statuses = [status_of(process.wait()) for process in (download, *stages)]
    return digest.hexdigest(), next((status for status in statuses if status), 0)


def fetch(registry: Registry, layer: Layer) -> int:
    """One blob into the cache, whole and verified or not at all; the status."""
    target = cached(layer.digest)
    if target.exists():
        return 0
    descriptor, name = tempfile.mkstemp(prefix=f"{layer.digest}.", dir=target.parent)
    os.close(descriptor)
    partial = Path(name)
    try:
        checksum, status = _pump(registry.download(layer.digest), _stored_as(layer.media_type, partial))
        if status:
            return status
        if checksum != layer.digest:
            print(f"Checksum mismatch: {layer.digest}", file=sys.stderr, flush=True)
            return 1
        partial.chmod(0o640)
        if not target.exists():
            partial.rename(target)
        return 0
    finally:
        partial.unlink(missing_ok=True)


def _in_parallel(jobs: int, work: Callable[[Layer], int], layers: Sequence[Layer]) -> int:
    """How many of them failed, each tried twice."""

    def attempt(layer: Layer) -> bool:
        return any(work(layer) == 0 for _ in range(ATTEMPTS))

    with ThreadPoolExecutor(max_workers=jobs or len(layers)) as pool:
        return sum(not success for success in pool.map(attempt, layers))


def download(registry: Registry, manifest: Manifest) -> None:
    status = fetch(registry, Layer(manifest.config, CONFIG))
    if status:
        raise Exit(status)
    missing = list({layer.digest: layer for layer in manifest.layers if not cached(layer.digest).exists()}.values())
    if not missing:
        info("Found all layers in cache")
        return
    info(f"Downloading {len(missing)} missing layers...")
    failed = _in_parallel(int(os.environ["ENROOT_MAX_CONNECTIONS"]), lambda layer: fetch(registry, layer), missing)
    if failed:
        raise Exit(failed)


def _extract(layer: Layer, target: Path) -> int:
    """An ordinary user can make no devices, so dev stays empty."""
    target.mkdir()
    command = ["tar", "-C", str(target), "--warning=no-timestamp", "--anchored"]
    command += ["--exclude=dev/*", "--exclude=./dev/*", "--use-compress-program=zstd"]
    command += ["--delay-directory-restore", "-pxf", str(cached(layer.digest))]
    return subprocess.run(command, check=False).returncode


def extract(manifest: Manifest, work: Path) -> list[Path]:
    """The layers' directories, the uppermost first."""
    info("Extracting image layers...")
    targets = [work / str(number) for number in range(1, len(manifest.layers) + 1)]
    processors = int(os.environ["ENROOT_MAX_PROCESSORS"])
    with ThreadPoolExecutor(max_workers=processors or len(targets)) as pool:
        failed = sum(bool(status) for status in pool.map(_extract, manifest.layers, targets))
    if failed:
        raise Exit(failed)
    fix_permissions(work)
    return targets


def read_config(manifest: Manifest, target: Path) -> None:
    """zstd refuses a symbolic link in the cache, and so does the import."""
    command = ["zstd", "-q", "-d", "-o", str(target), str(cached(manifest.config))]
    returncode = subprocess.run(command, check=False).returncode
    if returncode:
        raise Exit(status_of(returncode))


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _clear(directory: Path) -> None:
    for entry in list(directory.iterdir()):
        remove_tree(entry)


def _check_opaque(directory: Path) -> None:
    """Real Enroot marks such a directory with an attribute that only the first user namespace may write."""
    if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
        return
    message = f"failed to create opaque ovlfs whiteout: {directory}/"
    complain("enroot-aufs2ovlfs", message, PermissionError(errno.EPERM, ""))


def _apply_whiteouts(upper: Path, lower: Path) -> None:
    """Do to the lower directory what the upper one's whiteouts say, and take them away."""
    opaque = upper / OPAQUE
    if os.path.lexists(opaque):
        _check_opaque(upper)
        opaque.unlink()
        _clear(lower)
    for entry in list(upper.iterdir()):
        if entry.name.startswith(WHITEOUT * 2):
            complain("enroot-aufs2ovlfs", f"unsupported aufs whiteout: {entry}")
        if entry.name.startswith(WHITEOUT):
            remove_tree(lower / entry.name.removeprefix(WHITEOUT))
            remove_tree(entry)


def _drop_whiteouts(directory: Path) -> None:
    """In a directory nothing lies below there is nothing to hide."""
    for parent, directories, files in os.walk(directory):
        for name in [*directories, *files]:
            if name == OPAQUE:
                _check_opaque(Path(parent))
            if name.startswith(WHITEOUT):
                remove_tree(Path(parent, name))


def overlay(upper: Path, lower: Path) -> None:
    """Move an upper layer over a lower one, as an overlay mount would show the two."""
    _apply_whiteouts(upper, lower)
    for entry in list(upper.iterdir()):
        target = lower / entry.name
        if _is_directory(entry) and _is_directory(target):
            overlay(entry, target)
            continue
        remove_tree(target)
        entry.rename(target)
        if _is_directory(target):
            _drop_whiteouts(target)
    shutil.copystat(upper, lower)


def merge(top_first: Sequence[Path]) -> Path:
    """Real Enroot mounts an overlay with the help of file capabilities; the result is the same."""
    *uppers, rootfs = top_first
    if not uppers:
        fail("Could not merge the layers")
    _drop_whiteouts(rootfs)
    for upper in reversed(uppers):
        overlay(upper, rootfs)
    return rootfs
