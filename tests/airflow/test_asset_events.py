# SPDX-License-Identifier: Apache-2.0
"""Assets of published images as Airflow sees them: the events of whole runs, and the handler of the URIs."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, Asset

from airflow_slurm_images.operators.images import OciImportOperator
from tests.airflow.dag_runs import DagRunner, Run
from tests.cluster.box import Box


def events(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """URI and ``extra`` of each event of a run."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = select(AssetModel.uri, AssetEvent.extra).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
    query = query.where(AssetEvent.source_dag_id == run.dag_id, AssetEvent.source_run_id == run.run_id)
    with create_session() as session:
        return [(uri, dict(extra)) for uri, extra in session.execute(query).all()]


def importing(run_dag: DagRunner, dag_id: str, image: str, name: str, **options: Any) -> Run:
    with DAG(dag_id, schedule=None) as dag:
        OciImportOperator(task_id="task", image=image, name=name, kind="generic", poll_interval=1, **options)
    run = run_dag(dag)
    assert run.states() == {"task": "success"}, run.log
    return run


def test_an_event_for_each_move_of_the_alias_and_none_for_what_did_not_change(
    run_dag: DagRunner, box: Box, images: dict[str, str]
) -> None:
    first = importing(run_dag, "asset_first", images["static"], "observed")
    ((uri, extra),) = events(first)
    record = first.record()
    assert uri == f"sqsh://{box.cluster_name}/observed"
    assert extra["oci_digest"] == images["static"].rpartition("@")[2]
    assert (extra["sha256"], extra["kind"], extra["versions"]) == (record["sqsh"]["sha256"], "generic", {})

    jobs = len(box.squeue())
    unchanged = importing(run_dag, "asset_unchanged", images["static"], "observed")
    assert (unchanged.record()["reused"], events(unchanged)) == (True, [])
    told = importing(run_dag, "asset_told", images["static"], "observed", emit_unchanged=True)
    assert [extra["reused"] for _, extra in events(told)] == [True]
    moved = importing(run_dag, "asset_moved", images["static"], "observed-too")
    assert [(uri.rpartition("/")[2], extra["reused"]) for uri, extra in events(moved)] == [("observed-too", True)]
    assert len(box.squeue()) == jobs


def test_airflow_knows_the_scheme() -> None:
    assert Asset("sqsh://LAB/vllm").uri == "sqsh://lab/vllm"
    with pytest.raises(ValueError, match="sqsh://<cluster>/<alias>"):
        Asset("sqsh://lab/a/b")
