# SPDX-License-Identifier: Apache-2.0
"""Records that cross a boundary: plan, completion, inspection, image record, job handle.

All are strict and frozen. What we write ourselves (plan, completion) forbids unknown keys; what others keep and
read back years later (image record) keeps keys it does not know: ``schema_version`` is a whole major.
Load with ``Model.model_validate_json(text)``; a record over :data:`MAX_RECORD_BYTES` is refused by its reader.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from airflow_slurm_images.core.fields import (
    AliasName,
    ClusterName,
    Fact,
    Hex16,
    Hex32,
    ImagePath,
    NonEmpty,
    OciDigest,
    PlainJson,
    PythonVersion,
    RecordedPath,
    Sha256,
    SlurmTime,
    Version1,
    plain_json,
)
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.profile import ClusterProfile

__all__ = [
    "MAX_RECORD_BYTES",
    "ClusterProfile",
    "CompletionRecord",
    "ImageRecord",
    "InspectionRecord",
    "JobHandle",
    "LifecyclePlan",
]

MAX_RECORD_BYTES = 1024 * 1024
"""Largest record accepted anywhere (1 MiB), so that one image cannot flood XCom or a worker's memory."""

Operation = Literal["import_oci", "inspect_sqsh"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class _Open(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    @model_validator(mode="after")
    def _keys_of_others_are_plain(self) -> _Open:
        plain_json(self.model_extra or {})
        return self


class CompletedFile(_Strict):
    """The ``.sqsh`` the job worked on: identity as the job saw it. ``mtime`` in seconds since the epoch."""

    path: RecordedPath
    sha256: Sha256
    size_bytes: int = Field(ge=0)
    inode: int = Field(ge=0)
    mtime: int
    managed: bool


class CompletionRecord(_Strict):
    """Written last, by rename, by the job itself; ``token`` binds it to one attempt."""

    schema_version: Version1
    token: Hex32
    operation: Operation
    exit_status: int = Field(ge=0, le=255)
    phase: NonEmpty
    tool_status: int = Field(ge=0, le=255)
    job_id: int = Field(gt=0)
    restart_count: int = Field(ge=0)
    cluster: str
    node: str
    elapsed_seconds: int = Field(ge=0)
    hash_tool: str
    machine: str
    platform_digest: OciDigest | None = None
    index_digest: OciDigest | None = None
    sqsh: CompletedFile | None

    @model_validator(mode="after")
    def _only_a_good_job_has_a_file(self) -> CompletionRecord:
        if (self.exit_status == 0) != (self.sqsh is not None):
            raise ValueError("sqsh stands in the record of a job that ended well (exit_status 0), and only there")
        return self

    @property
    def signalled(self) -> bool:
        """Whether the job, or the tool it ran, was ended by a signal; Slurm knows why."""
        return self.exit_status > 128 or self.tool_status > 128


class Distribution(_Strict):
    """One installed distribution: canonical name (PEP 503) and version."""

    name: Fact
    version: Fact

    @field_validator("name")
    @classmethod
    def _canonical(cls, value: str) -> str:
        if canonicalize_name(value) != value:
            raise ValueError(f"{value!r} is not the canonical name of a distribution (PEP 503)")
        return value


class ClientInspection(_Strict):
    """Facts of a Python client image."""

    kind: Literal["client"]
    python_implementation: Fact
    python_version: PythonVersion
    python_abi: Fact
    distributions: tuple[Distribution, ...]
    installer_path: ImagePath
    installer_version: Fact

    @field_validator("distributions")
    @classmethod
    def _unique_and_sorted(cls, value: tuple[Distribution, ...]) -> tuple[Distribution, ...]:
        names = [item.name for item in value]
        if names != sorted(set(names)):
            raise ValueError("distributions must be unique and sorted by name")
        return value


class ServingInspection(_Strict):
    """Facts of a serving image."""

    kind: Literal["serving"]
    server_type: Literal["vllm"]
    runtime_version: Fact
    executable_path: ImagePath


class GenericInspection(_Strict):
    """Any image; everything known stands under the image record's ``image``."""

    kind: Literal["generic"]


Inspection = Annotated[ClientInspection | ServingInspection | GenericInspection, Field(discriminator="kind")]


class InspectionRecord(_Strict):
    """The facts found inside the image, bound to the SHA-256 of the ``.sqsh`` by the job, not by the image."""

    schema_version: Version1 = 1
    inspector_version: Fact
    sqsh_sha256: Sha256
    inspection: Inspection


class SourceIdentity(_Open):
    """Where an imported image came from. ``oci_digest`` is the pinned digest; the tag is information only.

    ``platform_digest`` is the manifest that was imported, ``index_digest`` the multi-platform index that named it
    (None: the pinned digest is the manifest's own). Both are known where ``manifest_verified`` is true: the job
    compared the bytes of both with their digests.
    """

    reference: NonEmpty
    registry: NonEmpty
    repository: NonEmpty
    requested_tag: str | None
    oci_digest: OciDigest
    platform_digest: OciDigest | None = None
    index_digest: OciDigest | None = None
    manifest_verified: bool = False


class SqshIdentity(_Open):
    """The file: another identity than the OCI digest, never compared with it."""

    path: RecordedPath
    alias_path: RecordedPath | None
    sha256: Sha256
    size_bytes: int = Field(ge=0)
    managed: bool


class JobFacts(_Open):
    """The Slurm job that did the work."""

    job_id: int = Field(gt=0)
    cluster: str
    node: str
    state: str
    elapsed_seconds: int = Field(ge=0)
    run_directory: RecordedPath


class ImageRecord(_Open):
    """What a task returns: source, file, inspection, image facts and job, as plain JSON in XCom."""

    schema_version: Version1 = 1
    operation: Operation
    name: AliasName | None
    cluster: str
    source: SourceIdentity | None
    sqsh: SqshIdentity
    inspection: InspectionRecord
    image: PlainJson
    job: JobFacts
    reused: bool = False


class JobHandle(_Open):
    """A submitted job, enough to find it again: what the operator returns with ``wait_for_completion=False``.

    ``submitted_at`` is the login node's local time (``YYYY-MM-DDTHH:MM:SS``), the start bound for accounting;
    the worker's clock never enters. ``generation`` is that of the tries the job belongs to, ``record_wait`` the
    profile's, as it was when the job was submitted or adopted.
    """

    schema_version: Version1 = 1
    slurm_conn_id: NonEmpty
    job_id: int = Field(gt=0)
    cluster: ClusterName | None
    job_name: Annotated[str, Field(pattern=r"^asi-[0-9a-f]{32}$")]
    run_key: Hex32
    attempt: Hex16
    token: Hex32
    workspace: RecordedPath
    run_directory: RecordedPath
    submitted_at: SlurmTime
    generation: int | None = Field(None, ge=1)
    record_wait: int = Field(120, ge=1)
    profile: dict[str, Any] = Field(default_factory=dict)
    on_conflict: Literal["replace", "fail"] = "replace"
