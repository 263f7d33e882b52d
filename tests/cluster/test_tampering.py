# SPDX-License-Identifier: Apache-2.0
"""One changed byte in any staged file stops the work before Enroot runs: before submission, and while it waits."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import IntegrityError
from airflow_slurm_images.core.job_script import package_checksums
from airflow_slurm_images.core.plan import PACKAGE_FILES, LifecyclePlan

from .box import Box
from .remains import left_by
from .sqsh import place
from .works import Task, as_operator, ends, inspect_task, reasons

STAGED = (*PACKAGE_FILES, "plan.json", "package.sha256", "job.sbatch", "staged.sha256")
# What the job itself compares at its start; `staged.sha256` is only read before the submission.
COMPARED = tuple(name for name in STAGED if name != "staged.sha256")


def change_a_byte(file: Path) -> None:
    """The last one before the end of the file, so that the file still means something."""
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    mode = file.stat().st_mode
    file.write_bytes(data)
    file.chmod(mode)


def absent_file(box: Box) -> Task:
    """Of a file that is not there: a job that passes its checks says so, in another phase."""
    return inspect_task(box, place(box, "never-made"), "generic")


@pytest.fixture
def task(box_plain: Box) -> Task:
    return absent_file(box_plain)


@pytest.fixture
def held(box_plain: Box) -> Iterator[None]:
    """New jobs of the partition wait."""
    as_operator(box_plain, "scontrol", "update", f"PartitionName={box_plain.partition}", "State=DOWN")
    yield
    release(box_plain)


def release(box: Box) -> None:
    as_operator(box, "scontrol", "update", f"PartitionName={box.partition}", "State=UP")


def plan_of(task: Task) -> LifecyclePlan:
    state = task.hook.prepare(task.work.run_key)
    return LifecyclePlan.build(
        run_key=task.work.run_key,
        attempt=secrets.token_hex(8),
        token=secrets.token_hex(16),
        generation=1,
        request=task.work.request,
        profile=task.hook.profile,
        workspace=state.workspace,
        login=state.login,
        package_files=package_checksums(),
    )


@pytest.mark.parametrize("name", STAGED)
def test_a_byte_changed_before_the_submission_means_no_job(box_plain: Box, task: Task, name: str) -> None:
    plan = plan_of(task)
    staged = task.hook.stage(plan)
    change_a_byte(Path(plan.attempt_directory) / name)
    with pytest.raises(IntegrityError, match="differs from its checksum"):
        task.hook.submit(plan, staged)
    assert box_plain.squeue(plan.job_name) == []


def test_a_byte_changed_while_the_job_waits_stops_it_before_enroot(box_plain: Box, held: None) -> None:
    tasks = {name: absent_file(box_plain) for name in (*COMPARED, "a removed file")}
    for name, task in tasks.items():
        task.begin()
        if name in COMPARED:
            change_a_byte(task.directory / name)
        else:
            (task.directory / "enroot.sh").unlink()
    release(box_plain)
    assert reasons(ends(tasks)) == dict.fromkeys(tasks, ("IntegrityError", "tampered"))
    for task in tasks.values():
        completion = task.completion()
        assert (completion["exit_status"], completion["phase"]) == (71, "verify")
        assert not (task.directory / "claim").exists()
        assert "asi: enroot" not in (task.directory / "slurm.out").read_text()
        assert left_by(box_plain, task) == []


def test_without_a_change_the_same_job_gets_to_its_work(box_plain: Box, task: Task, held: None) -> None:
    task.begin()
    release(box_plain)
    with pytest.raises(Exception, match="not visible on node"):
        task.wait()
    assert task.completion()["phase"] == "locate"
