# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from airflow.sdk import DAG

from airflow_slurm_images.operators.images import OciImportOperator
from tests.airflow.dag_runs import DagRunner


def test_x(run_dag: DagRunner, images: dict[str, str]) -> None:
    with DAG("x", schedule=None) as dag:
        OciImportOperator(task_id="task", image=images["client"], name="client", poll_interval=1)
    run = run_dag(dag)
    print(run.log)
    print(run.record(), run.states())
