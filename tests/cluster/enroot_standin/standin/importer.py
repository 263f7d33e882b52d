"""`import` and `digest`: from an image in a registry to a SquashFS file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from . import layers, uri
from .console import SHELL_DIR, fail, info, log, need, real_path, run, scratch
from .registry import Registry

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}
DAEMONS = {"dockerd://": "docker", "podman://": "podman"}


def _architecture(machine: str) -> str:
    """Takes what `uname -m` prints, gives what images say."""
    if machine not in ARCHITECTURES:
        fail(f"Unsupported architecture: {machine}")
    return ARCHITECTURES[machine]


def command(name: str, reference: str, *, arch: str, output: str) -> None:
    arch = arch or os.uname().machine
    if name == "import":
        for prefix, program in DAEMONS.items():
            if reference.startswith(prefix):
                fail(f"Command not found: {program}")
    if not reference.startswith("docker://"):
        fail(f"Invalid argument: {reference}")
    if name == "digest":
        _digest(reference, arch)
    else:
        _import(reference, arch, output)


def _digest(reference: str, arch: str) -> None:
    need("curl", "grep", "awk", "jq")
    registry = Registry(uri.parse(reference))
    architecture = _architecture(arch)
    try:
        registry.authenticate()
        print(registry.digest(registry.manifest_url(architecture, announce=False)))
    finally:
        registry.forget_token()


def _import(reference: str, arch: str, output: str) -> None:
    need("curl", "grep", "awk", "jq", "parallel", "tar", os.environ["ENROOT_GZIP_PROGRAM"])
    need("find", "mksquashfs", "zstd")
    source = uri.parse(reference)
    architecture = _architecture(arch)
    target = real_path(output or source.default_filename)
    if target.exists():
        fail(f"File already exists: {target}")
    registry = Registry(source)
    with scratch("enroot") as work:
        try:
            rootfs = _assemble(registry, architecture, work)
            _squash(rootfs, target)
        finally:
            registry.forget_token()


def _assemble(registry: Registry, architecture: str, work: Path) -> Path:
    registry.authenticate()
    manifest = registry.manifest(registry.manifest_url(architecture, announce=True))
    layers.download(registry, manifest)
    directories = layers.extract(manifest, work)
    info("Converting whiteouts...")
    top = work / "0"
    top.mkdir()
    layers.read_config(manifest, work / "config")
    _configure(top, json.loads((work / "config").read_text()), architecture)
    return layers.merge([top, *directories])


def _quote(words: list[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def _start_script(settings: dict[str, Any]) -> str:
    """The image's entrypoint and command, as the script every later start runs."""
    entrypoint, command = settings.get("Entrypoint") or [], settings.get("Cmd") or []
    if not entrypoint and not command:
        command = ["/bin/sh"]
    labels = "".join(f"# {key} {value}\n".replace("\n", " ").rstrip() + "\n" for key, value in _labels(settings))
    text = (SHELL_DIR / "rc.in").read_text()
    for name, value in (
        ("@WORKDIR@", settings.get("WorkingDir") or "/"),
        ("@COMMAND@", _quote(command)),
        ("@ENTRYPOINT@", _quote(entrypoint)),
    ):
        text = text.replace(name, value)
    return labels + ("\n" if labels else "") + text


def _labels(settings: dict[str, Any]) -> list[tuple[str, str]]:
    return list((settings.get("Labels") or {}).items())


def _configure(top: Path, config: dict[str, Any], architecture: str) -> None:
    """An upper layer of ours replaces the image's own fstab, environment and start scripts."""
    platform = config.get("architecture") or ""
    if platform != architecture:
        log("WARN", f"Image architecture doesn't match the requested one: {platform} != {architecture}")
    settings = config.get("config") or {}
    etc = top / "etc"
    etc.mkdir()
    volumes = sorted(settings.get("Volumes") or {})
    mounts = [f"${{ENROOT_ROOTFS}}{path} {path} none x-create=dir,bind,rw,nosuid,nodev\n" for path in volumes]
    (etc / "fstab").write_text("".join(mounts))
    (etc / "environment").write_text("".join(f"{line}\n" for line in settings.get("Env") or []))
    (etc / "rc").write_text(_start_script(settings))
    (etc / "rc.local").write_text("# Sourced by /etc/rc before the entrypoint runs.\n")
    workdir = settings.get("WorkingDir") or "/"
    Path(f"{top}{workdir}").mkdir(parents=True, exist_ok=True)


def _squash(rootfs: Path, target: Path) -> None:
    info("Creating squashfs filesystem...")
    env = os.environ
    command = ["mksquashfs", str(rootfs), str(target)]
    if env.get("SOURCE_DATE_EPOCH"):
        command += ["-mkfs-time", env["SOURCE_DATE_EPOCH"], "-all-time", env["SOURCE_DATE_EPOCH"]]
    command += ["-all-root", "-no-progress", "-processors", env["ENROOT_MAX_PROCESSORS"]]
    command += env["ENROOT_SQUASH_OPTIONS"].split()
    run(command, env={"PATH": env.get("PATH", os.defpath)})
