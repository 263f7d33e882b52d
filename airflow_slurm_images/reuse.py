# SPDX-License-Identifier: Apache-2.0
"""Unchanged is free: what an import would make is in the store already, with a valid record and an unchanged file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_slurm_images.core import catalog, image_record
from airflow_slurm_images.core.catalog import Reusable, source_extra
from airflow_slurm_images.core.plan import ExistingFile
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.records import ImageRecord, SourceIdentity
from airflow_slurm_images.core.requests import ImportRequest, InspectRequest
from airflow_slurm_images.core.run_state import RunState

IfPresent = Literal["skip", "verify", "reimport"]


@dataclass(frozen=True)
class Reuse:
    """``record``: the work is done, no job is needed. ``existing``: a job inspects that file, it imports nothing."""

    record: ImageRecord | None = None
    facts: catalog.StoreFacts | None = None
    existing: ExistingFile | None = None


def find(
    state: RunState, request: ImportRequest | InspectRequest, profile: ClusterProfile, if_present: IfPresent
) -> Reuse:
    """What of the store serves ``request``. Decided on the recorded digest, platform and squash options.

    Raises JobFailedError when the image that is there lacks a required distribution: a new import of the same
    digest would lack it too.
    """
    if not isinstance(request, ImportRequest) or if_present == "reimport":
        return Reuse()
    found = catalog.find_reusable(
        state.catalog,
        source_digest=request.reference.digest,
        architecture=request.arch,
        partition=profile.partition,
        squash_options=profile.squash_options,
        kind=request.kind,
        verified=profile.verify_manifest,
    )
    if found is None:
        return Reuse()
    if found.needs_inspection or if_present == "verify":
        return Reuse(existing=_existing(request, found))
    inspection = found.record.inspection.inspection
    image_record.check_distributions(request.required_distributions, inspection, found.record.image)
    record = catalog.as_reused(
        found.record,
        name=request.name,
        alias_path=f"{state.workspace}/aliases/{request.name}.sqsh",
        source=_source(request, found),
    )
    return Reuse(record=record, facts=found.facts)


def already_meant(state: RunState, found: Reuse, publisher: str) -> bool:
    """Whether the alias means what was found, so that there is nothing to publish.

    Not where ``publisher`` itself made it so: the answer may have been lost, and publishing again tells what it did.
    """
    if found.record is None or found.record.name is None or found.facts is None:
        return False
    current = state.catalog.current(found.record.name)
    if current is None or catalog.published_by(current) == publisher:
        return False
    return catalog.means(current, found.record, found.facts)


def _existing(request: ImportRequest, found: Reusable) -> ExistingFile:
    return ExistingFile(
        sha256=found.record.sqsh.sha256,
        platform_digest=source_extra(found.record.source, "platform_digest"),
        index_digest=_index_digest(request, found.record.source),
    )


def _source(request: ImportRequest, found: Reusable) -> SourceIdentity:
    reference = request.reference
    known = found.record.source
    return SourceIdentity.model_validate(
        {
            "reference": str(reference),
            "registry": reference.registry,
            "repository": reference.repository,
            "requested_tag": reference.tag,
            "oci_digest": reference.digest,
            "platform_digest": source_extra(known, "platform_digest"),
            "index_digest": _index_digest(request, known),
            "manifest_verified": bool(source_extra(known, "manifest_verified")),
        }
    )


def _index_digest(request: ImportRequest, known: SourceIdentity | None) -> str | None:
    """The index that the request goes by: none where it names the platform's manifest itself."""
    direct = request.reference.digest == source_extra(known, "platform_digest")
    return None if direct else source_extra(known, "index_digest")
