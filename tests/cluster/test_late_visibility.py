# SPDX-License-Identifier: Apache-2.0
"""What a job left is not visible on the login node yet (FS-1): waited for within a bound, by listing the directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.errors import JobFailedError, JobStateUnknownError, NotVisibleError, SlurmImagesError

from .box import Box
from .oci import Tree
from .polling import wait_until
from .sqsh import place, squash
from .stale import stale
from .works import Task, inspect_task, wrapped

LATE = 3.0


def image_file(box: Box) -> Path:
    tree = Tree()
    tree.file("etc/os-release", "NAME=late\nID=late\n")
    return squash(tree, place(box, "late"))


def ended(box: Box, task: Task) -> Task:
    """Its job has ended before anybody looks."""
    task.begin()
    assert wait_until(lambda: not box.active_jobs(task.handle.job_name), 60)
    return task


def error_of(task: Task) -> SlurmImagesError:
    with pytest.raises(SlurmImagesError) as caught:
        task.wait()
    return caught.value


def test_a_record_that_appears_later_is_success(any_box: Box) -> None:
    task = ended(any_box, inspect_task(any_box, image_file(any_box), "generic", "late-record"))
    with stale(any_box, task.directory, "completion.json", "output", seconds=LATE) as view:
        task.wait()
        assert view.revealed
    assert task.finish().job.job_id == task.handle.job_id
    assert sum("is not visible yet" in line for line in task.lines) == 1


def test_the_record_of_a_failure_that_appears_later_tells_the_cause(box_plain: Box) -> None:
    task = ended(box_plain, inspect_task(box_plain, place(box_plain, "never-made"), "generic"))
    with stale(box_plain, task.directory, "completion.json", seconds=LATE) as view:
        error = error_of(task)
        assert view.revealed
    assert isinstance(error, JobFailedError)
    assert (error.reason, error.phase) == ("source_not_visible", "locate")


@pytest.mark.slow
def test_facts_that_appear_later_than_the_record_are_waited_for(box_plain: Box) -> None:
    task = ended(box_plain, inspect_task(box_plain, image_file(box_plain), "generic", "late-facts"))
    with stale(box_plain, task.directory, "output", seconds=LATE) as view:
        task.wait()
        assert task.finish().image["os_id"] == "late"
        assert view.revealed


@pytest.mark.slow
def test_a_store_file_that_appears_later_is_published(box_plain: Box) -> None:
    task = ended(box_plain, inspect_task(box_plain, image_file(box_plain), "generic", "late-store", copy_to_store=True))
    store = box_plain.workspace / "store" / "sha256"
    names = [path.name for path in store.iterdir()]
    with stale(box_plain, store, *names, seconds=LATE) as view:
        task.wait()
        record = task.finish()
        assert view.revealed
    assert (box_plain.workspace / "aliases" / "late-store.sqsh").resolve() == Path(record.sqsh.path)


def test_never_visible_and_never_written_are_told_apart(box_plain: Box) -> None:
    patience: dict[str, Any] = {"record_wait": 3}
    hidden = ended(box_plain, inspect_task(box_plain, image_file(box_plain), "generic", **patience))
    with stale(box_plain, hidden.directory, "completion.json"):
        error = error_of(hidden)
    assert isinstance(error, JobStateUnknownError)
    assert "job COMPLETED but record not visible after" in error.message
    assert "record_wait" in str(error.remedy)

    failed = ended(box_plain, inspect_task(box_plain, place(box_plain, "never-made"), "generic", **patience))
    with stale(box_plain, failed.directory, "completion.json"):
        error = error_of(failed)
    assert "its record is not visible after" in error.message
    assert "the file is not visible on the compute node" in error.message  # the exit code tells as much

    # The batch shell and all that runs in its process group die at once, before there is anything to record.
    killed = inspect_task(
        box_plain, image_file(box_plain), "generic", **patience, **wrapped(box_plain, "df", "kill -KILL 0")
    )
    error = error_of(ended(box_plain, killed))
    assert "the job wrote no record" in error.message
    assert not (killed.directory / "completion.json").exists()


@pytest.mark.slow
def test_a_store_file_that_never_appears_moves_nothing(box_plain: Box) -> None:
    task = ended(
        box_plain, inspect_task(box_plain, image_file(box_plain), "generic", "never", copy_to_store=True, record_wait=2)
    )
    task.wait()
    (box_plain.workspace / "store" / "sha256" / f"{task.completion()['sqsh']['sha256']}.sqsh").unlink()
    with pytest.raises(NotVisibleError, match="gone, or not visible on") as caught:
        task.finish()
    assert caught.value.retryable
    assert not (box_plain.workspace / "aliases" / "never.sqsh").is_symlink()
