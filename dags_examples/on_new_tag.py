# SPDX-License-Identifier: Apache-2.0
"""Import an image as soon as its tag moves: a watcher in the triggerer looks at the tag and starts this DAG.

The tag, its registry's connection and the alias are the constants below; copy the file for each tag to watch, or
make several assets in a loop. Watchers of one registry share its connections, and a look is one small request that
registries do not count as a pull.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_slurm_images.operators.images import OciImportOperator, OciResolveOperator
from airflow_slurm_images.triggers.registry import OciTagTrigger

IMAGE = "vllm/vllm-openai:latest"
REGISTRY_CONN_ID: str | None = None  # of a connection "OCI registry", for a private one or for higher limits
NAME = "vllm"
ARCH = "amd64"

tag = Asset(
    name=f"oci-tag-{NAME}",
    watchers=[
        AssetWatcher(
            name=f"tag-{NAME}",
            # It runs as long as the DAG is not paused. The first look only takes note of what the tag is.
            trigger=OciTagTrigger(image=IMAGE, registry_conn_id=REGISTRY_CONN_ID, arch=ARCH, poll_interval=300),
        )
    ],
)

with DAG(
    "on_new_tag",
    description="Import an image when its tag moves",
    schedule=[tag],
    catchup=False,
    max_active_runs=1,
    tags=["slurm", "images", "example"],
    doc_md=__doc__,
) as dag:

    @task
    def what_moved(*, triggering_asset_events: Any = None) -> str:
        """The newest event's image; moves that happened while a run was busy come together. By hand: the tag."""
        events = [event for group in (triggering_asset_events or {}).values() for event in group]
        reference = IMAGE
        for event in sorted(events, key=lambda event: event.timestamp):  # they come in no particular order
            payload = event.extra.get("payload")  # an event made by hand, in the UI, has none
            if payload:
                print(f"{payload['image']} moved: old {payload['old']}, new {payload['new']}")
            reference = payload["reference"] if payload else IMAGE
        return str(reference)

    resolve = OciResolveOperator(
        task_id="resolve",
        image=what_moved(),  # type: ignore[arg-type]  # a template field
        registry_conn_id=REGISTRY_CONN_ID,
        arch=ARCH,
        retries=2,
        retry_delay=timedelta(minutes=5),
    )

    OciImportOperator(
        task_id="import",
        image=resolve.output,  # type: ignore[arg-type]  # a template field
        name=NAME,
        kind="serving",
        arch=ARCH,
        registry_conn_id=REGISTRY_CONN_ID,
        deferrable=True,
        # An event that comes twice is harmless: what is in the store already costs no job.
        if_present="skip",
        retries=2,
        retry_delay=timedelta(minutes=5),
        execution_timeout=timedelta(hours=12),
    )
