# SPDX-License-Identifier: Apache-2.0
"""However a job ends, nothing of it outlives it: no process, no mount, no scratch, within five seconds (RT-16)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import JobFailedError, SlurmImagesError

from . import procfs
from .box import Box
from .oci import ImageConfig, Tree
from .polling import wait_until
from .process import Daemon
from .remains import left_by
from .space import kill
from .sqsh import changed, false_python, place, push, squash, tree_of
from .works import Task, cancel, import_task, inspect_task, wrapped

SECONDS = 5
ENDLESS = """\
/bin/busybox setsid /bin/sleep 1000 & /bin/sleep 1000 &
trap '' TERM
while :; do echo still here; /bin/sleep 1; done"""


@pytest.fixture(scope="module")
def base(image_layouts: dict[str, Path]) -> Tree:
    return tree_of(image_layouts["nopython"])


def batch_shell(box: Box) -> int:
    """The job's own shell: the child of Slurm's step daemon."""
    steps = set(box.space.pids("slurmstepd"))
    (shell,) = [pid for pid in box.space.pids() if procfs.parent_of(pid) in steps]
    return shell


@contextmanager
def frozen(daemon: Daemon) -> Iterator[None]:
    launcher = procfs.parent_of(daemon.pid)  # stops along with its child, and has to be woken too
    kill([daemon.pid], signal.SIGSTOP)
    try:
        yield
    finally:
        kill([daemon.pid, *([launcher] if launcher else [])], signal.SIGCONT)


@contextmanager
def submitted(task: Task) -> Iterator[Task]:
    """The task's job, which does not stay when the test is over."""
    task.begin()
    try:
        yield task
    finally:
        with suppress(SlurmImagesError):
            task.lifecycle.cancel(task.handle)


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


@contextmanager
def in_the_middle_of_asking_the_registry(box: Box, base: Tree) -> Iterator[Task]:
    image = push(box, base, ImageConfig("amd64"), "images/leftovers")
    with frozen(box.oci_registry.daemon), submitted(import_task(box, image, "leftovers")) as task:
        assert task.reaches("manifest")
        assert wait_until(lambda: bool(box.space.pids("curl")), 20)
        yield task


@contextmanager
def in_the_middle_of_an_import(box: Box, base: Tree) -> Iterator[Task]:
    """All layers are there and mounted over each other, and the file is not yet written."""
    image = push(box, base, ImageConfig("amd64"), "images/leftovers")
    script = '[[ "$*" != */trial* ]] || exec {real} "$@"\necho waiting >&2; sleep 1000 & sleep 1000'
    slow = wrapped(box, "mksquashfs", script)
    with submitted(import_task(box, image, "leftovers", **slow)) as task:
        assert wait_until(lambda: "waiting" in _text(task.directory / "enroot.log"), 30)
        yield task


@contextmanager
def in_the_middle_of_hashing(box: Box, base: Tree) -> Iterator[Task]:
    """A long sparse tail keeps the hash busy; what follows a SquashFS file does not matter to its readers."""
    file = squash(base, place(box, "long"))
    with file.open("r+b") as target:
        target.truncate(64 * 1024**3)
    with submitted(inspect_task(box, file, "generic")) as task:
        assert task.reaches("hash")
        yield task
    file.unlink()


@contextmanager
def in_the_middle_of_an_inspection(box: Box, base: Tree) -> Iterator[Task]:
    file = squash(changed(base, false_python(ENDLESS)), place(box, "endless"))
    with submitted(inspect_task(box, file)) as task:
        assert wait_until(lambda: "still here" in _text(task.directory / "inspect.log"), 30)
        yield task


MIDDLES = {
    "manifest": in_the_middle_of_asking_the_registry,
    "import": in_the_middle_of_an_import,
    "hash": in_the_middle_of_hashing,
    "inspect": in_the_middle_of_an_inspection,
}


@pytest.mark.parametrize("middle", MIDDLES)
def test_a_batch_shell_killed_alone_takes_everything_with_it(box_plain: Box, base: Tree, middle: str) -> None:
    with MIDDLES[middle](box_plain, base) as task:
        assert left_by(box_plain, task)
        kill([batch_shell(box_plain)])
        assert wait_until(lambda: left_by(box_plain, task) == [], SECONDS), left_by(box_plain, task)
        assert not (task.directory / "completion.json").exists()


@pytest.mark.parametrize("middle", ["import", "inspect"])
def test_a_cancelled_job_cleans_up_and_says_where_it_was(any_box: Box, base: Tree, middle: str) -> None:
    with MIDDLES[middle](any_box, base) as task:
        cancel(any_box, task)
        assert wait_until(lambda: left_by(any_box, task) == [], SECONDS), left_by(any_box, task)
        with pytest.raises(JobFailedError) as caught:
            task.wait()
    assert caught.value.state == "CANCELLED"
    assert task.completion()["phase"] == middle
    assert not list((any_box.workspace / "store" / "sha256").glob(".partial-*"))


def test_a_killed_shell_is_a_failure_that_may_be_retried(any_box: Box, base: Tree) -> None:
    """It left no record; without accounting only the controller can tell."""
    with in_the_middle_of_an_inspection(any_box, base) as task:
        kill([batch_shell(any_box)])
        with pytest.raises(SlurmImagesError) as caught:
            task.wait()
        assert caught.value.retryable
        assert str(task.directory) in str(caught.value)
