# SPDX-License-Identifier: Apache-2.0
"""What only a whole Airflow shows: its own kills, its triggerer and its timeouts."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_slurm_images.core.plan import run_key
from tests.cluster.box import Box
from tests.cluster.polling import wait_until
from tests.faults.airflow_stack import AirflowStack, TaskRun
from tests.faults.conftest import MakeScene
from tests.faults.scene import Scene
from tests.faults.steps import DEPLOYMENT

pytestmark = pytest.mark.slow  # a whole Airflow takes minutes to come up

TELLS_KILLS = hasattr(BaseTrigger, "on_kill")
"""Whether this Airflow tells a trigger that a user ended its task: from 3.3 on."""

Begin = Callable[[str], tuple[Scene, TaskRun]]


@pytest.fixture(scope="module")
def stack(box_accounting: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    environment = {"AIRFLOW_CONN_SLURM_DEFAULT": box_accounting.connection_json}
    with AirflowStack(tmp_path_factory.mktemp("airflow") / "home", environment, DEPLOYMENT) as stack:
        yield stack


@pytest.fixture
def begin(stack: AirflowStack, make_scene: MakeScene, box: Box) -> Begin:
    """Run a DAG until its job is in its import, and waited for."""

    def start(dag_id: str) -> tuple[Scene, TaskRun]:
        scene = make_scene(box, "blocking", slurm_tools=["scancel"])
        run_id = f"run-{secrets.token_hex(4)}"
        task = "submit" if dag_id == "sensor" else "task"
        scene.key = run_key(DEPLOYMENT, dag_id, task, run_id, -1)
        scene.hold()
        conf = {"image": scene.options["image"], "name": scene.name, "profile": scene.profile}
        run = TaskRun(stack, dag_id, conf, run_id)
        assert scene.importing(timeout=120), (run.log(), stack.logs())
        state = "running" if dag_id.startswith("blocking") else "deferred"
        assert run.reaches(state), run.instance
        # By its task or by its trigger; a task that is marked before its trigger has begun is nobody's.
        assert wait_until(lambda: "is RUNNING" in run.log() or dag_id == "sensor", 60), (run.log(), stack.logs())
        return scene, run

    return start


def published(scene: Scene, run: TaskRun, jobs: int, imports: int) -> None:
    """The task ends well, with so many jobs in all."""
    scene.release()
    assert run.reaches("success", timeout=180), (run.instance, run.log())
    record = run.xcom()
    assert Path(record["sqsh"]["alias_path"]).resolve() == Path(record["sqsh"]["path"])
    assert record["job"]["job_id"] == scene.imports()[-1]
    scene.assert_settled(jobs=jobs, imports=imports)


def test_a_restart_of_the_triggerer_cancels_nothing_and_the_task_goes_on(begin: Begin, stack: AirflowStack) -> None:
    scene, run = begin("deferred")
    stack.stop_component("triggerer")
    assert scene.job_state() == "RUNNING"
    stack.start_component("triggerer")
    published(scene, run, jobs=1, imports=1)
    assert scene.calls("scancel") == []


def test_a_killed_task_process_is_retried_and_the_retry_adopts(begin: Begin) -> None:
    scene, run = begin("blocking")
    run.signal(signal.SIGKILL)
    assert run.reaches("running", tries=2), (run.instance, run.log())
    published(scene, run, jobs=1, imports=1)


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_deferred_task_that_is_marked_cancels_its_job(begin: Begin, state: str) -> None:
    scene, run = begin("deferred")
    run.mark(state)
    assert scene.reaches("CANCELLED", 120), (scene.jobs(), run.log())
    assert len(scene.calls("scancel")) == 1, scene.calls("scancel")
    assert {f"--name={scene.job_name}", str(scene.jobs()[0].job_id)} <= set(scene.calls("scancel")[0].split())
    assert run.state == state
    scene.assert_settled(jobs=1, imports=1)


def test_a_deferred_task_that_is_cleared(begin: Begin, stack: AirflowStack) -> None:
    """Airflow 3.3 tells the trigger: one scancel, a new job. Before, nobody is told: the new try adopts the job.

    No task is started meanwhile, so that the trigger comes first. (Nor may the DAG be paused: Airflow ends the trigger
    when the new try is scheduled.)
    """
    scene, run = begin("deferred")
    with stack.no_free_slot():
        run.clear()
        if TELLS_KILLS:
            assert scene.reaches("CANCELLED", 120), (scene.jobs(), run.log())
        else:
            assert wait_until(lambda: "trigger completed" in run.log(), 120), (run.log(), stack.logs())
    jobs = 2 if TELLS_KILLS else 1
    assert scene.importing(jobs), (scene.jobs(), run.log())
    assert run.reaches("deferred", tries=2), (run.instance, run.log())
    published(scene, run, jobs, jobs)
    assert len(scene.calls("scancel")) == jobs - 1, scene.calls("scancel")
    assert [job.state for job in scene.jobs()] == (["CANCELLED", "COMPLETED"] if TELLS_KILLS else ["COMPLETED"])


def test_a_cleared_task_whose_new_try_comes_before_the_kill_keeps_its_job(begin: Begin, stack: AirflowStack) -> None:
    """The triggerer stands still while the new try adopts the job; told of the clear later, it leaves it alone."""
    scene, run = begin("deferred")
    with stack.frozen_triggers():
        run.clear()
        assert run.reaches("deferred", tries=2), (run.instance, run.log())
    published(scene, run, jobs=1, imports=1)
    assert scene.calls("scancel") == []


def test_a_task_that_is_cleared_after_its_success_starts_a_new_attempt(begin: Begin) -> None:
    """And a retry of the new one adopts, as any: the numbers that Airflow gives the tries tell them apart."""
    scene, run = begin("blocking")
    published(scene, run, jobs=1, imports=1)
    assert wait_until(run.is_over, 60)  # a clear between the ends of task and run is lost on Airflow 3.1
    scene.hold()
    run.clear()
    assert scene.importing(jobs=2, timeout=120), (scene.jobs(), run.log())
    assert run.reaches("running", tries=2), (run.instance, run.log())
    run.signal(signal.SIGKILL)
    assert run.reaches("running", tries=3), (run.instance, run.log())
    published(scene, run, jobs=2, imports=2)


def test_a_running_task_that_is_marked_failed_cancels_its_job(begin: Begin) -> None:
    scene, run = begin("blocking")
    run.mark("failed")
    assert scene.reaches("CANCELLED", 120), (scene.jobs(), run.log())
    scene.assert_settled(jobs=1, imports=1)


def test_a_running_task_that_is_cleared_ends_with_a_new_job(begin: Begin) -> None:
    scene, run = begin("blocking")
    run.clear()
    assert scene.importing(jobs=2, timeout=120), (scene.jobs(), run.log())
    published(scene, run, jobs=2, imports=2)
    assert [job.state for job in scene.jobs()] == ["CANCELLED", "COMPLETED"]


def test_sigterm_of_the_task_process_cancels_and_the_retry_submits_anew(begin: Begin) -> None:
    scene, run = begin("blocking")
    run.signal(signal.SIGTERM)
    assert scene.importing(jobs=2, timeout=120), (scene.jobs(), run.log())
    published(scene, run, jobs=2, imports=2)


def test_with_cancel_on_kill_off_a_marked_task_leaves_its_job(begin: Begin) -> None:
    for dag_id in ("blocking_kept", "deferred_kept"):
        scene, run = begin(dag_id)
        run.mark("failed")
        assert run.reaches("failed")
        scene.release()
        assert scene.reaches("COMPLETED"), scene.jobs()
        assert scene.calls("scancel") == []
        scene.assert_settled(jobs=1, imports=1)


def test_execution_timeout_of_a_deferred_task_cancels_and_the_retry_submits_anew(begin: Begin) -> None:
    scene, run = begin("deferred_timeout")
    assert scene.importing(jobs=2, timeout=120), (scene.jobs(), run.log())
    scene.release()
    assert run.reaches("success", timeout=180), (run.instance, run.log())
    states = [job.state for job in scene.jobs()]
    assert states == ["CANCELLED"] * (len(states) - 1) + ["COMPLETED"]
    assert "execution_timeout" in run.log()
    scene.assert_settled(jobs=len(states), imports=len(states))


def test_a_sensor_that_is_marked_or_cleared_cancels_nothing(begin: Begin) -> None:
    scene, run = begin("sensor")
    run.clear()
    assert run.reaches("deferred", tries=2), (run.instance, run.log())
    run.mark("failed")
    assert run.reaches("failed")
    assert scene.job_state() == "RUNNING"
    scene.release()
    assert scene.reaches("COMPLETED")
    assert scene.calls("scancel") == []
    scene.assert_settled(jobs=1, imports=1)
