# SPDX-License-Identifier: Apache-2.0
"""Operators: import a pinned OCI image, inspect a ``.sqsh`` that is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from airflow_slurm_images.core.requests import ImportRequest, InspectRequest, build_import, build_inspect
from airflow_slurm_images.hooks.registry import OciRegistryHook
from airflow_slurm_images.hooks.registry_login import import_login
from airflow_slurm_images.operators.base import ImageJobOperator
from airflow_slurm_images.operators.housekeeping import ImagePruneOperator
from airflow_slurm_images.operators.resolve import OciResolveOperator
from airflow_slurm_images.operators.verify import ImageVerifyOperator
from airflow_slurm_images.task_context import listing

__all__ = [
    "ImagePruneOperator",
    "ImageVerifyOperator",
    "OciImportOperator",
    "OciResolveOperator",
    "SqshInspectOperator",
]


class OciImportOperator(ImageJobOperator):
    """Import an OCI image pinned by digest into the cluster's store, inspect it, publish it under an alias.

    Returns the image record (plain JSON, ``schema_version`` 1) or, with ``wait_for_completion=False``, a job handle
    for :class:`~airflow_slurm_images.sensors.images.SlurmJobSensor`. On failure pushes the XCom ``failure``.

    :param image: ``[registry/]repository[:tag]@sha256:<64 hex>``; the tag is information only. Templated.
    :param name: alias to publish under. Templated.
    :param kind: ``client`` (Python, packages, installer), ``serving`` (vLLM) or ``generic``. Templated.
    :param slurm_conn_id: connection to the login node. Templated.
    :param profile: profile fields that override the connection's. Templated.
    :param registry_conn_id: connection to the registry (``oci_registry`` or ``docker``): its login goes into a file
        of this job alone, removed after the import; without it the cluster user's Enroot credentials count. Templated.
    :param arch: architecture as ``uname -m`` names it (or amd64, arm64); default: the compute node's. Templated.
    :param required_distributions: PEP 508 requirements (no extras, no URLs) the image must meet, as a list or one a
        line; not with kind ``generic``. Templated.
    :param if_present: what to do when the store holds this image already: ``skip`` runs no job, ``verify`` hashes and
        inspects the file again, ``reimport`` imports anew.
    :param on_conflict: ``replace`` moves an alias that means another image, ``fail`` refuses.
    :param wait_for_completion: False: only submit.
    :param deferrable: wait in the triggerer; default: Airflow's ``[operators] default_deferrable``.
    :param poll_interval: seconds between looks at the job.
    :param pending_timeout: seconds (or timedelta) the job may wait in the queue; then it is cancelled.
    :param run_timeout: seconds (or timedelta) the job may run; then it is cancelled.
    :param cancel_on_kill: cancel the job when the task is killed; False: the next try adopts it.
    :param emit_unchanged: emit the asset event also when the alias did not move.

    Raises InvalidRequestError before anything is submitted; see ``docs/operators.md`` for all errors.
    """

    template_fields: Sequence[str] = ("image", *ImageJobOperator.template_fields)

    def __init__(self, *, image: str, name: str, kind: str = "client", **kwargs: Any) -> None:
        super().__init__(name=name, kind=kind, **kwargs)
        self.image = image

    def build_request(self) -> ImportRequest:
        """The request from the rendered fields; whether the registry speaks plain HTTP, its connection says."""
        endpoint = OciRegistryHook(self.registry_conn_id).endpoint if self.registry_conn_id else None
        return build_import(
            image=self.image,
            name=self.name,
            kind=self.kind,
            arch=self.arch,
            required_distributions=listing(self.required_distributions),
            insecure=endpoint is not None and endpoint.insecure,
        )

    def build_credentials(self) -> Callable[[], bytes] | None:
        """The login of the registry connection, if one is named."""
        if not self.registry_conn_id:
            return None
        return partial(import_login, OciRegistryHook(self.registry_conn_id), self.image)


class SqshInspectOperator(ImageJobOperator):
    """Inspect a ``.sqsh`` that is on the cluster; with ``name`` an alias points at it afterwards.

    :param path: absolute path of the file as the compute nodes see it. Templated.
    :param name: alias to publish under; None publishes nothing. Templated.
    :param copy_to_store: copy the file into the store (and hash it in the same pass) instead of leaving it where
        it is, which needs ``name``; otherwise the alias points at ``path`` and the file is never touched
        (``managed: false``).
    :param kind: required; as for :class:`OciImportOperator`, like all other parameters. ``arch``,
        ``registry_conn_id`` and ``if_present`` have no effect here. Templated.
    """

    template_fields: Sequence[str] = ("path", *ImageJobOperator.template_fields)

    def __init__(
        self, *, path: str, kind: str, name: str | None = None, copy_to_store: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(name=name, kind=kind, **kwargs)
        self.path = path
        self.copy_to_store = copy_to_store

    def build_request(self) -> InspectRequest:
        """The request from the rendered fields."""
        return build_inspect(
            path=self.path,
            name=self.name,
            kind=self.kind,
            copy_to_store=self.copy_to_store,
            required_distributions=listing(self.required_distributions),
        )
