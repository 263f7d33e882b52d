# SPDX-License-Identifier: Apache-2.0
"""The DAGs that users copy: they load without a word, their forms ask the right things, and they run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from airflow.sdk import DAG

from tests.airflow.dag_runs import DagRunner, dag_bag
from tests.cluster.box import Box

EXAMPLES = Path(__file__).parents[2] / "dags_examples"


def load(name: str) -> DAG:
    bag = dag_bag(str(EXAMPLES / f"{name}.py"))
    assert bag.import_errors == {}
    dag: DAG
    (dag,) = bag.dags.values()
    for task in dag.tasks:
        if hasattr(task, "poll_interval"):
            task.poll_interval = 1  # a test has no time to be polite
    return dag


@pytest.mark.parametrize(("name", "asked"), [("import_image", ["image", "name", "kind"]), ("inspect_sqsh", ["path"])])
def test_the_form_explains_what_it_asks(name: str, asked: list[str]) -> None:
    params = load(name).params
    for key in params:
        param = params.get_param(key)
        assert param.schema["title"] and len(param.description or "") > 20
    assert list(params)[: len(asked)] == asked
    assert params.get_param("kind").schema["enum"] == ["client", "serving", "generic"]
    assert load(name).doc_md


@pytest.mark.parametrize(
    "change", [{"image": "repository:tag"}, {"name": "a/b"}, {"kind": "trainer"}], ids=lambda change: str(*change)
)
def test_the_form_of_the_import_refuses_what_cannot_work(change: dict[str, str]) -> None:
    dag = load("import_image")
    good = {"image": "r.example/a@sha256:" + 64 * "a", "name": "a", "kind": "client"}
    params = dag.params
    params.update(good)
    params.validate()
    with pytest.raises(Exception, match="Invalid input for param"):
        params.update(change)
        params.validate()


def test_import_image_runs(run_dag: DagRunner, box: Box, images: dict[str, str]) -> None:
    run = run_dag(load("import_image"), {"image": images["nopython"], "name": "example", "kind": "generic"})
    assert run.states() == {"import_image": "success", "report": "success"}
    record = run.record("import_image")
    alias = box.workspace / "aliases" / "example.sqsh"
    assert (record["name"], record["sqsh"]["alias_path"]) == ("example", str(alias))
    assert run.xcom("report") == f"srun --container-image={alias} ..."
    assert record["sqsh"]["sha256"] in run.log_of("report")


@pytest.mark.parametrize("name", [None, "looked-at"])
def test_inspect_sqsh_runs(run_dag: DagRunner, sqsh: Path, name: str | None) -> None:
    run = run_dag(load("inspect_sqsh"), {"path": str(sqsh), "name": name, "kind": "generic"})
    assert run.states() == {"inspect_sqsh": "success", "report": "success"}
    record = run.record("inspect_sqsh")
    assert (record["name"], record["sqsh"]["path"], record["source"]) == (name, str(sqsh), None)
    assert (record["sqsh"]["alias_path"] is None) is (name is None)


def test_housekeeping_runs(
    run_dag: DagRunner, box: Box, images: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = box.root / "tidy"  # one of its own: every image of it is hashed again
    workspace.mkdir()
    shutil.chown(workspace, box.user)
    connection = json.loads(box.connection_json)
    connection["extra"]["workspace_root"] = str(workspace)
    monkeypatch.setenv("AIRFLOW_CONN_SLURM_DEFAULT", json.dumps(connection))
    run_dag(load("import_image"), {"image": images["static"], "name": "tidy", "kind": "generic"})
    run = run_dag(load("housekeeping"), {"keep_last": 1})
    assert run.xcom("list_images") == ["tidy"]
    assert (run.record("prune")["dry_run"], run.record("prune")["complete"]) == (False, True)
    report = run.record("verify", 0)
    assert (report["name"], report["drift"], report["path"]) == (
        "tidy",
        False,
        str((workspace / "aliases" / "tidy.sqsh").resolve()),
    )
