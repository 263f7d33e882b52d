# SPDX-License-Identifier: Apache-2.0
"""The job dies, or is made to start over: each end has its own message, and the retry makes one good job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import procfs
from tests.cluster.box import Box, temporary_box
from tests.cluster.polling import wait_until
from tests.cluster.space import kill
from tests.faults.conftest import MakeScene, blocking_first
from tests.faults.scene import Scene
from tests.faults.steps import Step


def begun(scene: Scene) -> tuple[Step, str]:
    """A try that waits for a job in its import; and the job's id."""
    scene.hold()
    waiting = scene.begin()
    assert scene.importing()
    return waiting, str(scene.jobs()[-1].job_id)


@blocking_first
def test_scancel_from_outside(scene: Scene) -> None:
    waiting, job = begun(scene)
    scene.box.as_root(["scancel", job], check=True)
    outcome = scene.finish(waiting)
    assert (outcome.error, outcome.retryable) == ("JobFailedError", True)
    assert "cancelled by somebody else" in outcome.message
    scene.release()
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


def requeue(scene: Scene, job: str) -> None:
    """Have Slurm start the job over, without a hold."""
    scene.box.as_root(["scontrol", "update", f"JobId={job}", "Requeue=1"], check=True)
    scene.box.as_root(["scontrol", "requeue", job], check=True)
    assert scene.reaches("PENDING"), scene.jobs()
    scene.release()
    # Slurm lets a requeued job wait for two minutes; credentials of the very second of the requeue are revoked.
    time.sleep(2)
    assert wait_until(lambda: scene.start_now(job), 30, 0.5), scene.jobs()


@blocking_first
def test_scontrol_requeue_starts_the_same_job_over(scene: Scene) -> None:
    waiting, job = begun(scene)
    requeue(scene, job)
    record = scene.assert_published(scene.finish(waiting, 200))
    assert str(record["job"]["job_id"]) == job
    assert [entry.restarts for entry in scene.jobs()] == [1]
    assert scene.imports() == [int(job)] * 2
    scene.assert_settled(jobs=1, imports=2)


@pytest.mark.slow
def test_scontrol_requeue_of_a_job_whose_staged_login_is_gone(make_scene: MakeScene, box: Box) -> None:
    scene = make_scene(box, "blocking", registry_conn_id="registry")
    account = {"host": box.registry, "login": "ann", "password": "not-asked-for", "extra": {"insecure": True}}
    scene.environment["AIRFLOW_CONN_REGISTRY"] = json.dumps({"conn_type": "oci_registry", **account})
    waiting, job = begun(scene)
    requeue(scene, job)
    outcome = scene.finish(waiting, 200)
    assert (outcome.error, outcome.retryable) == ("JobFailedError", True)
    assert "stages the login again" in outcome.message
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


@blocking_first
def test_the_batch_shell_alone_is_killed(scene: Scene) -> None:
    waiting, job = begun(scene)
    shells = [pid for pid in scene.box.space.pids() if procfs.mentions(pid, f"job{int(job):05d}/slurm_script")]
    batch = [pid for pid in shells if procfs.name_of(procfs.parent_of(pid) or 0) == "slurmstepd"]
    assert len(batch) == 1, shells
    kill(batch)
    assert wait_until(lambda: not scene.left(), 10), scene.left()
    outcome = scene.finish(waiting)
    assert (outcome.error, outcome.retryable) == ("JobFailedError", True)
    assert "FAILED" in outcome.message
    scene.release()
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


@blocking_first
def test_a_second_sbatch_of_the_same_attempt_is_superseded(scene: Scene) -> None:
    waiting, job = begun(scene)
    argv = ["sbatch", "--parsable", "--export=NIL", "--no-requeue", "job.sbatch"]
    scene.box.as_user(argv, cwd=scene.attempts[0], check=True)
    scene.release()
    record = scene.assert_published(scene.finish(waiting))
    assert str(record["job"]["job_id"]) == job
    assert wait_until(lambda: [entry.state for entry in scene.jobs()] == ["COMPLETED", "FAILED"], 30), scene.jobs()
    scene.assert_settled(jobs=2, imports=1)


@pytest.fixture(scope="module")
def forgetful(enroot_dir: Path) -> Iterator[Box]:
    """A cluster whose controller forgets ended jobs at once; accounting keeps them."""
    with temporary_box(True, enroot_dir, min_job_age=2) as box:
        yield box


@pytest.mark.slow
def test_the_node_is_set_down(make_scene: MakeScene, forgetful: Box, mode: str) -> None:
    """The job may come back as long as the controller lists it, and for a while after."""
    scene = make_scene(forgetful, mode, limits={"interrupted_grace": 2.0})
    waiting, job = begun(scene)
    node = f"NodeName={forgetful.node}"
    forgetful.as_root(["scontrol", "update", node, "State=DOWN", "Reason=test"], check=True)
    outcome = scene.finish(waiting, 240)
    assert (outcome.error, outcome.retryable) == ("JobFailedError", True)
    assert "NODE_FAIL" in outcome.message
    assert "a retry helps" in outcome.message
    forgetful.as_root(["scontrol", "update", node, "State=RESUME"])  # it may be back by itself
    scene.release()
    # By the record: this controller may have forgotten the job already.
    assert str(scene.assert_published_by_record(scene.run())["job"]["job_id"]) != job
    assert len(scene.imports()) == 2
    assert wait_until(lambda: not scene.left(), 20), scene.left()


@blocking_first
def test_memory_limit(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, profile={"memory": "100M"})
    scene.act("hog.py")
    outcome = scene.run()
    assert (outcome.error, outcome.retryable) == ("JobFailedError", False)
    assert "memory" in outcome.message
    assert "`memory`" in outcome.message.partition("What to do")[2]
    # Slurm kills everything of the job at once, so its scratch may stay: the next job on the node sweeps it.
    scene.unflag("act")
    scene.profile["memory"] = "1G"
    scene.clear()
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


@pytest.mark.slow
def test_time_limit(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode, profile={"time_limit": "00:01:00"})
    waiting, _ = begun(scene)
    outcome = scene.finish(waiting, 180)
    assert (outcome.error, outcome.retryable) == ("JobFailedError", False)
    assert "TIMEOUT" in outcome.message
    assert "time_limit" in outcome.message.partition("What to do")[2]
    scene.assert_settled(jobs=1, imports=1)


# -- disk full


@blocking_first
def test_scratch_is_full(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode)
    scratch = scene.place("scratch")
    scene.mount(scratch, "8m")
    scene.profile |= {"scratch_root": str(scratch), "min_free": "1M"}
    scene.act("fill")
    scene.flag("full", f"{scratch}\n")
    outcome = scene.run()
    assert outcome.retryable, outcome
    assert "not enough free space" in outcome.message
    assert f"100% {scratch}" in outcome.message
    assert list(scratch.iterdir()) == []
    scene.unmount()
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


@blocking_first
def test_scratch_has_less_than_min_free(make_scene: MakeScene, box: Box, mode: str) -> None:
    scene = make_scene(box, mode)
    scratch = scene.place("scratch")
    scene.mount(scratch, "8m")
    scene.profile |= {"scratch_root": str(scratch), "min_free": "1G"}
    outcome = scene.run()
    assert outcome.retryable, outcome
    assert "not enough free space" in outcome.message
    assert str(scratch) in outcome.message
    scene.assert_settled(jobs=1, imports=0)


@blocking_first
def test_the_store_is_full(make_scene: MakeScene, box: Box, mode: str) -> None:
    make_scene(box, "blocking").run()  # makes the workspace
    scene = make_scene(box, mode, profile={"min_free": "1M"})
    store = box.workspace / "store" / "sha256"
    before = sorted(store.iterdir())
    scene.mount(store, "8m")
    scene.act("fill")
    scene.flag("full", f"{store}\n")
    outcome = scene.run()
    assert outcome.retryable, outcome
    assert "store" in outcome.message
    scene.unmount()
    assert sorted(store.iterdir()) == before
    scene.assert_published(scene.run())
    scene.assert_settled(jobs=2, imports=2)


@blocking_first
def test_the_run_directory_is_full(make_scene: MakeScene, box: Box, mode: str) -> None:
    """Not even the completion record can be written: Slurm's own word decides, and the retry starts anew."""
    scene = make_scene(box, mode, profile={"record_wait": 2})
    waiting, _ = begun(scene)
    scene.act("fill")
    run = scene.attempts[0]
    contents = {path.name for path in run.iterdir()}
    assert "claim" in contents
    scene.flag("full", f"{fill_up(scene, run)}\n")
    scene.release()
    outcome = scene.finish(waiting)
    assert outcome.error is not None
    assert outcome.retryable, outcome
    scene.unmount()
    scene.assert_published(scene.run())


def fill_up(scene: Scene, directory: Path) -> Path:
    """Move a directory to a small file system that is mounted in its place; what is open there stays open."""
    copy = scene.place("copy")
    scene.box.as_root(["cp", "-a", f"{directory}/.", str(copy)], check=True)
    scene.mount(directory, "2m")
    scene.box.as_root(["cp", "-a", f"{copy}/.", str(directory)], check=True)
    return directory
