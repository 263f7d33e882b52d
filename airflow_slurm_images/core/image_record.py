# SPDX-License-Identifier: Apache-2.0
"""From what an attempt left to the image record: validate, compare, assemble. Nothing is published before this.

Everything that came out of the image is hostile until it passed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import TypeAdapter, ValidationError

from airflow_slurm_images.core.catalog import StoreFacts
from airflow_slurm_images.core.errors import IntegrityError, JobFailedError
from airflow_slurm_images.core.image_facts import image_section, static_facts
from airflow_slurm_images.core.inspector_facts import read_inspector_facts
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.records import (
    MAX_RECORD_BYTES,
    ClientInspection,
    CompletedFile,
    CompletionRecord,
    GenericInspection,
    ImageRecord,
    Inspection,
    InspectionRecord,
    JobFacts,
    SourceIdentity,
    SqshIdentity,
)
from airflow_slurm_images.core.requests import OCI_ARCHITECTURES, ImportRequest

_INSPECTION: TypeAdapter[Any] = TypeAdapter(Inspection)

GENERIC_INSPECTOR = "static-1"
"""``inspector_version`` of records made by reading the file only."""


def assemble(
    plan: LifecyclePlan, completion: CompletionRecord, facts: bytes | None, static: Mapping[str, bytes]
) -> ImageRecord:
    """Build the image record of a successful attempt.

    Raises JobFailedError (facts missing or malformed, distributions missing, wrong architecture, record over
    1 MiB) or IntegrityError (completion and plan do not belong together).
    """
    sqsh = completion.sqsh
    if sqsh is None or completion.token != plan.token or completion.operation != plan.request.operation:
        raise IntegrityError("The completion record does not belong to this plan", details={"token": completion.token})
    outside = static_facts(static)
    inspection, inspector_version, inside = _inspection(plan, facts)
    image = image_section(outside, inside)
    _decide_architecture(plan, completion, image)
    check_distributions(plan.request.required_distributions, inspection, image)
    record = ImageRecord(
        operation=plan.request.operation,
        name=plan.request.name,
        cluster=completion.cluster,
        source=_source(plan, completion),
        sqsh=_identity(plan, sqsh),
        inspection=InspectionRecord(
            inspector_version=inspector_version, sqsh_sha256=sqsh.sha256, inspection=inspection
        ),
        image=image,
        job=JobFacts(
            job_id=completion.job_id,
            cluster=completion.cluster,
            node=completion.node,
            state="COMPLETED",
            elapsed_seconds=completion.elapsed_seconds,
            run_directory=plan.attempt_directory,
        ),
    )
    if len(to_json(record)) > MAX_RECORD_BYTES:
        raise _unusable("record_too_large", f"the image record is larger than {MAX_RECORD_BYTES} bytes")
    return record


def to_json(record: ImageRecord) -> bytes:
    """Plain JSON of a record, as stored on the cluster."""
    return (json.dumps(record.model_dump(mode="json"), ensure_ascii=True) + "\n").encode()


def _inspection(plan: LifecyclePlan, facts: bytes | None) -> tuple[Any, str, dict[str, Any]]:
    """Inspection value, inspector version and image facts from the inspector's file, validated twice over."""
    kind = plan.request.kind
    if kind == "generic":
        return GenericInspection(kind="generic"), GENERIC_INSPECTOR, {}
    if facts is None:
        raise _unusable("facts_missing", "the job ended well but left no facts")
    try:
        found = read_inspector_facts(facts, kind)
        value = _INSPECTION.validate_json(json.dumps(found.inspection))
    except ValueError as err:  # pydantic's ValidationError is one
        raise _unusable("facts_invalid", f"the facts from the image are not valid: {_first(err)}") from err
    return value, found.inspector_version, found.image


def _first(err: ValueError) -> str:
    if isinstance(err, ValidationError):
        fault = err.errors(include_url=False)[0]
        return f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
    return str(err)


def _decide_architecture(plan: LifecyclePlan, completion: CompletionRecord, image: dict[str, Any]) -> None:
    """Enter the architecture of an import in ``image``: a verified configuration beats the look of a program."""
    found = image.get("architecture")
    if not isinstance(plan.request, ImportRequest):
        return
    wanted = plan.request.arch or completion.machine
    fits = OCI_ARCHITECTURES.get(str(found), str(found)) == wanted
    if _verified(plan, completion):
        stated = next((name for name, machine in OCI_ARCHITECTURES.items() if machine == wanted), wanted)
        image["architecture"] = stated
        if found is not None and not fits:
            image["warnings"].append(f"elf: a program is for {found}, the image's configuration says {stated}")
    elif found is not None and not fits:
        raise JobFailedError(
            f"The image is for {found}, asked was {wanted}",
            reason="architecture_mismatch",
            retryable=False,
            remedy="Pin the digest of the image for this architecture, or pass the right arch.",
        )


def _verified(plan: LifecyclePlan, completion: CompletionRecord) -> bool:
    """Whether the image's configuration was compared with the architecture that is wanted now."""
    if plan.existing is None:
        return completion.platform_digest is not None
    # without `arch` it was that of an earlier node
    asked = isinstance(plan.request, ImportRequest) and plan.request.arch is not None
    return asked and plan.existing.platform_digest is not None


def check_distributions(wanted: Sequence[str], inspection: Any, image: Mapping[str, Any]) -> None:
    """Raise JobFailedError that lists all ``wanted`` requirements the image does not meet."""
    if not wanted:
        return
    missing = missing_distributions(wanted, _installed(inspection, image), _environment(inspection, image))
    if missing:
        raise JobFailedError(
            f"The image lacks {len(missing)} of {len(wanted)} required distributions: " + "; ".join(missing),
            reason="distributions_missing",
            retryable=False,
            remedy="Build them into the image, or correct required_distributions.",
            details={"missing": list(missing)},
        )


def _installed(inspection: Any, image: Mapping[str, Any]) -> dict[str, str]:
    if isinstance(inspection, ClientInspection):
        return {item.name: item.version for item in inspection.distributions}
    return {row["name"]: row["version"] for row in image.get("distributions", [])}


def _environment(inspection: Any, image: Mapping[str, Any]) -> dict[str, str]:
    environment = {key: str(value) for key, value in default_environment().items()}
    environment.update({"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"})
    implementation = getattr(inspection, "python_implementation", None) or image.get("python_implementation")
    if implementation:
        environment["platform_python_implementation"] = str(implementation)
        environment["implementation_name"] = str(implementation).lower()
    full = _python_version(inspection, image)
    environment["python_full_version"] = full
    environment["python_version"] = ".".join(full.split(".")[:2])
    if image.get("machine"):
        environment["platform_machine"] = str(image["machine"])
    return environment


def _python_version(inspection: Any, image: Mapping[str, Any]) -> str:
    for text in (image.get("python_version"), getattr(inspection, "python_version", None)):
        try:
            return str(Version(str(text).rstrip("+")))  # a build from a work tree says "3.15.0a1+"
        except InvalidVersion:
            continue
    return "0"  # not the worker's


def missing_distributions(
    wanted: Iterable[str], installed: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Requirements that ``installed`` (canonical name to version) does not meet, each with what is there.

    Markers are judged by the image's environment; a pre-release counts where it is what is installed.
    """
    missing = []
    for text in wanted:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate(dict(environment)):
            continue
        version = installed.get(canonicalize_name(requirement.name))
        if version is None:
            missing.append(f"{text} (not installed)")
        elif not _satisfies(requirement, version):
            missing.append(f"{text} (installed: {version})")
    return tuple(missing)


def _satisfies(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return not requirement.specifier  # a version outside PEP 440 can meet no bound


def _source(plan: LifecyclePlan, completion: CompletionRecord) -> SourceIdentity | None:
    if not isinstance(plan.request, ImportRequest):
        return None
    reference = plan.request.reference
    seen = plan.existing or completion  # of a file used again, what its import had seen
    return SourceIdentity(
        reference=str(reference),
        registry=reference.registry,
        repository=reference.repository,
        requested_tag=reference.tag,
        oci_digest=reference.digest,
        platform_digest=seen.platform_digest,
        index_digest=seen.index_digest,
        manifest_verified=seen.platform_digest is not None,
    )


def _identity(plan: LifecyclePlan, sqsh: CompletedFile) -> SqshIdentity:
    name = plan.request.name
    return SqshIdentity(
        path=sqsh.path,
        alias_path=f"{plan.workspace}/aliases/{name}.sqsh" if name else None,
        sha256=sqsh.sha256,
        size_bytes=sqsh.size_bytes,
        managed=sqsh.managed,
    )


def _unusable(reason: str, text: str) -> JobFailedError:
    return JobFailedError(
        f"The image cannot be published: {text}",
        reason=reason,
        phase="collect",
        retryable=False,
        remedy="Inspect the image with kind 'generic', or repair it; nothing was published.",
    )


def store_facts(plan: LifecyclePlan, completion: CompletionRecord, file: CompletedFile) -> StoreFacts:
    """What has to be the same for this file to be used again by a later import."""
    arch = plan.request.arch if isinstance(plan.request, ImportRequest) else None
    return StoreFacts.of(
        file,
        kind=plan.request.kind,
        squash_options=plan.profile.squash_options,
        architecture=arch or completion.machine,
        requested_architecture=arch,
        partition=plan.profile.partition,
    )
