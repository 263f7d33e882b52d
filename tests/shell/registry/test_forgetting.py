# SPDX-License-Identifier: Apache-2.0
"""Who removes a staged login that its job could not remove, and who never does while a job may still need it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.observation import Watch
from airflow_slurm_images.core.plan import LifecyclePlan
from tests.shell.fake_slurm.login import RUN_KEY, LocalCluster, import_request

LOGIN = b"machine reg.example login robot password secret\n"
MINUTES = 600


def staged(cluster: LocalCluster) -> tuple[LifecyclePlan, int, Path]:
    """A submitted job with a login, with Enroot's and our own copies of it."""
    plan, job_id = cluster.submit(import_request(), LOGIN)
    directory = Path(plan.attempt_directory)
    for place in ("login/token", "cache/.tokens.1/reg.example.9"):
        (directory / place).parent.mkdir(parents=True)
        (directory / place).write_text("secret")
    (directory / "cache" / ("a" * 64)).write_text("a layer")
    return plan, job_id, directory


def age(path: Path) -> None:
    then = path.stat().st_mtime - MINUTES
    os.utime(path, (then, then))


def secrets_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file() and b"secret" in path.read_bytes()[:80])


ALL = [".credentials", "reg.example.9", "token"]


@pytest.mark.parametrize(
    ("state", "in_queue", "minutes_ago", "left"),
    [
        ("PENDING", True, True, ALL),
        ("RUNNING", True, True, ALL),
        ("COMPLETING", True, True, ALL),
        ("SUSPENDED", True, True, ALL),
        ("NODE_FAIL", True, True, []),
        ("CANCELLED", True, True, []),
        ("NODE_FAIL", False, True, []),
        ("PENDING", False, False, ALL),  # submitted just now: a controller may not list it yet
    ],
)
def test_the_next_try_removes_what_an_ended_job_left(
    cluster: LocalCluster, state: str, in_queue: bool, minutes_ago: bool, left: list[str]
) -> None:
    _, job_id, directory = staged(cluster)
    cluster.slurm.change(job_id, state=state, in_queue=in_queue)
    if minutes_ago:
        age(directory / "job_id")
    cluster.hook.prepare(RUN_KEY)
    assert secrets_in(directory) == left
    assert (directory / "cache" / ("a" * 64)).exists()


def test_an_attempt_whose_submission_is_in_doubt_keeps_its_login(cluster: LocalCluster) -> None:
    _, job_id, directory = staged(cluster)
    cluster.slurm.change(job_id, in_queue=False)
    age(directory / "job_id")
    (directory / "job_id").unlink()
    cluster.hook.prepare(RUN_KEY)
    assert secrets_in(directory) == ALL


DOUBTFUL = pytest.mark.parametrize(
    "answer",
    [
        {"rc": 1, "err": "slurm_load_jobs error: Unable to contact slurm controller"},
        {"rc": 0, "err": "slurm_load_jobs error: Unable to contact slurm controller"},
        {"rc": 0, "out": "what no squeue prints\n"},
    ],
)


@DOUBTFUL
def test_a_queue_that_does_not_answer_proves_nothing(cluster: LocalCluster, answer: dict[str, Any]) -> None:
    _, _, directory = staged(cluster)
    age(directory / "job_id")
    cluster.slurm.next_answer("squeue", **answer)
    cluster.hook.prepare(RUN_KEY)
    assert secrets_in(directory) == ALL


@DOUBTFUL
def test_nor_is_a_job_in_doubt_claimed_away(cluster: LocalCluster, answer: dict[str, Any]) -> None:
    _, _, directory = staged(cluster)
    (directory / "job_id").unlink()
    os.utime(directory / "submitted_at", (0, 0))
    cluster.slurm.next_answer("squeue", **answer)
    cluster.hook.prepare(RUN_KEY)
    assert not (directory / "claim").exists()
    assert secrets_in(directory) == ALL


@pytest.mark.parametrize(("in_queue", "left"), [(True, ALL), (False, [])])
def test_the_queue_of_the_cluster_that_has_the_job_is_the_one_that_counts(
    cluster: LocalCluster, in_queue: bool, left: list[str]
) -> None:
    """The login node's own cluster does not list it in either case."""
    cluster.slurm.send_to("north")
    _, job_id, directory = staged(cluster)
    age(directory / "job_id")
    cluster.slurm.change(job_id, in_queue=in_queue)
    cluster.hook.prepare(RUN_KEY)
    assert secrets_in(directory) == left


def test_a_record_is_proof_enough_for_every_contact(cluster: LocalCluster) -> None:
    plan, job_id, directory = staged(cluster)
    (directory / "completion.json").write_text("{}")
    watch = Watch(job_id, plan.job_name, plan.token, str(directory), "2024-05-01T10:00:00", "try1", 0, 100)
    cluster.hook.observe([watch])
    assert secrets_in(directory) == []


@pytest.mark.parametrize("ended", [False, True])
def test_collecting_removes_it_where_the_job_is_known_to_have_ended(cluster: LocalCluster, ended: bool) -> None:
    _, _, directory = staged(cluster)
    cluster.hook.collect(str(directory), ended=ended)
    assert secrets_in(directory) == ([] if ended else ALL)


@pytest.mark.parametrize("started", [False, True])
def test_cancelling_removes_it_where_the_job_never_started(cluster: LocalCluster, started: bool) -> None:
    """One that runs cleans up itself, and needs it until then."""
    plan, job_id, directory = staged(cluster)
    if started:
        (directory / "claim").mkdir()
    cluster.hook.cancel(job_id, plan.job_name, attempt=plan.attempt)
    assert secrets_in(directory) == (ALL if started else [])


def test_a_new_attempt_removes_those_of_older_ones(cluster: LocalCluster) -> None:
    _, _, directory = staged(cluster)
    cluster.stage(import_request(), LOGIN)
    assert secrets_in(directory) == []


def test_nothing_is_removed_through_a_link(cluster: LocalCluster, tmp_path: Path) -> None:
    _, _, directory = staged(cluster)
    precious = tmp_path / "precious"
    (precious / "enroot-config").mkdir(parents=True)
    (precious / "completion.json").write_text("{}")
    (directory.parent / secrets.token_hex(8)).symlink_to(precious)
    cluster.hook.prepare(RUN_KEY)
    assert (precious / "enroot-config").exists()
