# SPDX-License-Identifier: Apache-2.0
"""OciResolveOperator: from a tag to the digest of one platform. Public import: ``operators.images``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_slurm_images.core.errors import SlurmImagesError
from airflow_slurm_images.core.oci import ResolvedImage
from airflow_slurm_images.hooks.registry import OciRegistryHook

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class OciResolveOperator(BaseOperator):
    """Resolve ``repository:tag`` to ``registry/repository:tag@sha256:...``, ready for OciImportOperator.

    :param image: ``[registry/]repository:tag``; a digest in it is checked and reduced to the platform.
    :param registry_conn_id: connection of the registry (``oci_registry`` or ``docker``); none: anonymous.
    :param arch: architecture of the nodes that will run the image, ``amd64`` or ``x86_64`` style.
    :param os: operating system in the index.
    :param variant: CPU variant such as ``v7``; none: the usual one of the architecture.

    Returns the reference with the digest of the *platform's* manifest. All that was found stands under the
    XCom key ``resolved`` (see ``ResolvedImage``), the index digest included. Use
    ``.partial(...).expand(image=[...])`` for a list of tags. The log shows old and new digest when a tag
    moved since the previous run.
    """

    template_fields: Sequence[str] = ("image", "registry_conn_id", "arch", "os", "variant")
    ui_color = "#e8f0fa"

    def __init__(
        self,
        *,
        image: str,
        registry_conn_id: str | None = None,
        arch: str = "amd64",
        os: str = "linux",
        variant: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.image = image
        self.registry_conn_id = registry_conn_id
        self.arch = arch
        self.os = os
        self.variant = variant

    def execute(self, context: Context) -> str:
        """Ask the registry. Fails without retries where asking again cannot help."""
        try:
            with OciRegistryHook(self.registry_conn_id or None) as hook:
                resolved = hook.resolve(self.image, arch=self.arch, os=self.os, variant=self.variant or None)
        except SlurmImagesError as err:
            if err.retryable:
                raise
            raise AirflowFailException(str(err)) from err
        self._tell(resolved, self._previous(context))
        context["ti"].xcom_push(key="resolved", value=resolved.to_json())
        return resolved.reference

    def _tell(self, resolved: ResolvedImage, previous: str | None) -> None:
        name, _, digest = resolved.reference.partition("@")
        before, _, old = (previous or "").partition("@")
        if before != name or not old:
            self.log.info("%s is %s for %s", name, digest, resolved.platform)
        elif old == digest:
            self.log.info("%s is still %s for %s", name, digest, resolved.platform)
        else:
            self.log.info("%s moved for %s: old %s, new %s", name, resolved.platform, old, digest)

    def _previous(self, context: Context) -> str | None:
        """What the same task (and map index) returned in an earlier run; a look back never fails the task."""
        task_instance = context["ti"]
        try:
            value = task_instance.xcom_pull(
                task_ids=self.task_id,
                include_prior_dates=True,
                map_indexes=getattr(task_instance, "map_index", -1),
            )
        except Exception as err:
            self.log.warning("cannot look up the previous digest: %s", err)
            return None
        return value if isinstance(value, str) else None
