# SPDX-License-Identifier: Apache-2.0
"""Keeping a workspace tidy. Public import: ``operators.images``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_slurm_images.core.author_input import flag
from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.housekeeping import DAY, PruneReport, PruneRules
from airflow_slurm_images.core.profile import parse_size
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.task_context import mapping, reported

SHOWN = 50
"""Actions written to the task log one by one."""


class ImagePruneOperator(BaseOperator):
    """Remove what nobody needs any more from a workspace; runs no job.

    Drops versions of aliases beyond ``keep_last`` and ``keep_days``, store files that no alias names and that have
    been unnamed longer than ``grace_days``, this account's old run directories without a job, stale partial files,
    dead locks, and layers beyond ``max_cache``. Files of ``managed: false`` aliases are never touched.

    Returns what it did (:class:`~airflow_slurm_images.core.housekeeping.PruneReport` as JSON). In a workspace shared
    by a group only a file's owner can remove it: what this account may not remove is listed as ``kept``.

    :param keep_last: versions of each alias to keep, the current one included. Templated, as are all rules.
    :param keep_days: keep versions that were replaced less than so many days ago. A version stays if either rule
        keeps it; with neither rule all stay.
    :param grace_days: how long a store file stays after nothing names it; jobs may still be reading it. 0 or more.
    :param trash_days: how long it lies in the trash after that, to be taken back by a publication; more than 0.
    :param run_days: remove run directories that nothing was written to for so many days; None keeps them.
    :param max_cache: bound of this account's layer cache, such as ``"200G"``; None leaves it alone.
    :param dry_run: only tell.
    :param slurm_conn_id: connection to the login node.
    :param profile: profile fields that override the connection's.
    """

    template_fields: Sequence[str] = (
        "keep_last",
        "keep_days",
        "grace_days",
        "trash_days",
        "run_days",
        "max_cache",
        "rehearse",
        "slurm_conn_id",
        "profile",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"profile": "json"}

    def __init__(
        self,
        *,
        keep_last: int | str | None = None,
        keep_days: float | str | None = None,
        grace_days: float | str = 7,
        trash_days: float | str = 1,
        run_days: float | str | None = 30,
        max_cache: str | None = None,
        dry_run: bool | str = False,
        slurm_conn_id: str = SlurmHook.default_conn_name,
        profile: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keep_last = keep_last
        self.keep_days = keep_days
        self.grace_days = grace_days
        self.trash_days = trash_days
        self.run_days = run_days
        self.max_cache = max_cache
        self.rehearse = dry_run  # BaseOperator has a method named dry_run
        self.slurm_conn_id = slurm_conn_id
        self.profile = profile

    def rules(self) -> PruneRules:
        """The rules from the rendered fields; raises InvalidRequestError."""
        keep_last = _number("keep_last", self.keep_last)
        if keep_last is not None and (keep_last < 1 or keep_last != int(keep_last)):
            raise _invalid("keep_last", self.keep_last, "a whole number of at least 1: the current version counts")
        return PruneRules(
            keep_last=None if keep_last is None else int(keep_last),
            keep_days=_number("keep_days", self.keep_days),
            grace_days=_required("grace_days", self.grace_days),
            trash_days=_trash_days(self.trash_days),
            run_days=_number("run_days", self.run_days),
            cache_bytes=_size("max_cache", self.max_cache),
        )

    def execute(self, context: Any) -> dict[str, Any]:
        """Prune, log the actions, return the report."""
        with reported(context):
            rules = self.rules()
            rehearsal = flag("dry_run", self.rehearse)
            hook = SlurmHook(self.slurm_conn_id, mapping("profile", self.profile))
            try:
                report = hook.prune(rules, dry_run=rehearsal)
            finally:
                hook.close()
            self._tell(report)
            return report.to_dict()

    def _tell(self, report: PruneReport) -> None:
        would = "would be " if report.dry_run else ""
        for action in report.actions[:SHOWN]:
            self.log.info("%s %s%s: %s (%s)", action.what, would, action.action, action.path, action.detail)
        if len(report.actions) > SHOWN:
            self.log.info("... and %d more", len(report.actions) - SHOWN)
        self.log.info("%d bytes %sfreed", report.freed_bytes, would)
        if not report.complete:
            self.log.warning("There is more to do than fitted into this run; the next one goes on")


def _invalid(field: str, value: Any, rule: str) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid request: {field} must be {rule}, got {value!r}", remedy=f"Correct {field}.")


def _number(field: str, value: Any) -> float | None:
    """A number of at least 0 that an author or a template gave; None, "" and "None" are "no rule"."""
    if value is None or str(value).strip() in {"", "None"}:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 10**9:
        raise _invalid(field, value, "a number of at least 0")
    return number


def _required(field: str, value: Any) -> float:
    """As :func:`_number`, where nothing given must not become "at once"."""
    number = _number(field, value)
    if number is None:
        raise _invalid(field, value, "a number of at least 0; it cannot be left out")
    return number


def _trash_days(value: Any) -> float:
    days = _required("trash_days", value)
    if days * DAY < 1:
        raise _invalid("trash_days", value, "more than 0: a publication must have time to take a file back")
    return days


def _size(field: str, value: Any) -> int | None:
    if value is None or str(value).strip() in {"", "None"}:
        return None
    try:
        return parse_size(str(value))
    except ValueError as err:
        raise _invalid(field, value, "a size such as '200G'") from err
