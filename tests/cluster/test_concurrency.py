# SPDX-License-Identifier: Apache-2.0
"""Several tasks at once: one digest, one alias, no collision; two digests for one alias, the last one wins (FS-3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from airflow_slurm_images.lifecycle import Finished

from .box import Box
from .remains import left_by
from .works import Task, import_task, inspect_task, sha256, slurm_hook

TASKS = 8
PushImages = Callable[[Box], dict[str, str]]


def pinned(box: Box, push_images: PushImages, name: str) -> str:
    return f"{box.registry}/images/{name}@{push_images(box)[name]}"


def at_once(tasks: list[Task]) -> list[Finished]:
    """All of them side by side, each at its own pace from the request to the publication."""

    def run(task: Task) -> Finished:
        task.begin()
        task.wait()
        try:
            return task.lifecycle.finish(task.handle)
        finally:
            task.hook.close()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(run, tasks))


def check_nothing_left(box: Box, tasks: list[Task]) -> None:
    workspace = box.workspace
    assert [path.name for path in (workspace / "store/sha256").iterdir() if path.name.startswith(".")] == []
    assert list((workspace / "aliases/.locks").iterdir()) == []
    for task in tasks:
        assert left_by(box, task) == []


def test_eight_imports_of_one_digest_under_one_alias_are_one_file_and_eight_successes(
    box_accounting: Box, push_images: PushImages
) -> None:
    box = box_accounting
    image = pinned(box, push_images, "static")
    tasks = [import_task(box, image, "shared") for _ in range(TASKS)]
    done = at_once(tasks)
    (path,) = {Path(finished.record.sqsh.path) for finished in done}
    assert path.name == f"{sha256(path)}.sqsh"
    assert {finished.record.job.job_id for finished in done} == {task.handle.job_id for task in tasks}
    assert [finished.moved for finished in done].count(True) == 1
    alias = box.workspace / "aliases" / "shared.sqsh"
    assert alias.resolve() == path
    (version,) = slurm_hook(box).image_history("shared")
    assert version.record is not None
    assert (version.number, version.path) == (1, str(path))
    (first,) = (finished.record for finished in done if finished.moved)
    assert version.record.job == first.job
    check_nothing_left(box, tasks)


def test_of_eight_imports_of_two_digests_under_one_alias_the_last_wins_and_history_tells(
    box_plain: Box, push_images: PushImages
) -> None:
    box = box_plain
    images = [pinned(box, push_images, name) for name in ("static", "nopython")]
    tasks = [import_task(box, images[number % 2], "contested") for number in range(TASKS)]
    done = at_once(tasks)
    files = {finished.record.sqsh.path for finished in done}
    assert len(files) == 2
    history = slurm_hook(box).image_history("contested")
    assert [version.number for version in history] == list(range(len(history), 0, -1))
    assert [version.current for version in history] == [True] + [False] * (len(history) - 1)
    assert {version.path for version in history} == files
    assert all(newer.path != older.path for newer, older in pairwise(history))
    moves = {finished.record.job.job_id: finished.record for finished in done if finished.moved}
    assert len(moves) == len(history)
    for version in history:
        assert version.record is not None and version.file.status == "file"
        mover = moves[version.record.job.job_id]
        assert (version.record.source, version.path) == (mover.source, mover.sqsh.path)
    alias = box.workspace / "aliases" / "contested.sqsh"
    assert str(alias.resolve()) == history[0].path
    assert json.loads(alias.with_suffix(".json").read_text())["sqsh"]["sha256"] == sha256(alias)
    check_nothing_left(box, tasks)


def test_copies_of_one_file_into_the_store_become_one_file(box_plain: Box, push_images: PushImages) -> None:
    box = box_plain
    source = Path(import_task(box, pinned(box, push_images, "nopython"), "source").run().sqsh.path)
    copy = box.workspace / "copy.sqsh"
    box.as_user(["cp", str(source), str(copy)], check=True)
    tasks = [inspect_task(box, copy, "generic", f"copy-{number}", copy_to_store=True) for number in range(4)]
    done = at_once(tasks)
    assert {finished.record.sqsh.path for finished in done} == {str(source)}
    check_nothing_left(box, tasks)
