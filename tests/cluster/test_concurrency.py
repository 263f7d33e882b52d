# SPDX-License-Identifier: Apache-2.0
"""Several tasks at once: one digest, one alias, no collision (FS-3)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .box import Box
from .remains import left_by
from .works import Task, import_task, inspect_task, sha256

TASKS = 4


def run_all(tasks: list[Task]) -> None:
    with ThreadPoolExecutor(len(tasks)) as pool:
        list(pool.map(Task.begin, tasks))
        list(pool.map(Task.wait, tasks))


def test_imports_of_one_digest_under_one_alias_all_succeed(any_box: Box, images: dict[str, str]) -> None:
    tasks = [import_task(any_box, images["static"], "shared") for _ in range(TASKS)]
    run_all(tasks)
    with ThreadPoolExecutor(TASKS) as pool:
        records = list(pool.map(Task.finish, tasks))
    (path,) = {Path(record.sqsh.path) for record in records}
    assert path.name == f"{sha256(path)}.sqsh"
    alias = any_box.workspace / "aliases" / "shared.sqsh"
    assert alias.resolve() == path
    assert json.loads(alias.with_suffix(".json").read_text())["job"]["job_id"] in {task.handle.job_id for task in tasks}
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []
    assert left_by(any_box, tasks[0]) == []


def test_copies_of_one_file_into_the_store_become_one_file(any_box: Box, images: dict[str, str]) -> None:
    source = Path(import_task(any_box, images["nopython"], "source").run().sqsh.path)
    copy = any_box.workspace / "copy.sqsh"
    any_box.as_user(["cp", str(source), str(copy)], check=True)
    tasks = [inspect_task(any_box, copy, "generic", f"copy-{number}", copy_to_store=True) for number in range(TASKS)]
    run_all(tasks)
    records = [task.finish() for task in tasks]
    assert {record.sqsh.path for record in records} == {str(source)}
    assert [path.name for path in source.parent.iterdir() if path.name.startswith(".")] == []
