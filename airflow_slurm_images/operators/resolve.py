# SPDX-License-Identifier: Apache-2.0
"""OciResolveOperator: from a tag to the digest of one platform. Public import: ``operators.images``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        self._tell(resolved, context)
        context["ti"].xcom_push(key="resolved", value=resolved.to_json())
        return resolved.reference

    def _tell(self, resolved: ResolvedImage, context: Context) -> None:
        name, _, digest = resolved.reference.partition("@")
        old = self._previous(name, context)
        if old is None:
            self.log.info("%s is %s for %s", name, digest, resolved.platform)
        elif old == digest:
            self.log.info("%s is still %s for %s", name, digest, resolved.platform)
        else:
            self.log.info("%s moved for %s: old %s, new %s", name, resolved.platform, old, digest)

    def _previous(self, name: str, context: Context) -> str | None:
        """The digest that this task found for ``name`` in an earlier run; a look back never fails the task.

        Of a mapped task the same index is asked first; where the list changed since, all of the run before.
        """
        task_instance = context["ti"]
        index = getattr(task_instance, "map_index", -1)
        try:
            value = task_instance.xcom_pull(task_ids=self.task_id, include_prior_dates=True, map_indexes=index)
            old = _digest_of(name, [value])
            if old is None and index >= 0 and (run := task_instance.get_previous_dagrun()) is not None:
                old = _digest_of(name, task_instance.xcom_pull(task_ids=[self.task_id], run_id=run.run_id))
        except Exception as err:
            self.log.warning("cannot look up the previous digest: %s", err)
            return None
        return old


def _digest_of(name: str, references: Iterable[Any]) -> str | None:
    found = (text.partition("@") for text in references if isinstance(text, str))
    return next((digest for of, _, digest in found if of == name and digest), None)
