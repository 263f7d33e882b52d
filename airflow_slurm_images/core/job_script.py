# SPDX-License-Identifier: Apache-2.0
"""From a plan to the files of an attempt: the rendered batch script and everything staged beside it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping

from airflow_slurm_images.core import batch
from airflow_slurm_images.core.plan import PACKAGE_FILES, LifecyclePlan
from airflow_slurm_images.core.profile import parse_size
from airflow_slurm_images.core.remote import package_file
from airflow_slurm_images.core.requests import ImportRequest

CREDENTIALS_FILE = "enroot-config/.credentials"


def package_checksums() -> dict[str, str]:
    """SHA-256 of each package-owned file as installed here."""
    return {name: sha256(package_file(name)) for name in PACKAGE_FILES}


def sha256(data: bytes) -> str:
    """Hex SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def staged_files(plan: LifecyclePlan, credentials: bytes | None = None) -> dict[str, bytes]:
    """Every file of the attempt directory by relative name, with ``staged.sha256`` over all but the login.

    ``package.sha256`` lists what the job compares at its start; the script carries that list's own checksum.
    ``credentials`` (a netrc) is not in any list: the job removes it while the lists stay.
    """
    files: dict[str, bytes] = {name: package_file(name) for name in PACKAGE_FILES}
    files["plan.json"] = plan.to_json().encode()
    files["package.sha256"] = checksum_list(files)
    files["job.sbatch"] = render(plan, sha256(files["package.sha256"]), staged_login=credentials is not None).encode()
    files["staged.sha256"] = checksum_list(files)
    if credentials is not None:
        files[CREDENTIALS_FILE] = credentials
    return files


def checksum_list(files: Mapping[str, bytes]) -> bytes:
    """Lines as ``sha256sum --check`` reads them."""
    return "".join(f"{sha256(data)}  {name}\n" for name, data in sorted(files.items())).encode()


def archive(files: Mapping[str, bytes]) -> bytes:
    """Pack the staged files: 0600, directories 0700, no owner and no time of this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for directory in sorted({part for name in files for part in _parents(name)}):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700
            tar.addfile(entry)
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: index + 1]) for index in range(len(parts))]


def render(plan: LifecyclePlan, package_sha256: str, *, staged_login: bool = False) -> str:
    """Batch script of a plan: directives, quoted constants, ``job.sh`` byte for byte.

    ``staged_login`` tells the job that a login was staged for it, so that it never goes on with another one.
    """
    profile = plan.profile
    lines = batch.directives(
        job_name=plan.job_name,
        output=f"{plan.attempt_directory}/slurm.out",
        chdir=plan.attempt_directory,
        cpus_per_task=profile.cpus_per_task,
        memory=profile.memory,
        time_limit=profile.time_limit,
        account=profile.account,
        partition=profile.partition,
        qos=profile.qos,
        reservation=profile.reservation,
        constraint=profile.constraint,
        exclude=profile.exclude,
    )
    variables = {**job_variables(plan, package_sha256), "ASI_LOGIN_STAGED": "1" if staged_login else "0"}
    return batch.render_script(lines, variables, package_file("job.sh").decode())


def job_variables(plan: LifecyclePlan, package_sha256: str) -> dict[str, str]:
    """Constants of the job; all of them, whatever the operation, so that the script never meets an unset name."""
    profile = plan.profile
    environment = {
        f"ASI_ENVIRONMENT_{index}": f"{name}={value}"
        for index, (name, value) in enumerate(sorted(profile.environment.items()))
    }
    return {
        "ASI_TOKEN": plan.token,
        "ASI_OPERATION": plan.request.operation,
        "ASI_KIND": plan.request.kind,
        "ASI_ATTEMPT_DIR": plan.attempt_directory,
        "ASI_STORE": plan.store_directory,
        "ASI_CACHE": plan.cache_directory,
        "ASI_PACKAGE_SHA256": package_sha256,
        "ASI_CPUS": str(profile.cpus_per_task),
        "ASI_MEMORY_MIB": str(batch.memory_mebibytes(profile.memory)),
        # Slurm's own limit comes first and says so; this one is for sites that do not enforce theirs.
        "ASI_IMPORT_TIMEOUT": str(batch.time_limit_seconds(profile.time_limit) + 300),
        "ASI_INSPECT_TIMEOUT": str(profile.inspect_timeout),
        "ASI_SCRATCH_ROOT": profile.scratch_root or "",
        "ASI_MIN_FREE_KIB": str(parse_size(profile.min_free) // 1024),
        "ASI_PATH_PREPEND": ":".join(profile.path_prepend),
        "ASI_ENROOT_BIN": profile.enroot_bin or "",
        "ASI_SQUASH_OPTIONS": profile.squash_options,
        "ASI_LAYER_CACHE": "1" if profile.layer_cache else "0",
        "ASI_GROUP": profile.group or "",
        **_source_variables(plan),
        "ASI_ENVIRONMENT_COUNT": str(len(environment)),
        **environment,
    }


def _source_variables(plan: LifecyclePlan) -> dict[str, str]:
    request = plan.request
    if isinstance(request, ImportRequest):
        reference = request.reference
        existing = plan.existing.sha256 if plan.existing else ""
        insecure = request.insecure or plan.profile.speaks_plain_http(reference.registry)
        return {
            "ASI_IMAGE_URI": reference.enroot_uri,
            "ASI_REGISTRY": reference.registry,
            "ASI_REPOSITORY": reference.repository,
            "ASI_DIGEST": reference.digest,
            "ASI_VERIFY_MANIFEST": "1" if plan.profile.verify_manifest else "0",
            "ASI_NEEDS_ENROOT_4": "1" if reference.needs_enroot_4 else "0",
            "ASI_ARCH": request.arch or "",
            "ASI_ALLOW_HTTP": "yes" if insecure else "no",
            "ASI_SQSH_PATH": f"{plan.store_directory}/{existing}.sqsh" if existing else "",
            "ASI_EXISTING_SHA256": existing,
            "ASI_COPY_TO_STORE": "0",
        }
    return {
        "ASI_IMAGE_URI": "",
        "ASI_REGISTRY": "",
        "ASI_REPOSITORY": "",
        "ASI_DIGEST": "",
        "ASI_VERIFY_MANIFEST": "0",
        "ASI_NEEDS_ENROOT_4": "0",
        "ASI_ARCH": "",
        "ASI_ALLOW_HTTP": "no",
        "ASI_SQSH_PATH": request.path,
        "ASI_EXISTING_SHA256": "",
        "ASI_COPY_TO_STORE": "1" if request.copy_to_store else "0",
    }
