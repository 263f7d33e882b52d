# SPDX-License-Identifier: Apache-2.0
"""SqshInspectOperator through ``dag.test()``: with and without a name, copied into the store or left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_slurm_images.operators.images import SqshInspectOperator
from tests.airflow.dag_runs import DagRunner, Run
from tests.cluster.box import Box

NAMES = {"unnamed": None, "named": "mine", "copied": "ours"}


@pytest.fixture
def inspections(run_dag: DagRunner, box: Box, sqsh: Path, kept_runs: dict[str, Run]) -> Run:
    if "inspections" not in kept_runs:
        with DAG("inspections", schedule=None, params={"directory": str(box.workspace)}) as dag:
            for task_id, name in NAMES.items():
                SqshInspectOperator(
                    task_id=task_id,
                    path="{{ params.directory }}/" + sqsh.name,
                    name=name,
                    copy_to_store=task_id == "copied",
                    kind="{{ 'generic' }}",
                    poll_interval=1,
                )
        kept_runs["inspections"] = run_dag(dag)
    return kept_runs["inspections"]


@pytest.mark.parametrize("task_id", NAMES)
def test_a_file_has_no_source_and_is_bound_by_its_hash(inspections: Run, sqsh: Path, task_id: str) -> None:
    record = inspections.record(task_id)
    assert (record["operation"], record["source"], record["name"]) == ("inspect_sqsh", None, NAMES[task_id])
    assert record["inspection"]["inspection"] == {"kind": "generic"}
    assert record["inspection"]["sqsh_sha256"] == record["sqsh"]["sha256"]
    assert record["sqsh"]["size_bytes"] == sqsh.stat().st_size
    assert record["image"].get("os_id") == "test", record["image"]
    phases = inspections.phases_of(task_id)
    assert phases[:1] + phases[-1:] == ["verify", "done"] and len(set(phases)) == len(phases)
    assert "locate" in phases and "import" not in phases


def test_without_a_name_nothing_is_published(inspections: Run, sqsh: Path, box: Box) -> None:
    found = inspections.record("unnamed")["sqsh"]
    assert (found["path"], found["alias_path"], found["managed"]) == (str(sqsh), None, False)
    assert "Published" not in inspections.log_of("unnamed")
    assert not list((box.workspace / "aliases").glob("None*"))


def test_with_a_name_the_alias_points_at_the_file_where_it_is(inspections: Run, sqsh: Path, box: Box) -> None:
    found = inspections.record("named")["sqsh"]
    assert (found["path"], found["managed"]) == (str(sqsh), False)
    assert found["alias_path"] == str(box.workspace / "aliases" / "mine.sqsh")
    assert Path(found["alias_path"]).resolve() == sqsh
    published = json.loads((box.workspace / "aliases" / "mine.json").read_text())
    record = inspections.record("named")
    assert {key: published[key] for key in record} == record


def test_copied_it_is_a_file_of_the_store(inspections: Run, sqsh: Path, box: Box) -> None:
    found = inspections.record("copied")["sqsh"]
    assert (found["path"], found["managed"]) == (f"{box.workspace}/store/sha256/{found['sha256']}.sqsh", True)
    assert Path(found["path"]).read_bytes() == sqsh.read_bytes()
    assert Path(found["alias_path"]).resolve() == Path(found["path"])


def test_a_file_that_is_not_there_fails_with_its_remedy(run_dag: DagRunner, box: Box) -> None:
    with DAG("nowhere", schedule=None) as dag:
        SqshInspectOperator(task_id="task", path=f"{box.workspace}/nowhere.sqsh", kind="generic", poll_interval=1)
    run = run_dag(dag)
    failure = run.failure()
    assert (failure["phase"], failure["reason"]) == ("locate", "source_not_visible")
    assert "file system that the compute nodes mount" in failure["remedy"]
    assert run.states() == {"task": "failed"}


def test_template_fields_are_those_of_the_contract() -> None:
    assert set(SqshInspectOperator.template_fields) == {
        *("path", "name", "kind", "profile", "required_distributions"),
        *("slurm_conn_id", "registry_conn_id", "arch"),
    }
