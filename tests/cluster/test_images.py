"""The test images hold what the other tests expect, and run."""

from __future__ import annotations

import json
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .image_recipes import CLIENT_DEBIAN_DISTRIBUTION, CLIENT_DISTRIBUTIONS, VLLM_EXECUTABLE, VLLM_VERSION
from .images import NAMES, build_all, cached

LARGEST = 60 * 1024 * 1024


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def manifest_of(layout: Path) -> dict[str, Any]:
    index = json.loads((layout / "index.json").read_text())
    manifest: dict[str, Any] = json.loads(blob(layout, index["manifests"][0]["digest"]).read_text())
    return manifest


def config_of(layout: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(blob(layout, manifest_of(layout)["config"]["digest"]).read_text())
    return config


@pytest.fixture(scope="module")
def rootfs(image_layouts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each image unpacked, layer over layer."""
    unpacked = {name: tmp_path_factory.mktemp(name) for name in NAMES}
    for name, layout in image_layouts.items():
        for layer in manifest_of(layout)["layers"]:
            argv = ["tar", "--extract", "--gzip", f"--file={blob(layout, layer['digest'])}"]
            subprocess.run([*argv, f"--directory={unpacked[name]}"], check=True)
    return unpacked


def inside(root: Path, *argv: str) -> str:
    """The output of a program of the image, with the image's own search path first."""
    env = {"PATH": "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    # Not `chroot` by our own PATH: the image's environment has no /usr/sbin.
    done = subprocess.run(["/usr/sbin/chroot", str(root), *argv], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_image_is_small_and_has_no_device_nodes(image_layouts: dict[str, Path]) -> None:
    for name, layout in image_layouts.items():
        layers = [blob(layout, layer["digest"]) for layer in manifest_of(layout)["layers"]]
        assert sum(layer.stat().st_size for layer in layers) < LARGEST, name
        for layer in layers:
            with tarfile.open(layer) as archive:
                assert [member.name for member in archive if member.isdev()] == []


def test_the_client_has_pip_and_its_distributions(rootfs: dict[str, Path]) -> None:
    assert inside(rootfs["client"], "/usr/local/bin/pip", "--version").startswith("pip ")
    listed = json.loads(inside(rootfs["client"], "/usr/local/bin/pip", "list", "--format=json"))
    versions = {entry["name"]: entry["version"] for entry in listed}
    assert CLIENT_DISTRIBUTIONS.items() <= versions.items()
    assert CLIENT_DEBIAN_DISTRIBUTION in versions
    for module in ("tinylib", "tiny_plugin_set", CLIENT_DEBIAN_DISTRIBUTION):
        inside(rootfs["client"], "python3", "-c", f"import {module}")


def test_the_server_runs_from_its_environment(rootfs: dict[str, Path], image_layouts: dict[str, Path]) -> None:
    assert inside(rootfs["serving"], "vllm", "--version") == f"vllm {VLLM_VERSION}\n"
    assert (rootfs["serving"] / VLLM_EXECUTABLE.lstrip("/")).exists()
    find = "import importlib.metadata as m; print(m.version('vllm'), m.entry_points(group='console_scripts'))"
    assert "vllm.cli:main" in inside(rootfs["serving"], "/opt/venv/bin/python3", "-c", find)
    run = config_of(image_layouts["serving"])["config"]
    assert run["Env"][0].startswith("PATH=/opt/venv/bin:")
    assert "NVIDIA_VISIBLE_DEVICES=all" in run["Env"]


def test_client_and_server_share_their_first_layer(image_layouts: dict[str, Path]) -> None:
    client, serving = (manifest_of(image_layouts[name])["layers"] for name in ("client", "serving"))
    assert client[0] == serving[0]
    assert client[1] != serving[1]


def test_no_python_but_a_shell(rootfs: dict[str, Path]) -> None:
    assert inside(rootfs["nopython"], "/bin/sh", "-c", "cat /etc/passwd").startswith("root:")
    assert list(rootfs["nopython"].rglob("*python*")) == []


def test_one_program_and_no_shell(rootfs: dict[str, Path]) -> None:
    assert inside(rootfs["static"], "/app", "--version").startswith("tini version")
    files = {str(path.relative_to(rootfs["static"])) for path in rootfs["static"].rglob("*") if path.is_file()}
    assert files == {"app", "etc/passwd", "etc/group"}


def test_a_cached_entry_is_made_once_and_only_when_whole(tmp_path: Path) -> None:
    made: list[Path] = []

    def build(target: Path) -> None:
        made.append(target)
        (target / "file").write_text("content")

    with ThreadPoolExecutor(4) as pool:
        entries = set(pool.map(lambda _: cached(tmp_path, "thing", "recipe", build), range(4)))
    assert len(entries) == len(made) == 1
    assert (entries.pop() / "file").read_text() == "content"

    def fail(target: Path) -> None:
        (target / "file").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cached(tmp_path, "thing", "another recipe", fail)
    assert [path.name for path in tmp_path.iterdir() if "draft" in path.name] == []


def test_building_again_changes_nothing(image_layouts: dict[str, Path]) -> None:
    assert build_all() == image_layouts
