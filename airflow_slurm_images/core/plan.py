# SPDX-License-Identifier: Apache-2.0
"""The lifecycle plan: one attempt of one run key, bound to request, profile, paths and package-owned files.

A plan is built once, written to the attempt directory and loaded again by whoever takes over the task. Loading
re-derives every value that follows from another one and checks the digest over all fields, so that a changed
byte anywhere is refused rather than acted on.

Versions of the package may meet at one plan, when one is upgraded while jobs wait. A sound plan of another version
counts for what this version understands of it: its package files are others, and settings it did not know have their
defaults. One that cannot be read so is told from a damaged one (OtherVersionError); its job is left alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from airflow_slurm_images import __version__
from airflow_slurm_images.core.errors import IntegrityError, InvalidRequestError, OtherVersionError
from airflow_slurm_images.core.fields import Hex16, Hex32, LoginName, NonEmpty, OciDigest, SafePath, Sha256, Version1
from airflow_slurm_images.core.profile import ClusterProfile, invalid_input
from airflow_slurm_images.core.requests import ImportRequest, InspectRequest, Request

PACKAGE_FILES = (
    "job.sh",
    "process.sh",
    "squashfs.sh",
    "locks.sh",
    "store.sh",
    "guards.sh",
    "enroot.sh",
    "inspect.sh",
    "login.sh",
    "registry.sh",
    "manifest.sh",
    "enroot.rc",
    "start.conf",
    "inspect_image.py",
    "enroot-sysconf/mounts.d/10-base.fstab",
)
"""Files of ``cluster/`` that run in the job; each one's SHA-256 stands in every plan."""

JOB_NAME_PREFIX = "asi-"


def run_key(deployment_id: str, dag_id: str, task_id: str, run_id: str, map_index: int) -> str:
    """Name one task's work: 32 hex characters that every try of it shares, whatever its templates render to."""
    parts = json.dumps([deployment_id, dag_id, task_id, run_id, map_index], ensure_ascii=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def job_name(key: str) -> str:
    """Slurm job name of a run key; unique per task, so singleton and look-ups by name work."""
    return f"{JOB_NAME_PREFIX}{key}"


def canonical_digest(value: Any) -> str:
    """SHA-256 over the canonical JSON (sorted keys, no white space) of ``value``."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def request_digest(request: ImportRequest | InspectRequest, profile: ClusterProfile) -> str:
    """Identity of what was asked for: a live job with another one is not ours to adopt."""
    return canonical_digest([request.model_dump(mode="json"), profile.model_dump(mode="json")])


class ExistingFile(BaseModel):
    """A store file that an earlier import of the same source made: it is inspected again, not imported again."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    sha256: Sha256
    platform_digest: OciDigest | None = None
    index_digest: OciDigest | None = None


class LifecyclePlan(BaseModel):
    """Everything the cluster side of one attempt needs; immutable, versioned, strict.

    ``workspace`` is the resolved root (``realpath``), ``login`` the account on the cluster, ``generation`` the
    number of the first try since the run began or was cleared. Raises ``pydantic.ValidationError`` when loaded
    with any field changed.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    schema_version: Version1 = 1
    package_version: NonEmpty
    run_key: Hex32
    attempt: Hex16
    token: Hex32
    generation: int = Field(ge=1)
    request: Request
    request_digest: Sha256
    profile: ClusterProfile
    workspace: SafePath
    login: LoginName
    job_name: str
    attempt_directory: SafePath
    store_directory: SafePath
    cache_directory: SafePath
    source_digest: OciDigest | None
    existing: ExistingFile | None = None
    package_files: dict[str, Sha256]
    plan_digest: Sha256

    @classmethod
    def build(
        cls,
        *,
        run_key: str,
        attempt: str,
        token: str,
        generation: int,
        request: ImportRequest | InspectRequest,
        profile: ClusterProfile,
        workspace: str,
        login: str,
        package_files: Mapping[str, str],
        existing: ExistingFile | None = None,
    ) -> LifecyclePlan:
        """Derive all that follows from the arguments and return the validated plan.

        Raises InvalidRequestError where the cluster's own names (resolved workspace, login) cannot stand in a plan.
        """
        values: dict[str, Any] = {
            "schema_version": 1,
            "package_version": __version__,
            "run_key": run_key,
            "attempt": attempt,
            "token": token,
            "generation": generation,
            "request": request.model_dump(mode="json"),
            "profile": profile.model_dump(mode="json"),
            "workspace": workspace,
            "login": login,
            "package_files": dict(package_files),
            "existing": existing.model_dump(mode="json") if existing else None,
            **_derived(run_key, attempt, request, profile, workspace, login),
        }
        values["plan_digest"] = canonical_digest(values)
        try:
            return cls.model_validate_json(json.dumps(values))
        except ValidationError as err:
            raise invalid_input("plan", err) from err

    @classmethod
    def load(cls, text: str | bytes) -> LifecyclePlan:
        """Read a staged plan; raises IntegrityError when anything in it was changed, also to an equal value.

        Raises OtherVersionError for a sound plan of another version of this package that this one cannot read.
        """
        version = None
        try:
            written = json.loads(text, object_pairs_hook=_unique)
            version = _sound_version(written)
            return cls.model_validate_json(text)
        except (ValueError, RecursionError, InvalidRequestError) as err:  # pydantic's ValidationError is a ValueError
            fault = err.errors(include_url=False)[0]["msg"] if isinstance(err, ValidationError) else err.args[0]
            if version not in (None, __version__):
                raise OtherVersionError(
                    f"The attempt was planned by version {version} of this package, and version {__version__} cannot "
                    f"read its plan: {fault}",
                    remedy="Wait until its job has ended, or cancel it; a try after that starts a new attempt.",
                ) from err
            raise IntegrityError(
                f"The plan of this attempt is not valid: {fault}",
                remedy="Find out who wrote to the run directory; then clear the task, which starts a new attempt.",
            ) from err

    @model_validator(mode="after")
    def _invariants(self) -> LifecyclePlan:
        ours = self.package_version == __version__
        derived = _derived(self.run_key, self.attempt, self.request, self.profile, self.workspace, self.login)
        for name, value in derived.items():
            if getattr(self, name) != value and (ours or name != "request_digest"):
                raise ValueError(f"{name} does not follow from the other fields of the plan")
        if self.existing is not None and not isinstance(self.request, ImportRequest):
            raise ValueError("existing belongs to an import")
        if not ours:
            return self  # its own digest was right; what it has more or less than ours is not wrong
        if set(self.package_files) != set(PACKAGE_FILES):
            raise ValueError("package_files must name exactly the files of this package")
        for part in (self, self.request, self.profile):
            if part.model_fields_set != set(type(part).model_fields):
                raise ValueError("a field is missing: a stored plan names every one")
        if canonical_digest(self.model_dump(mode="json", exclude={"plan_digest"})) != self.plan_digest:
            raise ValueError("plan_digest does not fit the plan: a field was changed")
        return self

    def asks(self, digest: str) -> bool:
        """Whether this is the work of that request digest, by what this version makes of request and profile."""
        return request_digest(self.request, self.profile) == digest

    def to_json(self) -> str:
        """JSON text as it is staged; loading it back gives an equal plan."""
        return self.model_dump_json(indent=1) + "\n"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a plan; two readers could take two values for a key that stands in it twice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return values


def _sound_version(written: Any) -> str | None:
    """Version of the package that wrote the plan, None where it says none; raises ValueError for a wrong digest."""
    if not isinstance(written, dict):
        raise ValueError("it is not a JSON object")
    digest = canonical_digest({key: value for key, value in written.items() if key != "plan_digest"})
    if digest != written.get("plan_digest"):
        raise ValueError("plan_digest does not fit the plan: a field was changed")
    version = written.get("package_version")
    return version if isinstance(version, str) else None


def _derived(
    key: str,
    attempt: str,
    request: ImportRequest | InspectRequest,
    profile: ClusterProfile,
    workspace: str,
    login: str,
) -> dict[str, Any]:
    return {
        "request_digest": request_digest(request, profile),
        "job_name": job_name(key),
        "attempt_directory": f"{workspace}/users/{login}/runs/{key}/{attempt}",
        "store_directory": f"{workspace}/store/sha256",
        "cache_directory": f"{workspace}/users/{login}/cache",
        "source_digest": request.reference.digest if isinstance(request, ImportRequest) else None,
    }
