# SPDX-License-Identifier: Apache-2.0
"""Blocking or deferred: Airflow's own default decides, and the way to the cluster is the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import DAG

from airflow_slurm_images.operators.images import OciImportOperator
from airflow_slurm_images.sensors.images import SlurmJobSensor
from tests.airflow.contexts import handle, task_context
from tests.airflow.dag_runs import DagRunner
from tests.cluster.box import Box
from tests.cluster.polling import wait_until

PROXY = """\
import os, socket, sys, threading
host, port, notes = sys.argv[1:]
with open(notes, "a") as file:
    file.write(f"{host} {port}\\n")
server = socket.create_connection((host, int(port)))
def up():
    while data := os.read(0, 65536):
        server.sendall(data)
    server.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := server.recv(65536):
    os.write(1, data)
"""


@pytest.fixture
def proxied(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the worker's account an ssh configuration with a proxy command; each connection leaves a line here."""
    notes, script = tmp_path / "notes", tmp_path / "proxy.py"
    script.write_text(PROXY)
    (tmp_path / ".ssh").mkdir()
    port = json.loads(box.connection_json)["port"]  # the SSH provider hands the configuration no port of its own
    command = f"{sys.executable} {script} %h {port} {notes}"
    (tmp_path / ".ssh/config").write_text(f"Host *\n  ProxyCommand {command}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    return notes


def test_a_connection_through_a_proxy_command_serves_a_deferred_task_from_begin_to_end(
    run_dag: DagRunner, images: dict[str, str], proxied: Path
) -> None:
    with DAG("proxied", schedule=None) as dag:
        OciImportOperator(
            task_id="task",
            image=images["static"],
            name="proxied",
            kind="generic",
            if_present="reimport",
            poll_interval=1,
            deferrable=True,
        )
    run = run_dag(dag)
    assert run.states() == {"task": "success"}, run.log
    assert run.record()["name"] == "proxied"
    assert len(proxied.read_text().splitlines()) == 3  # of the task, of its trigger, of the task that publishes


def importer(images: dict[str, str], **options: Any) -> OciImportOperator:
    return OciImportOperator(
        task_id="task", image=images["static"], name="quick", kind="generic", if_present="reimport", **options
    )


def test_what_has_ended_already_is_not_waited_for_in_the_triggerer(box: Box, images: dict[str, str]) -> None:
    """Airflow takes a task that goes on at once after its deferral for dead, now and then."""
    submitting = task_context(run_id="ended")
    job = importer(images, wait_for_completion=False).execute(submitting)
    with pytest.raises(TaskDeferred):
        SlurmJobSensor(task_id="s", job={**job, "token": 32 * "0"}, deferrable=True).execute(task_context())
    record = Path(job["run_directory"], "completion.json")
    assert wait_until(record.exists, 60)
    sensor = SlurmJobSensor(task_id="s", job=job, deferrable=True)
    assert sensor.execute(task_context())["name"] == "quick"
    retry = task_context(run_id="ended", try_number=2, max_tries=1)
    assert importer(images, deferrable=True, retries=1).execute(retry)["job"]["job_id"] == job["job_id"]


@pytest.mark.parametrize("default", [True, False])
def test_airflows_default_decides_whether_a_task_defers(monkeypatch: pytest.MonkeyPatch, default: bool) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(default))
    image = "registry.example/team/app@sha256:" + 64 * "a"
    assert OciImportOperator(task_id="a", image=image, name="app").deferrable is default
    assert SlurmJobSensor(task_id="b", job=handle()).deferrable is default
    assert OciImportOperator(task_id="c", image=image, name="app", deferrable=not default).deferrable is not default
