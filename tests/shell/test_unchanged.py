# SPDX-License-Identifier: Apache-2.0
"""Unchanged stays free: after whatever made an import run again, the next one finds what that import recorded."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.requests import build_import
from airflow_slurm_images.lifecycle import Finished, Lifecycle, Work
from tests.shell.fake_slurm.login import REFERENCE
from tests.shell.test_whole_story import Story, story  # noqa: F401 - a fixture

LOG = logging.getLogger("tests.unchanged")


class Runs:
    """Runs of one task after another; each says whether it needed a job."""

    def __init__(self, of: Story) -> None:
        self.story = of
        self.count = 0
        self.names: set[str] = set()

    def __call__(self, *, name: str = "tool", kind: str = "client", if_present: Any = "skip", **request: Any) -> str:
        self.count += 1
        asked = build_import(image=request.pop("image", REFERENCE), name=name, kind=kind, **request)
        work = Work(asked, f"{self.count:032x}", 1, False, "lab", {}, if_present=if_present)
        begun = self.story.lifecycle.begin(work)
        if isinstance(begun, Finished):
            return "reused"
        self.story.wait(begun)
        moved = self.story.lifecycle.finish(begun).moved
        assert moved is (name not in self.names), "an alias that means the same image as before did not move"
        self.names.add(name)
        return "job"

    def with_profile(self, **values: Any) -> None:
        """Further runs use another profile."""
        self.story.cluster.profile.update(values)
        self.story.lifecycle = Lifecycle(
            self.story.cluster.new_hook(), LOG, sleep=self.story._sleep, clock=lambda: self.story.now
        )


@pytest.fixture
def runs(story: Story) -> Runs:  # noqa: F811
    return Runs(story)


def stored(runs: Runs) -> Path:
    (file,) = (runs.story.cluster.workspace / "store/sha256").glob("*.sqsh")
    return file


def restore(runs: Runs) -> None:
    """The store's file comes back from a backup: same bytes and time, another inode."""
    file, stat = stored(runs), stored(runs).stat()
    copy = file.with_suffix(".copy")
    copy.write_bytes(file.read_bytes())
    copy.chmod(0o400)
    os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    copy.rename(file)
    assert file.stat().st_ino != stat.st_ino


def touch(runs: Runs) -> None:
    os.utime(stored(runs), (1, 1))


CAUSES: dict[str, Callable[[Runs], object]] = {
    "file restored": restore,
    "file touched": touch,
    "another partition": lambda runs: runs.with_profile(partition="gpu"),
    "squash options in other words": lambda runs: runs.with_profile(squash_options="-noD -comp zstd"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_makes_an_import_run_again_does_so_once(runs: Runs, cause: str) -> None:
    assert (runs(), runs()) == ("job", "reused")
    CAUSES[cause](runs)
    assert [runs(), runs(), runs()] == ["job", "reused", "reused"]
    assert stored(runs).is_file()


def test_an_architecture_that_is_not_asked_for_any_more_costs_one_job(runs: Runs) -> None:
    assert (runs(arch="x86_64"), runs(arch="x86_64")) == ("job", "reused")
    assert [runs(), runs(), runs(arch="x86_64")] == ["job", "reused", "reused"]


@pytest.mark.parametrize("if_present", ["verify", "reimport"])
def test_a_verification_of_a_restored_file_is_remembered_too(runs: Runs, if_present: str) -> None:
    runs()
    restore(runs)
    assert [runs(if_present=if_present), runs()] == ["job", "reused"]


def test_verifying_again_and_again_fills_no_history(runs: Runs) -> None:
    runs()
    for _ in range(3):
        assert runs(if_present="verify") == "job"
    assert [path.name for path in (runs.story.cluster.workspace / "aliases/tool.d").glob("[0-9]*")] == ["1"]


def test_many_newer_records_of_another_kind_do_not_hide_the_one_that_serves(runs: Runs) -> None:
    runs()
    for number in range(17):
        runs(name=f"generic{number}", kind="generic")
    assert runs(name="another") == "reused"
