# SPDX-License-Identifier: Apache-2.0
"""The cluster profile: one cluster's settings, from a connection's extra and a task's overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from airflow_slurm_images.core import batch
from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.fields import ClusterName, GroupName, HostPort, SafePath, SquashOptions

ENVIRONMENT_NAMES = frozenset(
    {
        *("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"),
        *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "TZ", "SOURCE_DATE_EPOCH"),
        *("ENROOT_CONNECT_TIMEOUT", "ENROOT_TRANSFER_TIMEOUT", "ENROOT_TRANSFER_RETRIES"),
        *("ENROOT_MAX_CONNECTIONS", "ENROOT_GZIP_PROGRAM", "ENROOT_ZSTD_OPTIONS"),
    }
)
"""Variables a profile may hand to the job. A closed list: the job's environment decides what gets imported."""

_URL_LOGIN = re.compile(r"://[^/\s'\"]+@")
_BEFORE_AT = re.compile(r"[^\s'\"]+@")
_SIZE = re.compile(r"(?i)^([0-9]+)([KMGT]?)(i?B)?$")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Bytes for ``512M``, ``10G``, ``1048576``; ``ValueError`` for anything else."""
    match = _SIZE.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as '10G' or '512M'")
    return int(match[1]) * _UNITS[match[2].upper()]


class ClusterProfile(BaseModel):
    """Settings of one cluster; every field may stand in the connection's extra and be overridden per task.

    Read leniently from authors with :meth:`from_author` (``"8"`` is 8, an empty form field is "not given"),
    strictly when it is part of a stored plan.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    workspace_root: SafePath = Field(
        description="Absolute directory on a file system that login and compute nodes share. Required."
    )
    account: str | None = Field(None, description="Slurm account to charge (sbatch --account).")
    partition: str | None = Field(None, description="Partition of CPU nodes with Enroot (sbatch --partition).")
    qos: str | None = Field(None, description="Quality of service (sbatch --qos).")
    reservation: str | None = Field(None, description="Reservation to run in (sbatch --reservation).")
    constraint: str | None = Field(None, description="Node features to require (sbatch --constraint).")
    exclude: str | None = Field(None, description="Nodes to avoid (sbatch --exclude).")
    cpus_per_task: int = Field(4, ge=1, le=1024, description="CPUs of the job; Enroot uses exactly these.")
    memory: str = Field("16G", description="Memory of the job (sbatch --mem), for example 16G.")
    time_limit: str = Field("02:00:00", description="Time limit of the job (sbatch --time), for example 02:00:00.")
    inspect_timeout: int = Field(300, ge=10, le=86400, description="Seconds the inspection in the image may take.")
    scratch_root: SafePath | None = Field(
        None, description="Node-local directory for temporary files; default: the job's TMPDIR, else /tmp."
    )
    min_free: str = Field("1G", description="Free space wanted in scratch and store before the work, e.g. 20G.")
    environment: dict[str, str] = Field(
        default_factory=dict, description="Proxy and CA bundle variables for the job, as a JSON object."
    )
    path_prepend: tuple[SafePath, ...] = Field((), description="Directories put first on the job's PATH.")
    slurm_bin: SafePath | None = Field(None, description="Directory of sbatch, squeue ... when not on PATH.")
    enroot_bin: SafePath | None = Field(None, description="Directory of the enroot command when not on PATH.")
    slurm_conf: SafePath | None = Field(None, description="Path of slurm.conf (SLURM_CONF) when not the default.")
    cluster: ClusterName | None = Field(None, description="Cluster of a federation (-M); needs slurmdbd.")
    squash_options: SquashOptions = Field(
        "-comp zstd -Xcompression-level 1 -noD",
        description="mksquashfs options of the import; -exit-on-error is always added, -mem where it is missing.",
    )
    layer_cache: bool = Field(True, description="Keep the layers of imports, so that a refresh loads only new ones.")
    group: GroupName | None = Field(None, description="Unix group that shares the store and the aliases.")
    insecure_registries: tuple[HostPort, ...] = Field(
        (), description='Registries spoken to over plain HTTP, as a JSON list of "host:port".'
    )
    verify_manifest: bool = Field(
        True,
        description="Compare the manifest's bytes with the pinned digest before the import. Off only for registries "
        "that rewrite manifests; the image record then says manifest_verified: false.",
    )
    record_wait: int = Field(120, ge=1, le=3600, description="Seconds to wait for the record after the job's end.")

    @field_validator("path_prepend", "insecure_registries", mode="before")
    @classmethod
    def _split_list(cls, value: Any, info: Any) -> Any:
        if isinstance(value, str):
            separator = ":" if info.field_name == "path_prepend" else ","
            return tuple(part.strip() for part in value.split(separator) if part.strip())
        return tuple(value) if isinstance(value, list) else value

    @field_validator("environment", mode="before")
    @classmethod
    def _environment_text(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            name: str(item) if isinstance(item, int) and not isinstance(item, bool) else item
            for name, item in value.items()
        }

    @field_validator("time_limit", "min_free", mode="before")
    @classmethod
    def _number_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("memory", mode="before")
    @classmethod
    def _memory_text(cls, value: Any) -> Any:
        return f"{value}M" if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("account", "partition", "qos", "reservation", "constraint", "exclude", "memory", "time_limit")
    @classmethod
    def _check_directive(cls, value: str | None, info: ValidationInfo) -> str | None:
        checks = {"memory": batch.memory_mebibytes, "time_limit": batch.time_limit_seconds}
        check = checks.get(info.field_name or "", partial(batch.check_option, info.field_name or ""))
        try:
            if value is not None:
                check(value)
        except InvalidRequestError as err:  # the rules of the batch script, told together with all other faults
            raise ValueError(err.message) from err
        return value

    @field_validator("min_free")
    @classmethod
    def _check_min_free(cls, value: str) -> str:
        parse_size(value)
        return value

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if name not in ENVIRONMENT_NAMES:
                raise ValueError(f"{name!r} is not among the variables a job may get: {sorted(ENVIRONMENT_NAMES)}")
            # curl takes `login:password@host` as a proxy too, without a scheme and with any character in the password.
            if _URL_LOGIN.search(text) or ("@" in text and name.lower().endswith("_proxy")):
                raise ValueError(f"{name!r} holds a login; a secret must not enter the environment")
            if not text.isprintable():
                raise ValueError(f"{name!r} holds a control character")
        return value

    def speaks_plain_http(self, registry: str) -> bool:
        """Whether ``insecure_registries`` names this registry, whatever its case; port 80 is that of plain HTTP."""
        return _plain(registry) in map(_plain, self.insecure_registries)

    @classmethod
    def from_author(cls, extra: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> ClusterProfile:
        """Build a profile from a connection's ``extra`` and a task's ``profile``; the task's values win.

        Keys of the extra that are no profile fields belong to the SSH connection and are left alone; an
        unknown key in ``overrides`` is an error. Raises :class:`InvalidRequestError` naming field, value, rule.
        """
        values = {key: value for key, value in extra.items() if key in cls.model_fields}
        values.update(overrides or {})
        given = {key: value for key, value in values.items() if value is not None and value != ""}
        if "workspace_root" not in given:
            raise InvalidRequestError(
                "The cluster profile has no 'workspace_root'",
                remedy="Set it in the connection's extra, or pass profile={'workspace_root': '/shared/dir'}.",
            )
        try:
            return cls.model_validate(given, strict=False)
        except ValidationError as err:
            raise invalid_input("cluster profile", err) from err


def _plain(registry: str) -> str:
    return registry.lower().removesuffix(":80")


def invalid_input(what: str, err: ValidationError) -> InvalidRequestError:
    """One readable error for everything pydantic found, with each field, its value and the rule."""
    lines = []
    for fault in err.errors(include_url=False):
        field = ".".join(str(part) for part in fault["loc"]) or "value"
        given = _URL_LOGIN.sub("://***@", str(fault["input"]))
        if "environment" in fault["loc"]:
            given = _BEFORE_AT.sub("***@", given)
        given = given[:120]
        lines.append(f"{field}: {fault['msg']} (got {given!r})")
    return InvalidRequestError(
        f"Invalid {what}: " + "; ".join(lines), remedy="Correct the named fields; nothing was submitted."
    )
