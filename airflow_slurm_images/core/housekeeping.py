# SPDX-License-Identifier: Apache-2.0
"""What ``prune.sh`` is asked for and what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_slurm_images.core.fields import whole_number
from airflow_slurm_images.core.remote import RemoteResult

DAY = 86400
LISTED = 500
"""Actions listed one by one in XCom; the counts are always of all."""


@dataclass(frozen=True)
class PruneRules:
    """What may go. An age is in days; None switches the rule off.

    ``keep_last`` counts the current version; a version stays if either ``keep_last`` or ``keep_days`` (since it was
    replaced) keeps it, and all stay if both are None. ``grace_days``: since nothing names a store file any more.
    """

    keep_last: int | None = None
    keep_days: float | None = None
    grace_days: float = 7
    trash_days: float = 1
    partial_days: float = 2
    run_days: float | None = 30
    cache_bytes: int | None = None

    def variables(self, *, dry_run: bool, budget_seconds: int) -> dict[str, str]:
        """Constants of ``prune.sh``."""
        return {
            "ASI_KEEP_LAST": "" if self.keep_last is None else str(self.keep_last),
            "ASI_KEEP_SECONDS": _seconds(self.keep_days),
            "ASI_GRACE_SECONDS": _seconds(self.grace_days),
            "ASI_TRASH_SECONDS": _seconds(self.trash_days),
            "ASI_PARTIAL_SECONDS": _seconds(self.partial_days),
            "ASI_RUN_SECONDS": _seconds(self.run_days),
            "ASI_CACHE_BYTES": "" if self.cache_bytes is None else str(self.cache_bytes),
            "ASI_BUDGET_SECONDS": str(budget_seconds),
            "ASI_DRY_RUN": "1" if dry_run else "0",
        }


def _seconds(days: float | None) -> str:
    return "" if days is None else str(int(days * DAY))


@dataclass(frozen=True)
class PruneAction:
    """One line of the report.

    ``what`` is version, image, run, partial, lock or layer; ``action`` is removed, trashed, restored, waiting (for its
    grace period) or kept (could not be removed; ``detail`` says why).
    """

    what: str
    action: str
    size_bytes: int
    path: str
    detail: str


@dataclass(frozen=True)
class PruneReport:
    """What one call did, or would do; ``complete`` False: the time was up and there is more."""

    actions: tuple[PruneAction, ...]
    complete: bool
    dry_run: bool

    @classmethod
    def read(cls, result: RemoteResult, *, dry_run: bool) -> PruneReport:
        """Read the answer of ``prune.sh``."""
        lines = (line.split("\t") for line in result.text("report").splitlines())
        actions = tuple(
            PruneAction(line[0], line[1], size, line[3], line[4])
            for line in lines
            if len(line) == 5 and (size := whole_number(line[2])) is not None
        )
        return cls(actions, result.text("complete") == "1", dry_run)

    @classmethod
    def merge(cls, reports: Iterable[PruneReport]) -> PruneReport:
        """One report of several calls; what a later call says about the same thing replaces the earlier line."""
        rounds = list(reports)
        actions: dict[tuple[str, str, bool], PruneAction] = {}
        for report in rounds:
            for action in report.actions:
                actions[action.what, action.path, action.action in {"waiting", "kept"}] = action
        return cls(tuple(actions.values()), rounds[-1].complete, rounds[-1].dry_run)

    @property
    def freed_bytes(self) -> int:
        """Bytes of what was removed for good; the trash still takes its space."""
        return sum(action.size_bytes for action in self.actions if action.action == "removed")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON for XCom: counts of everything, the first actions one by one."""
        counts = Counter(f"{action.what} {action.action}" for action in self.actions)
        return {
            "schema_version": 1,
            "dry_run": self.dry_run,
            "complete": self.complete,
            "freed_bytes": self.freed_bytes,
            "counts": dict(sorted(counts.items())),
            "actions": [
                {
                    "what": action.what,
                    "action": action.action,
                    "size_bytes": action.size_bytes,
                    "path": action.path,
                    "detail": action.detail,
                }
                for action in self.actions[:LISTED]
            ],
            "actions_left_out": max(0, len(self.actions) - LISTED),
        }
