# SPDX-License-Identifier: Apache-2.0
"""Assets of published images: ``sqsh://<cluster>/<alias>``, so that DAGs can be scheduled on an image.

Cluster and alias are known only when the task has run (the alias is templated, the cluster is what the job saw), so
events go through an ``AssetAlias`` of the task; a DAG with ``schedule=[image_asset("lab", "vllm")]`` runs on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from airflow.providers.common.compat.sdk import Asset, AssetAlias

from airflow_slurm_images.core.fields import ALIAS
from airflow_slurm_images.core.records import ClientInspection, ImageRecord, ServingInspection

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset as OpenLineageDataset
    from airflow.providers.common.compat.sdk import BaseOperator

SCHEME = "sqsh"
NO_CLUSTER = "default"
"""Stands for the cluster where Slurm has no cluster name."""


def image_uri(cluster: str, name: str) -> str:
    """URI of the alias ``name`` on ``cluster``; Slurm's cluster names know no case."""
    return f"{SCHEME}://{(cluster or NO_CLUSTER).lower()}/{name}"


def image_asset(cluster: str, name: str, *, extra: dict[str, Any] | None = None) -> Asset:
    """The asset of an alias, for a DAG's ``schedule`` or a task's ``inlets``; raises ValueError for bad names."""
    uri = image_uri(cluster, name)
    sanitize_uri(urlsplit(uri))
    return Asset(uri=uri, extra=extra or {})


def create_asset(*, cluster: str, name: str, extra: dict[str, Any] | None = None) -> Asset:
    """Asset factory of the scheme, as Airflow's provider metadata names it."""
    return image_asset(cluster, name, extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """URI handler of the scheme: exactly ``sqsh://<cluster>/<alias>``, the cluster in lower case."""
    name = uri.path.removeprefix("/")
    if uri.query or not ALIAS.fullmatch(uri.netloc) or not ALIAS.fullmatch(name):
        raise ValueError("URI format sqsh:// must be sqsh://<cluster>/<alias>, for example sqsh://lab/vllm")
    return uri._replace(netloc=uri.netloc.lower(), path=f"/{name}")


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> OpenLineageDataset:  # noqa: ARG001
    """OpenLineage dataset of an image asset: the cluster is the namespace."""
    from airflow.providers.common.compat.openlineage.facet import Dataset as OpenLineageDataset

    uri = urlsplit(asset.uri)
    return OpenLineageDataset(namespace=f"{SCHEME}://{uri.netloc}", name=uri.path.removeprefix("/"))


def task_outlet(task: BaseOperator) -> AssetAlias:
    """The alias through which a task emits the images it published; Airflow's names of aliases are global.

    Only of a task that was given to its DAG after it was made is the DAG not known: its alias is named after the task
    alone.
    """
    known = task.has_dag()  # type: ignore[no-untyped-call]
    return AssetAlias(name=f"slurm-images:{task.dag_id}.{task.task_id}" if known else f"slurm-images:{task.task_id}")


def event_extra(record: ImageRecord) -> dict[str, Any]:
    """What a consumer of the event needs to pick or pin the image: identities, kind, versions."""
    return {
        "oci_digest": record.source.oci_digest if record.source else None,
        "sha256": record.sqsh.sha256,
        "size_bytes": record.sqsh.size_bytes,
        "path": record.sqsh.path,
        "alias_path": record.sqsh.alias_path,
        "kind": record.inspection.inspection.kind,
        "versions": _versions(record),
        "reused": record.reused,
    }


def _versions(record: ImageRecord) -> dict[str, str]:
    inspection = record.inspection.inspection
    if isinstance(inspection, ClientInspection):
        return {"python": inspection.python_version, "installer": inspection.installer_version}
    if isinstance(inspection, ServingInspection):
        return {inspection.server_type: inspection.runtime_version}
    return {}


def emit(context: Any, outlet: AssetAlias, record: ImageRecord, *, moved: bool, unchanged: bool = False) -> bool:
    """Emit the event of a publication; one that did not move the alias only with ``unchanged``. Was one emitted?"""
    if record.name is None or not (moved or unchanged):
        return False
    asset = image_asset(record.cluster, record.name)
    context["outlet_events"][outlet].add(asset, extra=event_extra(record))
    return True
