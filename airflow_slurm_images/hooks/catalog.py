# SPDX-License-Identifier: Apache-2.0
"""The catalog's part of SlurmHook: list images, their history, and housekeeping. Runs no job."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_slurm_images.core import catalog
from airflow_slurm_images.core.catalog import AliasVersion
from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.housekeeping import PruneReport, PruneRules
from airflow_slurm_images.core.remote import RemoteResult

PRUNE_SECONDS = 60
"""Time one prune command takes for itself; the rest waits for the next command."""
PRUNE_TIMEOUT = 240.0
PRUNE_ROUNDS = 20

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class CatalogVerbs:
    """Mixed into SlurmHook, which brings :meth:`run`."""

    def run(
        self,
        verb: str,
        variables: Mapping[str, str] | None = None,
        payload: bytes = b"",
        *,
        cluster: str | None = None,
        timeout: float = 100.0,
    ) -> RemoteResult:
        """Run one verb; SlurmHook's own."""
        raise NotImplementedError

    def list_images(self, *, history: bool = False) -> list[AliasVersion]:
        """What every alias means now, by name; with ``history`` also what it meant before, newest first."""
        result = self.run("catalog", {"ASI_NAME": "", "ASI_HISTORY": "1" if history else "0"})
        return list(catalog.read(result).versions)

    def get_image(self, name: str) -> AliasVersion:
        """What the alias ``name`` means now; raises InvalidRequestError when there is no such alias."""
        return self.image_history(name, limit=1)[0]

    def image_history(self, name: str, *, limit: int | None = None) -> list[AliasVersion]:
        """Meanings of ``name``, the current one first; raises InvalidRequestError when there is no such alias."""
        if not _ALIAS.fullmatch(name):
            raise InvalidRequestError(f"{name!r} is not the name of an alias", remedy="Letters, digits, . _ - only.")
        result = self.run("catalog", {"ASI_NAME": name, "ASI_HISTORY": "0" if limit == 1 else "1"})
        versions = catalog.read(result).versions
        if not versions:
            raise InvalidRequestError(
                f"There is no alias {name!r} in {result.text('workspace')}",
                remedy="List the aliases with SlurmHook.list_images(), or publish one first.",
            )
        return list(versions[:limit])

    def prune(self, rules: PruneRules, *, dry_run: bool = False) -> PruneReport:
        """Housekeeping by ``rules``, in commands of about a minute each until nothing is left to do."""
        reports = []
        for _ in range(1 if dry_run else PRUNE_ROUNDS):
            variables = rules.variables(dry_run=dry_run, budget_seconds=PRUNE_SECONDS)
            result = self.run("prune", variables, timeout=PRUNE_TIMEOUT)
            reports.append(PruneReport.read(result, dry_run=dry_run))
            if reports[-1].complete:
                break
        return PruneReport.merge(reports)
