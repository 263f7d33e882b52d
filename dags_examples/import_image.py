# SPDX-License-Identifier: Apache-2.0
"""Import one image, chosen in the trigger form, and hand what was found in it to the next task.

Needs a connection ``slurm_default`` of type "Slurm over SSH" with at least ``workspace_root`` (see
``docs/quickstart.md``). "Trigger" in the UI asks for image, name and kind.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_slurm_images.operators.images import OciImportOperator

with DAG(
    "import_image",
    description="Import an OCI image, pinned by digest, as an Enroot image of the Slurm cluster",
    schedule=None,
    catchup=False,
    tags=["slurm", "images", "example"],
    doc_md=__doc__,
    params={
        # No default: the form insists on a value. The patterns only help while typing; the operator checks the
        # rendered values itself, before it submits anything.
        "image": Param(
            type="string",
            title="Image",
            description="`[registry/]repository[:tag]@sha256:<64 hex digits>`. The digest decides what is imported; "
            "the tag is kept as information. `docker buildx imagetools inspect <image>` shows the digest.",
            pattern=r"^\S+@sha256:[0-9a-f]{64}$",
        ),
        "name": Param(
            type="string",
            title="Name",
            description="Alias to publish the image under: jobs start `<workspace>/aliases/<name>.sqsh`. An alias "
            "that exists moves to the new image in one step; running jobs keep the old file.",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        ),
        "kind": Param(
            "client",
            type="string",
            title="Kind",
            enum=["client", "serving", "generic"],
            values_display={
                "client": "client: Python, packages, installer",
                "serving": "serving: vLLM version and executable",
                "generic": "generic: whatever can be read without starting the image",
            },
            description="What to look for in the image.",
        ),
    },
) as dag:
    import_image = OciImportOperator(
        task_id="import_image",
        # All of these are templates; nothing is parsed before they are rendered.
        image="{{ params.image }}",
        name="{{ params.name }}",
        kind="{{ params.kind }}",
        # Settings of this task on top of those of the connection:
        # profile={"partition": "cpu", "memory": "32G", "time_limit": "04:00:00"},
        # A private registry's login comes from an Airflow connection:
        # registry_conn_id="my_registry",
        # The triggerer waits, so that hours in the queue occupy no worker. Without a triggerer: deferrable=False.
        deferrable=True,
        # A retry never imports twice: it finds the job of the earlier try by its name and goes on with that. What
        # a retry cannot help (wrong digest, refused login, broken image) fails at once all the same.
        retries=2,
        retry_delay=timedelta(minutes=5),
        # Longest wait in all, in the queue and running; then the job is cancelled.
        execution_timeout=timedelta(hours=12),
        # Starting many imports at once opens as many SSH connections for a moment, and sshd refuses more than its
        # MaxStartups (10) half-open ones. A pool keeps that small: airflow pools set slurm_login 4 "Slurm logins"
        # pool="slurm_login",
    )

    @task
    def report(record: Any) -> str:
        """Use the image record: it is plain JSON, so any later task or system can read it."""
        found, sqsh = record["inspection"]["inspection"], record["sqsh"]
        print(f"{record['source']['reference']} is {sqsh['alias_path']} ({sqsh['size_bytes'] / 2**20:.0f} MiB)")
        print(f"SHA-256 {sqsh['sha256']}, found inside: {found}")
        return f"srun --container-image={sqsh['alias_path']} ..."

    report(import_image.output)
