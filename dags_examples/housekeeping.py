# SPDX-License-Identifier: Apache-2.0
"""Every night: tidy the workspace of the connection ``slurm_default``; every image is hashed again.

The trigger form offers a rehearsal (``dry_run``), which lists what would go and removes nothing; the images are
hashed all the same.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param, task

from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.operators.images import ImagePruneOperator, ImageVerifyOperator

with DAG(
    "slurm_images_housekeeping",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    tags=["slurm", "images", "example"],
    params={
        "dry_run": Param(False, type="boolean", title="Only tell", description="List what would go, remove nothing."),
        "keep_last": Param(3, type="integer", minimum=1, title="Versions of each alias to keep"),
    },
    doc_md=__doc__,
) as dag:
    prune = ImagePruneOperator(
        task_id="prune",
        keep_last="{{ params.keep_last }}",
        keep_days=30,
        grace_days=7,
        run_days=30,
        max_cache="200G",
        dry_run="{{ params.dry_run }}",
    )

    @task
    def list_images() -> list[str]:
        """Names of all published images."""
        hook = SlurmHook()
        try:
            return [image.name for image in hook.list_images()]
        finally:
            hook.close()

    verify = ImageVerifyOperator.partial(task_id="verify", max_active_tis_per_dagrun=2).expand(name=list_images())

    prune >> verify
