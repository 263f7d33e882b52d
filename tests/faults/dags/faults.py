# SPDX-License-Identifier: Apache-2.0
"""The DAGs of the full-stack fault tests; image, name and profile come with the run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_slurm_images.operators.images import OciImportOperator
from airflow_slurm_images.sensors.images import SlurmJobSensor

DEFAULTS: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=1)}
CONF = "dag_run.conf"


def importer(task_id: str = "task", **options: Any) -> OciImportOperator:
    """An import whose every changing part comes from the run's conf."""
    return OciImportOperator(
        task_id=task_id,
        image=f"{{{{ {CONF}['image'] }}}}",
        name=f"{{{{ {CONF}['name'] }}}}",
        profile=f"{{{{ {CONF}['profile'] | tojson }}}}",
        kind="generic",
        if_present="reimport",
        poll_interval=1,
        **options,
    )


with DAG("blocking", schedule=None, default_args=DEFAULTS):
    importer()
with DAG("deferred", schedule=None, default_args=DEFAULTS):
    importer(deferrable=True)
with DAG("blocking_kept", schedule=None, default_args=DEFAULTS):
    importer(cancel_on_kill=False)
with DAG("deferred_kept", schedule=None, default_args=DEFAULTS):
    importer(deferrable=True, cancel_on_kill=False)
with DAG("deferred_timeout", schedule=None, default_args=DEFAULTS):
    importer(deferrable=True, execution_timeout=timedelta(seconds=8))
with DAG("sensor", schedule=None, default_args=DEFAULTS):
    submitted = importer("submit", wait_for_completion=False)
    SlurmJobSensor(task_id="task", job=submitted.output, deferrable=True, poke_interval=1)
