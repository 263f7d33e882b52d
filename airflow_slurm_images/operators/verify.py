# SPDX-License-Identifier: Apache-2.0
"""Keeping the image catalog honest. Public import: ``operators.images``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from airflow_slurm_images.core.catalog import AliasVersion
from airflow_slurm_images.core.errors import IntegrityError, SlurmImagesError
from airflow_slurm_images.core.logtext import clean
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.requests import InspectRequest, build_inspect
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.lifecycle import Finished
from airflow_slurm_images.operators.base import ImageJobOperator

_BROKEN = "broken_squashfs"
_NO_FILE = ("source_not_visible", "source_refused")
_GONE = "the file is not there"
_SAID = re.compile(r"^asi: error: (.+)$", re.MULTILINE)


class ImageVerifyOperator(ImageJobOperator):
    """Hash the file of an alias again, in a job, and compare it with what was recorded.

    The login node only looks the alias up; the hash is computed on a compute node like that of any inspection. Use
    ``.partial(...).expand(name=[...])`` for a whole catalog. Returns ``name, number, path, recorded_sha256, sha256,
    drift, notes``; a file whose bytes changed, or that is gone from the store (``sha256`` is null where there is
    nothing to hash), fails the task with IntegrityError, or only says ``drift: true`` with ``fail_on_drift=False``.
    Further parameters: ``slurm_conn_id``, ``profile`` and those of OciImportOperator about waiting; it always waits.

    :param name: alias to verify. Templated.
    :param fail_on_drift: fail the task when the bytes are not the recorded ones.
    """

    def __init__(self, *, name: str, fail_on_drift: bool = True, **kwargs: Any) -> None:
        super().__init__(name=name, kind="generic", **{**kwargs, "wait_for_completion": True})
        self.fail_on_drift = fail_on_drift

    def build_request(self) -> InspectRequest:
        """Inspect, without an alias, the file that the alias names now."""
        hook = self._hook()
        try:
            path = hook.get_image(str(self.name)).path
        finally:
            hook.close()
        return build_inspect(path=path, name=None, kind="generic")

    def _ended(self, context: Any, finish: Callable[[], Finished]) -> dict[str, Any]:  # noqa: ARG002 - as the base has it
        """Compare what the job found with what was recorded."""
        hook = self._hook()
        sha256: str | None
        try:
            try:
                file = finish().record.sqsh
                path, sha256, damage = file.path, file.sha256, ""
            except SlurmImagesError as err:
                sha256 = None
                path, damage = _damage(hook, str(self.name), err)
                if not damage:
                    raise
            versions = hook.image_history(str(self.name))
        finally:
            hook.close()
        return self._tell(compare(versions, path, sha256, damage))

    def _tell(self, report: dict[str, Any]) -> dict[str, Any]:
        for note in report["notes"]:
            self.log.warning("%s", note)
        if report["drift"] and self.fail_on_drift:
            has = (
                f"has SHA-256 {report['sha256']}" if report["sha256"] else f"is damaged ({'; '.join(report['notes'])})"
            )
            raise IntegrityError(
                f"{report['path']} {has}, recorded was {report['recorded_sha256']}",
                remedy=f"Find out who wrote to it. What stands at {report['path']} is never overwritten: move it away "
                "by hand, then import (or copy) the image again.",
                details=report,
            )
        known = report["sha256"] and report["recorded_sha256"]
        words = "DRIFT" if report["drift"] else "as recorded" if known else "nothing to compare"
        self.log.info("%s: %s", report["path"], words)
        return report


def compare(versions: Sequence[AliasVersion], path: str, sha256: str | None, damage: str = "") -> dict[str, Any]:
    """What a fresh SHA-256 of ``path`` says about the version of the alias that names it; the newest one counts.

    ``damage`` tells why there is no SHA-256.
    """
    version = next((version for version in versions if version.path == path), None)
    recorded = version.record.sqsh.sha256 if version and version.record else None
    notes = [damage] if damage else []
    if version is None:
        notes.append("the alias was moved and its former version pruned meanwhile")
    elif version.record is None:
        notes.append(f"the record of version {version.number} cannot be used: {version.problem}")
    elif version.file.status == "file" and version.record.sqsh.size_bytes != version.file.size_bytes:
        notes.append(f"size is {version.file.size_bytes}, recorded was {version.record.sqsh.size_bytes}")
    return {
        "name": version.name if version else None,
        "number": version.number if version else None,
        "path": path,
        "recorded_sha256": recorded,
        "sha256": sha256,
        "drift": version is not None and (bool(damage) or recorded != sha256),
        "notes": notes,
    }


def _damage(hook: SlurmHook, name: str, error: SlurmImagesError) -> tuple[str, str]:
    """Path and what is wrong with it, where the job failed because the file is not the recorded one; else no words."""
    reason = error.details.get("reason")
    if reason != _BROKEN and reason not in _NO_FILE:
        return "", ""
    collected = hook.collect(str(error.details["run_directory"]), ended=True)
    plan = collected.data("plan")
    request = LifecyclePlan.load(plan).request if plan else None
    if not isinstance(request, InspectRequest):
        return "", ""
    return request.path, _words(collected) if reason == _BROKEN else _absence(hook, name, request.path)


def _words(collected: RemoteResult) -> str:
    said = _SAID.findall(collected.text("tail.slurm.out"))
    return clean(said[-1])[:500] if said else "the SquashFS file is not whole"


def _absence(hook: SlurmHook, name: str, path: str) -> str:
    """What tells that the file is gone for certain: the store's, and not seen here either for ``record_wait``.

    Else no words: the compute node may not see it yet, or at all; and what lies outside the store it alone may see.
    """
    deadline = time.monotonic() + hook.profile.record_wait
    while True:
        version = next((version for version in hook.image_history(name) if version.path == path), None)
        if version is None:
            return _GONE
        if version.file.status == "file" or version.record is None or not version.record.sqsh.managed:
            return ""
        if version.file.status == "other":
            return "something that is no regular file stands in its place"
        if time.monotonic() >= deadline:
            return _GONE
        time.sleep(min(5.0, max(0.1, deadline - time.monotonic())))
