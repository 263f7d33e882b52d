# SPDX-License-Identifier: Apache-2.0
"""Inspect a ``.sqsh`` that is already on the cluster, and check that it holds what a later job needs.

The file stays where it is and as it is. With a name in the trigger form an alias points at it afterwards; with
``copy_to_store=True`` it would be copied into the managed store instead.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_slurm_images.operators.images import SqshInspectOperator

with DAG(
    "inspect_sqsh",
    description="Look into an Enroot image that is already on the Slurm cluster",
    schedule=None,
    catchup=False,
    tags=["slurm", "images", "example"],
    doc_md=__doc__,
    params={
        "path": Param(
            type="string",
            title="File",
            description="Absolute path of the `.sqsh` file, as the compute nodes see it.",
            pattern=r"^/\S+$",
        ),
        "name": Param(
            None,
            type=["null", "string"],
            title="Name",
            description="Alias to publish the file under. Empty: only look, publish nothing.",
        ),
        "kind": Param(
            "client",
            type="string",
            title="Kind",
            enum=["client", "serving", "generic"],
            description="What to look for: `client` (Python, packages, installer), `serving` (vLLM) or `generic` "
            "(what can be read without starting the image).",
        ),
        "required": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Required distributions",
            description="One PEP 508 requirement a line, such as `torch>=2.4`. All that are missing are named at once.",
        ),
    },
) as dag:
    inspect_sqsh = SqshInspectOperator(
        task_id="inspect_sqsh",
        path="{{ params.path }}",
        # Jinja renders None as the text "None"; an empty text means no name.
        name="{{ params.name or '' }}",
        kind="{{ params.kind }}",
        required_distributions="{{ params.required | tojson }}",
        deferrable=True,
        retries=2,
        retry_delay=timedelta(minutes=5),
    )

    @task
    def report(record: Any) -> None:
        """Print the record: ``source`` is None, as nobody can tell from a file where it came from."""
        print(f"{record['sqsh']['path']}: SHA-256 {record['sqsh']['sha256']}")
        print(f"found inside: {record['inspection']['inspection']}")

    report(inspect_sqsh.output)
