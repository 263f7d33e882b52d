# SPDX-License-Identifier: Apache-2.0
"""Facts about an image from bytes the job read out of the ``.sqsh`` without starting it.

Everything here comes from an untrusted image. :func:`static_facts` never raises: what cannot be read is left
out and named under ``warnings``. What was read from outside is never replaced by what a program inside the image
said (:func:`image_section`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow_slurm_images.core.fields import reserved_key
from airflow_slurm_images.core.image_description import parse_description
from airflow_slurm_images.core.image_formats import (
    parse_elf_architecture,
    parse_environment,
    parse_os_release,
    parse_start_script,
    parse_superblock,
)

STATIC_FILE_LIMIT = 256 * 1024
"""Bytes the job reads of each file; one of this size was cut."""


def static_facts(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the facts in the files of ``output/static``, by the names they have there; never raises.

    Keys, each only where it is known: ``os``, ``os_id``, ``os_version``, ``architecture``, ``compression``,
    ``block_size`` (bytes), ``squashfs_created`` (seconds since the epoch), ``squashfs_inodes``,
    ``squashfs_bytes_used``, ``environment``, ``entrypoint`` and ``command`` (None: the image has none),
    ``working_directory``, ``labels``, ``provenance``; from the manifest and config of a verified import (file
    ``oci-config``) ``created``, ``user``, ``volumes``, ``exposed_ports``, ``layers``. Always there:
    ``debian_packages`` (None: no Debian package database) and ``warnings`` (a list of sentences).
    """
    facts: dict[str, Any] = {"debian_packages": None}
    warnings: list[str] = []
    for name, reader in _READERS.items():
        raw = files.get(name, b"")
        if not raw:
            if name not in _OPTIONAL:
                warnings.append(f"{name}: not found in the image, or empty")
            continue
        if len(raw) >= STATIC_FILE_LIMIT:
            raw = raw[: raw.rfind(b"\n", 0, STATIC_FILE_LIMIT) + 1]
            warnings.append(f"{name}: only the first {STATIC_FILE_LIMIT} bytes were read")
        try:
            facts.update(_plain(reader(raw, warnings), name, warnings))
        except ValueError as error:
            warnings.append(f"{name}: {error}")
    facts["warnings"] = _plain(warnings, "", [])
    return facts


def image_section(static: Mapping[str, Any], inspected: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the ``image`` part of a record: static facts, the inspector's beside them, warnings joined."""
    inspected = inspected or {}
    return {**inspected, **static, "warnings": [*static.get("warnings", []), *inspected.get("warnings", [])]}


def _plain(value: Any, name: str, warnings: list[str]) -> Any:
    """Make a value one that ``fields.plain_json`` takes: names of labels and variables are the image's choice."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_plain(item, name, warnings) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in value.items() if not reserved_key(key)}
    if len(kept) < len(value):
        warnings.append(f"{name}: {len(value) - len(kept)} names that begin with '__' were left out")
    return {_plain(key, name, warnings): _plain(item, name, warnings) for key, item in kept.items()}


def _superblock_facts(raw: bytes, _warnings: list[str]) -> dict[str, Any]:
    block = parse_superblock(raw)
    return {
        "compression": block.compression,
        "block_size": block.block_size,
        "squashfs_created": block.created,
        "squashfs_inodes": block.inodes,
        "squashfs_bytes_used": block.bytes_used,
    }


def _elf_facts(raw: bytes, _warnings: list[str]) -> dict[str, Any]:
    return {"architecture": parse_elf_architecture(raw)}


def _os_release_facts(raw: bytes, _warnings: list[str]) -> dict[str, Any]:
    values = parse_os_release(raw)
    version = values.get("VERSION") or values.get("VERSION_ID")
    found = {
        "os": values.get("PRETTY_NAME") or " ".join(filter(None, (values.get("NAME"), version))),
        "os_id": values.get("ID"),
        "os_version": values.get("VERSION_ID"),
    }
    if not found["os"]:
        raise ValueError("names no operating system")
    return {key: value for key, value in found.items() if value}


def _environment_facts(raw: bytes, warnings: list[str]) -> dict[str, Any]:
    values, ignored = parse_environment(raw)
    if ignored:
        warnings.append(f"environment: {ignored} lines are no assignments and were ignored")
    asking = [name for name, value in values.items() if _FILLED_IN.search(value)]
    if asking:
        warnings.append(
            f"environment: {', '.join(asking[:10])}: Enroot fills in ${{NAME}} from the environment of whoever starts "
            "the image; here ${PATH} was a usual one and all else stayed text"
        )
    return {"environment": values}


def _start_script_facts(raw: bytes, _warnings: list[str]) -> dict[str, Any]:
    script = parse_start_script(raw)
    facts: dict[str, Any] = {
        "entrypoint": list(script.entrypoint) or None,
        "command": list(script.command) or None,
        "working_directory": script.working_directory,
        "labels": script.labels,
    }
    return facts if script.provenance is None else {**facts, "provenance": script.provenance}


def _oci_config_facts(raw: bytes, _warnings: list[str]) -> dict[str, Any]:
    return parse_description(raw)


def _dpkg_facts(raw: bytes, _warnings: list[str]) -> dict[str, Any]:
    if not re.fullmatch(rb"[0-9]{1,9}", raw.strip()):
        raise ValueError("not a number")
    return {"debian_packages": int(raw)}


_FILLED_IN = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_READERS: dict[str, Callable[[bytes, list[str]], dict[str, Any]]] = {
    "superblock": _superblock_facts,
    "elf": _elf_facts,
    "os-release": _os_release_facts,
    "environment": _environment_facts,
    "rc": _start_script_facts,
    "oci-config": _oci_config_facts,  # after rc: the labels as they are, not as comments of a script
    "dpkg-count": _dpkg_facts,
}
_OPTIONAL = frozenset({"dpkg-count", "oci-config"})
