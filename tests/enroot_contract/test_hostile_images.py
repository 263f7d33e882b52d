"""How an image reaches the host when it is started without the precautions of this project's jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .images import Tree, squash
from .runner import Enroot


@pytest.fixture
def precious(enroot: Enroot) -> Path:
    return enroot.write(enroot.base / "precious", "SECRET=of the host\n", 0o600)


def test_a_lock_file_that_is_a_link_empties_a_host_file(
    enroot: Enroot, session_dir: Path, base_layer: Tree, precious: Path
) -> None:
    image = squash(base_layer.plus({}, {".lock": str(precious)}), enroot.base / "image.sqsh", session_dir)
    enroot.start(image, "true")
    assert precious.read_text() == ""


def test_an_environment_file_that_is_a_link_reads_a_host_file(
    enroot: Enroot, session_dir: Path, base_layer: Tree, precious: Path
) -> None:
    tree = base_layer.plus({}, {"etc/environment": str(precious)})
    image = squash(tree, enroot.base / "image.sqsh", session_dir)
    assert "SECRET=of the host" in enroot.start(image, "/bin/env").lines


def test_a_mount_table_that_is_a_link_is_read_from_the_host(
    enroot: Enroot, session_dir: Path, base_layer: Tree
) -> None:
    table = enroot.write(enroot.base / "table", "tmpfs /from-the-host tmpfs x-create=dir\n")
    image = squash(base_layer.plus({}, {"etc/fstab": str(table)}), enroot.base / "image.sqsh", session_dir)
    assert enroot.start(image, "/bin/ls", "-d", "/from-the-host").status == 0


def test_a_mount_table_sees_the_caller_s_variables(enroot: Enroot, session_dir: Path, base_layer: Tree) -> None:
    enroot.write(enroot.paths["home"] / "mine", "private\n", 0o600)
    tree = base_layer.plus({"etc/fstab": "${HOME} /stolen none x-create=dir,bind,rw\n"})
    image = squash(tree, enroot.base / "image.sqsh", session_dir)
    assert enroot.start(image, "/bin/cat", "/stolen/mine").out == "private\n"
