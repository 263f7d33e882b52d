# SPDX-License-Identifier: Apache-2.0
"""SlurmJobSensor: waits for a job that was only submitted, in each mode, and finishes what the operator began."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from airflow.sdk import DAG

from airflow_slurm_images.core.decide import Limits
from airflow_slurm_images.core.errors import JobFailedError
from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.operators.images import OciImportOperator
from airflow_slurm_images.sensors.images import SlurmJobSensor
from tests.airflow.contexts import handle, task_context
from tests.airflow.dag_runs import DagRunner, Run
from tests.airflow.fake_hook import FakeHook, running
from tests.cluster.box import Box
from tests.cluster.polling import wait_until
from tests.cluster.slurm_daemons import CLOSED_PARTITION

LIMITS = Limits(appear_grace=0.5)
MODES: dict[str, dict[str, Any]] = {
    "poke": {"mode": "poke"},
    "reschedule": {"mode": "reschedule"},
    "deferrable": {"deferrable": True},
}


@pytest.fixture
def waited(run_dag: DagRunner, images: dict[str, str], kept_runs: dict[str, Run]) -> Run:
    """Three jobs submitted by one DAG, each waited for in another mode."""
    if "waited" not in kept_runs:
        with DAG("waited", schedule=None) as dag:
            for mode, options in MODES.items():
                submit = OciImportOperator(
                    task_id=f"submit_{mode}",
                    image=images["nopython"],
                    name=f"by-{mode}",
                    kind="generic",
                    if_present="reimport",
                    wait_for_completion=False,
                )
                SlurmJobSensor(task_id=mode, job=submit.output, poke_interval=1, **options)
        kept_runs["waited"] = run_dag(dag)
    return kept_runs["waited"]


@pytest.mark.parametrize("mode", MODES)
def test_the_operator_returns_a_handle_and_the_sensor_the_record(waited: Run, box: Box, mode: str) -> None:
    handle = JobHandle.model_validate_json(json.dumps(waited.record(f"submit_{mode}")))
    assert "Image:" not in waited.log_of(f"submit_{mode}")
    record = waited.record(mode)
    assert record["job"]["job_id"] == handle.job_id
    assert record["job"]["run_directory"] == handle.run_directory
    alias = box.workspace / "aliases" / f"by-{mode}.sqsh"
    assert alias.resolve() == Path(record["sqsh"]["path"])
    assert waited.tries()[mode] == 1


@pytest.mark.parametrize("mode", MODES)
def test_each_phase_shows_once_whatever_the_mode(waited: Run, mode: str) -> None:
    phases = waited.phases_of(mode)
    assert phases[:1] + phases[-1:] == ["verify", "done"] and len(set(phases)) == len(phases)
    assert waited.log_of(mode).count("asi: ended in phase done") == 1


@pytest.fixture
def failed_job(run_dag: DagRunner, images: dict[str, str], kept_runs: dict[str, Run]) -> dict[str, Any]:
    """Handle of a job that cannot succeed."""
    if "failed_job" not in kept_runs:
        image = images["client"].partition("@")[0] + "@sha256:" + 64 * "0"
        with DAG("failed_job", schedule=None) as dag:
            OciImportOperator(task_id="task", image=image, name="gone", wait_for_completion=False)
        kept_runs["failed_job"] = run_dag(dag)
    return kept_runs["failed_job"].record()


def test_a_failed_job_fails_the_sensor_once_or_skips_it(run_dag: DagRunner, failed_job: dict[str, Any]) -> None:
    retries: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0), "poke_interval": 1}
    with DAG("sensor_of_failed", schedule=None) as dag:
        SlurmJobSensor(task_id="poke", job=failed_job, **retries)
        SlurmJobSensor(task_id="deferred", job=json.dumps(failed_job), deferrable=True, **retries)
        SlurmJobSensor(task_id="soft", job=str(failed_job), soft_fail=True, **retries)
        SlurmJobSensor(task_id="soft_deferred", job=failed_job, soft_fail=True, deferrable=True, **retries)
    run = run_dag(dag)
    assert run.states() == {"poke": "failed", "deferred": "failed", "soft": "skipped", "soft_deferred": "skipped"}
    assert set(run.tries().values()) == {1}
    for task_id in ("poke", "deferred"):
        failure = run.failure(task_id)
        assert (failure["error"], failure["job_id"]) == ("RegistryNotFoundError", failed_job["job_id"])


@pytest.mark.parametrize("job", [{}, "None", "{'job_id': 1}", {"job_id": 1, "job_name": "x y"}])
def test_what_is_no_handle_is_refused(job: Any) -> None:
    context = task_context()
    with pytest.raises(Exception, match="Invalid job handle"):
        SlurmJobSensor(task_id="s", job=job).execute(context)
    assert context["ti"].pushed["failure"]["error"] == "InvalidRequestError"


def test_a_record_instead_of_a_handle_is_passed_on(waited: Run) -> None:
    """An unchanged image needs no job: the operator then returns the record at once."""
    record = waited.record("poke")
    assert SlurmJobSensor(task_id="s", job=record).execute(task_context()) == record


# -- cancelling


@pytest.fixture
def pending(box: Box, images: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Handle of a job that waits for ever."""
    operator = OciImportOperator(
        task_id="submit",
        image=images["nopython"],
        name="waiting",
        kind="generic",
        profile={"partition": CLOSED_PARTITION},
        if_present="reimport",
        wait_for_completion=False,
    )
    job = operator.execute(task_context())
    yield job
    box.as_user(["scancel", f"--name={job['job_name']}"], check=True)


def active(box: Box, handle: dict[str, Any]) -> bool:
    return handle["job_id"] in {job.job_id for job in box.active_jobs()}


@pytest.mark.parametrize("told", [False, True], ids=["not told to", "told to"])
def test_a_killed_sensor_cancels_only_if_told_to(box: Box, pending: dict[str, Any], told: bool) -> None:
    sensor = SlurmJobSensor(task_id="s", job=pending, cancel_on_kill=told)
    sensor._be_ready(sensor._handle())
    sensor.on_kill()
    assert wait_until(lambda: not active(box, pending), 3) is told


def test_a_rescheduled_sensor_knows_how_long_the_job_has_been_waiting(box: Box, pending: dict[str, Any]) -> None:
    def poke() -> object:
        sensor = SlurmJobSensor(task_id="s", job=pending, mode="reschedule", pending_timeout=3, cancel_on_kill=True)
        return sensor.poke(task_context())

    with pytest.raises(JobFailedError, match="pending_timeout: the job has been pending for"):
        for _ in range(60):
            assert not poke()
            time.sleep(0.2)
    assert not active(box, pending)


@pytest.mark.parametrize("told", [False, True], ids=["not told to", "told to"])
def test_a_deferral_timeout_cancels_only_if_told_to(box: Box, pending: dict[str, Any], told: bool) -> None:
    sensor = SlurmJobSensor(task_id="s", job=pending, cancel_on_kill=told, deferrable=True)
    with pytest.raises(Exception, match="Trigger timeout"):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, task_context())
    assert wait_until(lambda: not active(box, pending), 3) is told


@pytest.mark.parametrize("soft_fail", [False, True], ids=["fails", "skips"])
@pytest.mark.parametrize("told", [False, True], ids=["not told to", "told to"])
@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_timeout_in_this_process_cancels_only_if_told_to(
    monkeypatch: pytest.MonkeyPatch, mode: str, told: bool, soft_fail: bool
) -> None:
    hook = FakeHook(running)
    monkeypatch.setattr("airflow_slurm_images.sensors.images.SlurmHook", lambda *_, **__: hook)
    sensor = SlurmJobSensor(
        task_id="s", job=handle(), mode=mode, cancel_on_kill=told, soft_fail=soft_fail, timeout=0.01, poke_interval=0.1
    )
    monkeypatch.setattr(sensor, "poke", lambda _context: time.sleep(0.02))
    with pytest.raises(AirflowSkipException if soft_fail else AirflowSensorTimeout):
        sensor.execute(task_context())
    assert len(hook.cancelled) == (1 if told else 0)


def test_doubt_that_is_skipped_cancels_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = FakeHook()
    monkeypatch.setattr("airflow_slurm_images.sensors.images.SlurmHook", lambda *_, **__: hook)
    sensor = SlurmJobSensor(task_id="s", job=handle(), cancel_on_kill=True, soft_fail=True, poke_interval=0.1)

    def lost(_context: Any) -> None:
        raise AirflowFailException("lost contact")

    monkeypatch.setattr(sensor, "poke", lost)
    with pytest.raises(AirflowSkipException):
        sensor.execute(task_context())
    assert hook.cancelled == []


def test_its_own_timeouts_leave_the_job_alone_too(box: Box, pending: dict[str, Any]) -> None:
    sensor = SlurmJobSensor(task_id="s", job=pending, pending_timeout=0.1, poke_interval=1)
    with pytest.raises(Exception, match="pending_timeout"):
        sensor.execute(task_context())
    assert active(box, pending)


def test_reschedule_mode_sees_doubt_through(box: Box, pending: dict[str, Any]) -> None:
    """A job that is gone without a trace would be waited for for ever, as each poke remembers nothing."""
    unknown = {**pending, "job_id": pending["job_id"] + 100_000, "record_wait": 1}
    sensor = SlurmJobSensor(task_id="s", job=unknown, mode="reschedule", poke_interval=0.2)
    sensor._limits = lambda: LIMITS  # type: ignore[method-assign]
    with pytest.raises(Exception, match="never seen in the queue"):
        sensor.execute(task_context())


def test_a_rescheduled_sensor_goes_on_where_the_one_before_stopped(
    images: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poke is a new process: the cluster keeps the place in the job's output."""
    pokes: list[list[str]] = []
    monkeypatch.setattr(
        "airflow_slurm_images.sensors.images.emit", lambda _log, lines: pokes[-1].extend(line.text for line in lines)
    )
    job = OciImportOperator(
        task_id="submit", image=images["client"], name="slow", if_present="reimport", wait_for_completion=False
    ).execute(task_context())
    context, found = task_context(), None
    while not found:
        pokes.append([])
        found = SlurmJobSensor(task_id="s", job=job, mode="reschedule", poke_interval=0.5).poke(context)
        time.sleep(0.5)
    assert sum(any("asi: phase" in line for line in lines) for lines in pokes) > 1
    phases = re.findall(r"asi: phase (\w+)", "\n".join(line for lines in pokes for line in lines))
    assert phases[:1] + phases[-1:] == ["verify", "done"] and len(set(phases)) == len(phases)
