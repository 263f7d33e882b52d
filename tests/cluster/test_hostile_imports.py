# SPDX-License-Identifier: Apache-2.0
"""Images in a registry that would act on the host while they are imported, or when what was made is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import JobFailedError, UnsafeImageError

from .box import Box
from .oci import Tree
from .remains import left_by
from .sqsh import OddConfig, changed, false_python, push, tree_of
from .works import import_task, outcomes

HOME = f"/home/{Box.user}"
WITNESS = "the image ran"
REPORT = f"echo '{WITNESS}'; cat /proc/mounts; cat /stolen*/precious /vol/precious; echo x > /stolen/precious; exit 3"
COMMAND = f"$(touch {HOME}/made)`touch {HOME}/made`;touch {HOME}/made\n touch {HOME}/made\n"


@pytest.fixture(scope="module")
def tree(image_layouts: dict[str, Path]) -> Tree:
    return changed(tree_of(image_layouts["nopython"]), false_python(REPORT))


def imported_and_started(box: Box, image: str) -> str:
    """What the image said; its Python makes no record, so nothing is published."""
    task = import_task(box, image, "hostile", "client")
    with pytest.raises(JobFailedError) as caught:
        task.run()
    assert caught.value.reason == "inspection_failed"
    report = (task.directory / "inspect.log").read_text()
    assert WITNESS in report
    assert "of the host" not in report
    assert left_by(box, task) == []
    assert not (box.workspace / "aliases" / "hostile.sqsh").is_symlink()
    return report


VOLUMES = {
    "lines of its own": f"/data\n{HOME} /stolen none x-create=dir,bind,rw 0 0\n#",
    "a variable": "/stolen none x-create=dir 0 0\n${HOME}",
    "a path upwards": f"/../../../../../..{HOME}",
}


@pytest.mark.parametrize("volume", VOLUMES)
def test_volumes_mount_nothing(box_plain: Box, home: Path, tree: Tree, volume: str) -> None:
    config = OddConfig("amd64", volumes=[VOLUMES[volume]])
    report = imported_and_started(box_plain, push(box_plain, tree, config, "images/volumes"))
    assert " /stolen " not in report


def test_a_volume_that_is_a_link_mounts_nothing(box_plain: Box, home: Path, tree: Tree) -> None:
    config = OddConfig("amd64", volumes=["/vol"])
    imported_and_started(box_plain, push(box_plain, changed(tree, {}, {"vol": HOME}), config, "images/volume-link"))


def test_commands_in_the_settings_do_not_run(box_plain: Box, home: Path, tree: Tree) -> None:
    config = OddConfig(
        "amd64",
        env={"A": COMMAND, "BASH_ENV": f"{HOME}/.bashrc", "B": "x'\"" + COMMAND},
        entrypoint=[COMMAND, "'", f"touch {HOME}/made"],
        command=["$(id)"],
        labels={COMMAND: COMMAND},
        more={"User": COMMAND, "StopSignal": COMMAND},
    )
    imported_and_started(box_plain, push(box_plain, tree, config, "images/settings"))


def test_a_working_directory_outside_the_image_is_not_made(box_plain: Box, home: Path, tree: Tree) -> None:
    """Enroot makes it at import, with `mkdir -p` below its own root."""
    config = OddConfig("amd64", working_directory=f"/../../../../../../..{HOME}/made")
    task = import_task(box_plain, push(box_plain, tree, config, "images/workdir"), "workdir")
    with pytest.raises(UnsafeImageError, match="working directory"):
        task.run()
    assert left_by(box_plain, task) == []


def test_a_working_directory_with_a_command_runs_none(box_plain: Box, home: Path, tree: Tree) -> None:
    config = OddConfig("amd64", working_directory=f"/x{COMMAND}")
    imported_and_started(box_plain, push(box_plain, tree, config, "images/workdir"))


def test_links_in_a_layer_lead_nowhere_during_the_import(box_plain: Box, home: Path) -> None:
    tasks = {}
    for name in ("etc", ".lock", "proc", "tmp"):
        links = Tree()
        links.symlink(name, HOME)
        links.file("bin/true", b"\x7fELF", 0o755)
        image = push(box_plain, links, OddConfig("amd64"), f"images/link-{name.strip('.')}")
        tasks[name] = import_task(box_plain, image, f"link-{name.strip('.')}")
    assert outcomes(tasks) == dict.fromkeys(tasks)
    assert [left for task in tasks.values() for left in left_by(box_plain, task)] == []
