# SPDX-License-Identifier: Apache-2.0
"""Images as people have them besides Debian's own Python: conda prefixes, musl, interpreters of another machine."""

from __future__ import annotations

import struct
import tarfile
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import JobFailedError
from airflow_slurm_images.core.records import ClientInspection, ImageRecord

from . import wheels
from .box import Box
from .image_recipes import SYSTEM_PATH, VLLM_VERSION, bootstrap, pip_wheel
from .images import cached, default_cache
from .oci import Tree
from .remains import left_by
from .sqsh import changed, place, squash, tree_of
from .works import inspect_task

CONDA = "opt/conda"
SITE = f"{CONDA}/lib/python3.11/dist-packages"  # where the interpreter, which is Debian's, looks
LIBRARY = "usr/lib/python3.11/"


@pytest.fixture(scope="module")
def conda(image_layouts: dict[str, Path]) -> Tree:
    """A prefix below /opt with its own interpreter, library and scripts, and no other Python; not on PATH."""
    debian = tree_of(image_layouts["client"])
    tree = changed(debian, {})
    for name in [*debian._members]:
        if name in ("usr/bin/python3", "usr/bin/python3.11") or name.startswith(("usr/local/", LIBRARY)):
            del tree._members[name]
    tree.file(f"{CONDA}/bin/python3.11", debian._members["usr/bin/python3.11"][1], 0o755)
    tree.symlink(f"{CONDA}/bin/python3", "python3.11")
    tree.symlink(f"{CONDA}/bin/python", "python3.11")
    for name, (info, data) in debian._members.items():
        if name.startswith(LIBRARY) and info.isreg():
            tree.file(f"{CONDA}/lib/python3.11/{name[len(LIBRARY) :]}", data)
    python = f"/{CONDA}/bin/python3.11"
    wheels.unpack(tree, pip_wheel(), SITE)
    tree.file(f"{CONDA}/bin/pip", wheels.console_script("pip._internal.cli.main:main", python), 0o755)
    modules = {"vllm/__init__.py": "", "vllm/cli.py": "def main():\n    pass\n"}
    wheels.install(tree, SITE, "vllm", VLLM_VERSION, modules, {"vllm": "vllm.cli:main"}, f"{CONDA}/bin", python)
    tree.file(f"{SITE}/conda_old-1.0-py3.11.egg-info", "Metadata-Version: 1.1\nName: conda-old\nVersion: 1.0\n")
    tree.file(f"{CONDA}/conda-meta/python-3.11.2-0.json", '{"name": "python", "version": "3.11.2"}')
    return tree


def record_of(box: Box, name: str, tree: Tree, kind: str) -> ImageRecord:
    task = inspect_task(box, squash(tree, place(box, name)), kind)
    record = task.run()
    assert left_by(box, task) == []
    return record


@pytest.mark.parametrize("on_path", [True, False], ids=["on PATH", "not on PATH"])
def test_a_conda_prefix_is_found_and_its_own_scripts_are_named(box_plain: Box, conda: Tree, on_path: bool) -> None:
    path = f"/{CONDA}/bin:{SYSTEM_PATH}" if on_path else SYSTEM_PATH
    tree = changed(conda, {"etc/environment": f"PATH={path}\n"})
    record = record_of(box_plain, "conda", tree, "client")
    inspection = record.inspection.inspection
    assert isinstance(inspection, ClientInspection)
    versions = {item.name: item.version for item in inspection.distributions}
    assert versions | {"vllm": VLLM_VERSION, "conda-old": "1.0"} == versions
    assert inspection.installer_path == f"/{CONDA}/bin/pip"
    assert record.image["python_prefix"] == f"/{CONDA}"
    assert record.image["python_executable_resolved"] == f"/{CONDA}/bin/python3.11"
    serving = record_of(box_plain, "conda", tree, "serving")
    assert serving.inspection.inspection.model_dump()["executable_path"] == f"/{CONDA}/bin/vllm"
    assert serving.image["path_executable"] == (f"/{CONDA}/bin/vllm" if on_path else None)


@pytest.mark.parametrize(("machine", "name"), [(183, "arm64"), (243, "riscv64")])
def test_a_python_of_another_machine_is_named_with_its_link_target(
    box_plain: Box, image_layouts: dict[str, Path], machine: int, name: str
) -> None:
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 1, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    tree = changed(tree_of(image_layouts["nopython"]), {}, {"usr/bin/python3": f"/opt/{name}/bin/python3.12"})
    tree.file(f"opt/{name}/bin/python3.12", header + bytes(64), 0o755)
    task = inspect_task(box_plain, squash(tree, place(box_plain, name)))
    with pytest.raises(
        JobFailedError, match=rf"/usr/bin/python3 -> /opt/{name}/bin/python3\.12 cannot be run"
    ) as caught:
        task.run()
    assert caught.value.reason == "no_python"


@pytest.fixture(scope="module")
def musl(image_layouts: dict[str, Path]) -> Tree:
    """An image in Alpine's manner, around Debian's build of musl."""

    def build(target: Path) -> None:
        bootstrap(target / "musl.tar", "extract", ["musl"])

    tree = changed(
        tree_of(image_layouts["nopython"]),
        {"etc/os-release": 'ID=alpine\nVERSION_ID=3.20\nPRETTY_NAME="Alpine Linux v3.20"\n'},
    )
    with tarfile.open(cached(default_cache(), "musl", "musl", build) / "musl.tar") as archive:
        for member in archive:
            if "musl" in member.name and member.name.startswith(("./lib/", "./usr/lib/")) and not member.isdir():
                packed = archive.extractfile(member) if member.isreg() else None
                if packed:
                    tree.file(member.name[2:], packed.read(), member.mode)
                else:
                    tree.symlink(member.name[2:], member.linkname)
    return tree


def test_an_image_built_on_musl_is_read(box_plain: Box, musl: Tree) -> None:
    assert any(name.startswith("lib/ld-musl-") for name in musl._members)
    record = record_of(box_plain, "musl", musl, "generic")
    assert (record.image["os_id"], record.image["os_version"]) == ("alpine", "3.20")
    assert record.image["architecture"] == "amd64"
    assert record.image["debian_packages"] is None


def test_what_enroot_would_fill_in_from_its_caller_stays_text(box_plain: Box, image_layouts: dict[str, Path]) -> None:
    environment = (
        "PATH=/opt/none:${PATH}\n"
        "  PYTHONPATH='${HOME}/lib:${ENROOT_RUNTIME_PATH}:/opt/x'\n"  # as a shell's file may be
        "# a comment"
    )
    tree = changed(tree_of(image_layouts["client"]), {"etc/environment": environment})
    image = record_of(box_plain, "asking", tree, "client").image
    assert image["python_path_env"] == "${HOME}/lib:${ENROOT_RUNTIME_PATH}:/opt/x"
    assert image["python_executable"] == "/usr/bin/python3"  # of the usual PATH
    assert image["environment"] == {"PATH": "/opt/none:${PATH}", "PYTHONPATH": image["python_path_env"]}
    assert [text for text in image["warnings"] if "whoever starts the image" in text]
    assert str(box_plain.root) not in str(image)
