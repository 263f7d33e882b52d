# SPDX-License-Identifier: Apache-2.0
"""Keep a list of tags fresh on the cluster, every night: resolve, import what moved, one table at the end.

The list is the Airflow Variable ``slurm_images_refresh``, or the JSON file named when the DAG is triggered:

    [{"image": "vllm/vllm-openai:v0.33.0", "name": "vllm", "kind": "serving"},
     {"image": "registry.example/team/tool:stable", "name": "tool", "registry_conn_id": "team_registry"}]

``image`` and ``name`` are required, and no ``name`` twice; ``kind`` (generic), ``arch`` (amd64) and
``registry_conn_id`` (none) are not. An image that did not move costs a few small requests and no job. One that
fails does not stop the others.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, Variable, get_current_context, task, task_group

from airflow_slurm_images.operators.images import OciImportOperator, OciResolveOperator

VARIABLE = "slurm_images_refresh"
DEFAULTS: dict[str, Any] = {"kind": "generic", "arch": "amd64", "registry_conn_id": None}

# Every import is a few SSH logins, whatever the number of images, and sshd refuses more than its MaxStartups (10)
# at once. Make a pool of what the login node takes, and name it here (a task of a pool that is not there never starts):
#     airflow pools set slurm_images 4 "Imports on the cluster" --include-deferred
# With --include-deferred an import keeps its slot while its job waits and runs; so the pool bounds the jobs, too.
POOL = "default_pool"

with DAG(
    "refresh_images",
    description="Import the images whose tags moved",
    schedule="0 2 * * *",
    catchup=False,
    max_active_runs=1,  # a night that takes longer than a day is not to be overtaken
    tags=["slurm", "images", "example"],
    doc_md=__doc__,
    params={
        "file": Param(
            None,
            type=["null", "string"],
            title="File",
            description=f"JSON file on the worker with the list; without it the Variable {VARIABLE} counts.",
        )
    },
) as dag:

    @task
    def read_list() -> list[dict[str, Any]]:
        """Read the list when the run starts; what is wrong with it is said here, before anything is asked."""
        file = get_current_context()["params"]["file"]
        entries = json.loads(Path(file).read_text() if file else Variable.get(VARIABLE, default="[]"))
        for entry in entries:
            missing, unknown = {"image", "name"} - set(entry), set(entry) - {"image", "name", *DEFAULTS}
            if missing or unknown:
                raise ValueError(f"{entry}: missing {sorted(missing)}, unknown {sorted(unknown)}")
        names = [entry["name"] for entry in entries]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"several entries for {twice}: a name is an alias, and an alias stands for one image")
        return [DEFAULTS | entry for entry in entries]

    # One chain for each image: within a mapped group an import waits for its own tag only.
    @task_group
    def refresh(image: str, name: str, kind: str, arch: str, registry_conn_id: str | None) -> None:
        """Resolve one tag and import what it stands for."""
        resolve = OciResolveOperator(
            task_id="resolve",
            image=image,
            arch=arch,
            registry_conn_id=registry_conn_id,
            map_index_template="{{ task.image }}",
            # Docker Hub counts manifests that are fetched without a login: 100 in six hours.
            max_active_tis_per_dag=4,
            retries=2,
            retry_delay=timedelta(minutes=10),
        )
        OciImportOperator(
            task_id="import",
            image=resolve.output,  # type: ignore[arg-type]  # a template field
            name=name,
            kind=kind,
            arch=arch,
            registry_conn_id=registry_conn_id,
            if_present="skip",  # the digest is in the store already: no job, only the alias is looked at
            map_index_template="{{ task.name }}",
            deferrable=True,  # waiting occupies no worker
            pool=POOL,
            # Imports at the same time, all runs of this DAG together: more than a few only wait for each other, as they
            # share the registry, the network and the store's file system. Airflow 3.1 does not count those that are
            # deferred, that is, wait for their job; there only the pool does.
            max_active_tis_per_dag=3,
            retries=2,
            retry_delay=timedelta(minutes=5),
            execution_timeout=timedelta(hours=12),
        )

    @task(trigger_rule="all_done")
    def summary(entries: list[dict[str, Any]]) -> dict[str, str]:
        """One table of all images; fails only if all of them did."""
        instance = get_current_context()["ti"]
        indexes = range(len(entries))
        pulled = [
            instance.xcom_pull(task_ids=f"refresh.{name}", key=key, map_indexes=list(indexes))
            for name, key in (("resolve", "resolved"), ("import", "return_value"), ("import", "failure"))
        ]
        rows = [_row(entries[index], *(column[index] for column in pulled)) for index in indexes]
        widths = [max(len(row[column]) for row in [_TITLES, *rows]) for column in range(len(_TITLES))]
        for row in [_TITLES, *rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        outcomes = {row[0]: row[1] for row in rows}
        if rows and all(outcome.startswith("failed") for outcome in outcomes.values()):
            raise RuntimeError("no image could be refreshed")
        return outcomes

    _TITLES = ("name", "outcome", "image", "digest", "SHA-256 of the file", "MiB")

    def _row(entry: dict[str, Any], resolved: Any, record: Any, failure: Any) -> tuple[str, ...]:
        digest = resolved["platform_digest"] if resolved else "-"
        if record:
            outcome = "present" if record["reused"] else "imported"  # present: in the store already, no job
            sqsh = record["sqsh"]
            return entry["name"], outcome, entry["image"], digest, sqsh["sha256"], f"{sqsh['size_bytes'] / 2**20:.0f}"
        known = (failure["reason"] or failure["error"]) if failure else ("import" if resolved else "resolve")
        return entry["name"], f"failed: {known}", entry["image"], digest, "-", "-"

    images = read_list()
    refresh.expand_kwargs(images) >> summary(images)  # type: ignore[arg-type]
