# SPDX-License-Identifier: Apache-2.0
"""Two accounts of one group in one workspace, with real jobs: store and aliases are shared, the rest is private."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.lifecycle import Finished
from airflow_slurm_images.reuse import IfPresent

from .box import Box
from .remains import private_home
from .works import CONN_ID, Task, connection, import_task


@pytest.fixture
def accounts(box_plain: Box) -> Iterator[tuple[str, str]]:
    """Their umasks are as different as can be."""
    ann, bob = box_plain.user, box_plain.other_user
    closed, open_ = ({".profile": text, ".bashrc": text} for text in ("umask 777\n", "umask 000\n"))
    with private_home(box_plain, closed, ann), private_home(box_plain, open_, bob):
        yield ann, bob


def import_by(box: Box, user: str, image: str, name: str, if_present: IfPresent = "reimport") -> Task:
    shared = {"workspace_root": str(box.group_workspace), "group": box.group}
    hook = SlurmHook(CONN_ID, connection=connection(box, user, **shared))
    return import_task(box, image, name, hook=hook, if_present=if_present)


def can(box: Box, user: str, test: str, path: Path) -> bool:
    return box.as_user(["test", test, str(path)], user=user).returncode == 0


def test_both_publish_and_read_and_see_nothing_else_of_each_other(
    box_plain: Box, accounts: tuple[str, str], push_images: Callable[[Box], dict[str, str]]
) -> None:
    box, (ann, bob) = box_plain, accounts
    digests = push_images(box)
    images = {name: f"{box.registry}/images/{name}@{digests[name]}" for name in ("static", "nopython")}
    first = import_by(box, ann, images["static"], "ours")
    one = first.run()
    # The same image by the other account: the bytes are compared with those of the first one's file.
    again = import_by(box, bob, images["static"], "ours")
    assert again.run().sqsh == one.sqsh
    two = import_by(box, bob, images["nopython"], "ours").run()
    assert two.sqsh.path != one.sqsh.path

    hook = import_by(box, ann, images["nopython"], "ours", "skip")
    reused = hook.lifecycle.begin(hook.work)
    assert isinstance(reused, Finished)
    assert (reused.moved, reused.record.sqsh) == (False, two.sqsh)
    assert [version.path for version in hook.hook.image_history("ours")] == [two.sqsh.path, one.sqsh.path]

    workspace = box.group_workspace
    for path in (*(workspace / "store").rglob("*"), *(workspace / "aliases").rglob("*")):
        assert path.group() == box.group, path
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_dir() and not path.is_symlink():
            assert mode == (0o3770 if path.name == "sha256" else 0o2770), path
        elif not path.is_symlink():
            assert mode == 0o440, path
    for user in (ann, bob):
        for name in ("ours.sqsh", "ours.json"):
            assert can(box, user, "-r", workspace / "aliases" / name)
    for user, owner, task in ((ann, bob, again), (bob, ann, first)):
        assert can(box, owner, "-r", task.directory / "completion.json")
        for path in (workspace / "users" / owner / "cache", task.directory, task.directory / "completion.json"):
            assert not can(box, user, "-r", path), path
    for mapped in (first, again, hook):
        mapped.hook.close()
