# SPDX-License-Identifier: Apache-2.0
"""What becomes of the job when its task is killed or its time is over."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowTaskTimeout, Connection, TaskDeferred
from airflow.sdk import DAG

from airflow_slurm_images.core.errors import ClusterUnavailableError, JobFailedError, TaskKilledError
from airflow_slurm_images.core.plan import job_name
from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.lifecycle import Lifecycle
from airflow_slurm_images.operators import base
from airflow_slurm_images.operators.images import OciImportOperator
from airflow_slurm_images.sensors.images import SlurmJobSensor
from airflow_slurm_images.task_context import TaskTry
from tests.airflow.contexts import handle, task_context
from tests.airflow.dag_runs import DagRunner
from tests.airflow.fake_hook import FakeHook
from tests.cluster.box import Box
from tests.cluster.polling import wait_until
from tests.cluster.slurm_daemons import CLOSED_PARTITION
from tests.shell.fake_slurm.login import CREDENTIALS, LocalCluster, secrets_in

RUN_KEY = 32 * "a"
CONNECTION = Connection(conn_id="lab", conn_type="slurm_ssh", host="login.example")
PINNED = "registry.example/team/app@sha256:" + 64 * "a"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> FakeHook:
    fake = FakeHook()

    def make(*arguments: Any, **options: Any) -> FakeHook:
        fake.options = (arguments, options)  # type: ignore[attr-defined]
        return fake

    monkeypatch.setattr(base, "SlurmHook", make)
    return fake


def operator(**arguments: Any) -> OciImportOperator:
    return OciImportOperator(task_id="task", image=PINNED, name="app", slurm_conn_id="lab", **arguments)


def begun(**arguments: Any) -> OciImportOperator:
    """An operator that is at its work."""
    task = operator(**arguments)
    task._be_ready(TaskTry(RUN_KEY, number=3, generation=2), CONNECTION)
    return task


def test_killed_before_the_job_is_known_it_is_cancelled_by_name(hook: FakeHook) -> None:
    """sbatch may be under way: only the name is certain."""
    task = begun()
    task.on_kill()
    assert [what[:3] for what in hook.cancelled] == [(None, job_name(RUN_KEY), None)]
    assert hook.cancel_options == [{"generation": 2}]
    assert hook.closed == 1


def test_killed_afterwards_it_is_cancelled_by_name_on_its_cluster(hook: FakeHook) -> None:
    """A duplicate of a doubtful submission may run the attempt, not the id that is known here."""
    task = begun()
    task._remember(JobHandle.model_validate(handle(job_id=9, cluster="lab")))
    task.on_kill()
    assert [what[:3] for what in hook.cancelled] == [(None, job_name(RUN_KEY), "lab")]


def test_the_kill_makes_one_quick_attempt(hook: FakeHook) -> None:
    begun().on_kill()
    _, options = hook.options  # type: ignore[attr-defined]
    assert options["connect_attempts"] == 1 and options["conn_timeout"] <= 3


def test_the_kill_asks_airflow_for_nothing(hook: FakeHook) -> None:
    """It runs in a signal handler, maybe in the middle of an exchange with Airflow: all is made before."""
    task = begun()
    _, options = hook.options  # type: ignore[attr-defined]
    assert options["connection"] is CONNECTION
    hook.options = None  # type: ignore[attr-defined]
    task.on_kill()
    assert hook.options is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("why", ["not wanted", "nothing begun"])
def test_otherwise_nothing_is_touched(hook: FakeHook, why: str) -> None:
    task = operator() if why == "nothing begun" else begun(cancel_on_kill=False)
    task.on_kill()
    assert hook.cancelled == [] and hook.closed == 0


def test_a_cluster_that_is_away_does_not_break_the_kill(hook: FakeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ClusterUnavailableError("away")

    monkeypatch.setattr(hook, "cancel", fail)
    begun().on_kill()
    assert hook.closed == 1


@pytest.mark.parametrize(("cancel", "fate"), [(True, "is being cancelled"), (False, "goes on")])
@pytest.mark.parametrize("known", [True, False], ids=["job known", "no job yet"])
def test_a_blocking_task_says_what_its_execution_timeout_means(
    hook: FakeHook, monkeypatch: pytest.MonkeyPatch, known: bool, cancel: bool, fate: str
) -> None:
    task = operator(execution_timeout=timedelta(minutes=7), cancel_on_kill=cancel)
    hook.connection = CONNECTION  # type: ignore[attr-defined]
    ours = JobHandle.model_validate(handle(job_id=9))
    late = AirflowTaskTimeout("Timeout, PID: 7")

    def begin(*_: object) -> None:
        if known:
            task._remember(ours)
        raise late

    monkeypatch.setattr(Lifecycle, "begin", begin)
    context = task_context()
    with pytest.raises(AirflowTaskTimeout) as caught:
        task.execute(context)
    assert caught.value is late
    failure = context["ti"].pushed["failure"]
    assert (failure["reason"], failure["job_id"]) == ("execution_timeout", 9 if known else None)
    assert "0:07:00" in failure["message"] and "execution_timeout" in failure["remedy"]
    if known:
        assert fate in failure["message"] and ours.run_directory in failure["message"]


def test_a_blocking_sensor_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> None:
        raise AirflowTaskTimeout("Timeout, PID: 7")

    sensor = SlurmJobSensor(task_id="task", job=handle(job_id=9), execution_timeout=timedelta(minutes=7))
    monkeypatch.setattr(sensor, "poke", late)
    context = task_context()
    with pytest.raises(AirflowTaskTimeout):
        sensor.execute(context)
    assert "job 9 did not end within 0:07:00 and goes on" in context["ti"].pushed["failure"]["message"]


# -- while there is no job yet


MOMENTS = [(verb, when) for verb in ("prepare", "stage", "submit") for when in ("before", "after")]


@pytest.fixture
def login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    return LocalCluster(tmp_path, monkeypatch)


def killed_at(
    login_node: LocalCluster, monkeypatch: pytest.MonkeyPatch, moment: tuple[str, str], **arguments: Any
) -> BaseException | dict[str, Any]:
    """How a task ends that gets a SIGTERM around one command; Airflow lets it go on meanwhile."""
    task = operator(if_present="reimport", wait_for_completion=False, **arguments)
    connection = login_node.hook.connection
    monkeypatch.setattr(base, "SlurmHook", lambda *given, **__: SlurmHook(*given, connection=connection))
    whole = getattr(SlurmHook, moment[0])

    def command(*given: Any, **options: Any) -> Any:
        if moment[1] == "before":
            os.kill(os.getpid(), signal.SIGTERM)
        answer = whole(*given, **options)
        if moment[1] == "after":
            os.kill(os.getpid(), signal.SIGTERM)
        return answer

    monkeypatch.setattr(SlurmHook, moment[0], command)
    monkeypatch.setattr(task, "build_credentials", lambda: lambda: CREDENTIALS)
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    try:
        return task.execute(task_context())
    except Exception as err:
        return err
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("moment", MOMENTS, ids=" ".join)
def test_a_kill_while_there_is_no_job_yet_leaves_none(
    login_node: LocalCluster, monkeypatch: pytest.MonkeyPatch, moment: tuple[str, str]
) -> None:
    ended = killed_at(login_node, monkeypatch, moment)
    assert isinstance(ended, TaskKilledError) and ended.retryable
    assert [job for job in login_node.slurm.jobs() if job["state"] != "CANCELLED"] == []
    assert (login_node.slurm.calls("sbatch") != []) is (moment[0] == "submit")
    assert secrets_in(login_node.workspace) == []


@pytest.mark.parametrize("moment", MOMENTS, ids=" ".join)
def test_without_cancel_on_kill_the_job_is_submitted_all_the_same(
    login_node: LocalCluster, monkeypatch: pytest.MonkeyPatch, moment: tuple[str, str]
) -> None:
    ended = killed_at(login_node, monkeypatch, moment, cancel_on_kill=False)
    assert isinstance(ended, dict)
    assert [(job["id"], job["state"]) for job in login_node.slurm.jobs()] == [(ended["job_id"], "PENDING")]


# -- on the cluster


def waiting_job(images: dict[str, str], **arguments: Any) -> OciImportOperator:
    return OciImportOperator(
        task_id="task",
        image=images["nopython"],
        name="waiting",
        kind="generic",
        profile={"partition": CLOSED_PARTITION},
        if_present="reimport",
        poll_interval=1,
        **arguments,
    )


def active(box: Box) -> list[str]:
    return [job.name for job in box.active_jobs()]


def test_execution_timeout_cancels_the_job_of_a_blocking_task(
    run_dag: DagRunner, box: Box, images: dict[str, str]
) -> None:
    with DAG("blocking_timeout", schedule=None) as dag:
        waiting_job(images, execution_timeout=timedelta(seconds=2))
    run = run_dag(dag)
    assert run.states() == {"task": "failed"}
    assert "Submitted job" in run.log and "Cancelled job" in run.log
    assert wait_until(lambda: active(box) == [], 3)


def test_pending_timeout_cancels_the_job_and_says_so(run_dag: DagRunner, box: Box, images: dict[str, str]) -> None:
    with DAG("pending_timeout", schedule=None) as dag:
        waiting_job(images, pending_timeout=1)
    run = run_dag(dag)
    failure = run.failure()
    assert "pending_timeout: the job has been pending for" in failure["message"]
    assert "raise `pending_timeout`" in failure["remedy"]
    assert active(box) == []


@pytest.mark.parametrize("cancel", [True, False], ids=["cancelled", "left alone"])
def test_a_deferral_timeout_ends_with_its_own_message(box: Box, images: dict[str, str], cancel: bool) -> None:
    """Airflow wakes the task with nothing but an error: which job it was, the task must know by itself."""
    limit = timedelta(hours=1)
    task = waiting_job(images, deferrable=True, execution_timeout=limit, cancel_on_kill=cancel)
    context = task_context()
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    assert deferred.value.timeout == limit
    name = job_name(TaskTry.read(context, 0).run_key)
    assert active(box) == [name]
    with pytest.raises(JobFailedError, match="execution_timeout: job") as caught:
        waiting_job(images, execution_timeout=limit, cancel_on_kill=cancel).resume_execution(
            "__fail__", {"error": "Trigger timeout"}, context
        )
    assert type(caught.value.__cause__).__name__ == "TaskDeferralTimeout"
    assert caught.value.retryable and "execution_timeout" in str(caught.value.remedy)
    assert context["ti"].pushed["failure"]["reason"] == "execution_timeout"
    assert (active(box) == []) is cancel
    box.as_user(["scancel", f"--name={name}"], check=True)


def test_a_trigger_that_broke_cancels_nothing(box: Box, images: dict[str, str], hook: FakeHook) -> None:
    """Doubt is never a reason to cancel: the next try adopts the job."""
    with pytest.raises(Exception, match="Trigger failure"):
        waiting_job(images).resume_execution("__fail__", {"error": "Trigger failure"}, task_context())
    assert hook.cancelled == []
