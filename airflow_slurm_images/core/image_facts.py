# SPDX-License-Identifier: Apache-2.0
"""Facts about an image: from bytes the job read out of the ``.sqsh``, and from the inspector's file.

Everything here comes from an untrusted image. :func:`static_facts` never raises: what cannot be read is left
out and named under ``warnings``. :func:`read_inspector_facts` is strict and raises ``ValueError``. What was
read from outside is never replaced by what a program inside the image said (:func:`image_section`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
FACTS_LIMIT = 1024 * 1024
"""Bytes of the inspector's file; a larger one is refused."""
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True)
class InspectorFacts:
    """A valid facts file: ``inspection`` and ``image``, or ``error`` alone."""

    kind: str | None
    inspector_version: str | None
    inspection: dict[str, Any] | None
    image: dict[str, Any]
    error: tuple[str, str] | None
    """(code, message) of an inspection that could not be made."""


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
            facts.update(reader(raw, warnings))
        except ValueError as error:
            warnings.append(f"{name}: {error}")
    facts["warnings"] = warnings
    return facts


def read_inspector_facts(raw: bytes, kind: str) -> InspectorFacts:
    """Return the inspector's file after checking its form and the rules that hold across values.

    Types and lengths of the values under ``inspection`` are checked by the records that take them. Raises
    ValueError for what is too large, not JSON, nested or repeated in odd ways, of another version or kind, or
    lists distributions that are not canonical, unique and sorted.
    """
    document = _load(raw)
    if document.get("facts_version") != 1 or document["facts_version"] is True:
        raise ValueError("the facts file has an unknown version")
    if "error" in document:
        return InspectorFacts(None, None, None, {}, _error(document["error"]))
    inspection, image = document.get("inspection"), document.get("image")
    if not isinstance(inspection, dict) or not isinstance(image, dict):
        raise ValueError("the facts file has no inspection and image")
    if document.get("kind") != kind or inspection.get("kind") != kind:
        raise ValueError(f"the facts file is not of kind {kind}")
    version = document.get("inspector_version")
    if not isinstance(version, str):
        raise ValueError("the facts file does not tell its inspector's version")
    _check_distributions(inspection.get("distributions", []))
    return InspectorFacts(kind, version, inspection, image, None)


def image_section(static: Mapping[str, Any], inspected: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the ``image`` part of a record: static facts, the inspector's beside them, warnings joined."""
    inspected = inspected or {}
    warnings = inspected.get("warnings", [])
    texts = [text for text in warnings if isinstance(text, str)] if isinstance(warnings, list) else []
    return {**inspected, **static, "warnings": [*static.get("warnings", []), *texts]}


def _load(raw: bytes) -> dict[str, Any]:
    if len(raw) > FACTS_LIMIT:
        raise ValueError(f"the facts file has {len(raw)} bytes, over the limit of {FACTS_LIMIT}")
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # a lone surrogate is no text
    except RecursionError:
        raise ValueError("the facts file is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("the facts file is not a JSON object")
    return document


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("the facts file has a key twice")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"the facts file holds {name}")


def _error(value: object) -> tuple[str, str]:
    code, message = (value.get("code"), value.get("message")) if isinstance(value, dict) else (None, None)
    if not isinstance(code, str) or not isinstance(message, str):
        raise ValueError("the error in the facts file has no code and message")
    return code[:64], message[:4096]


def _check_distributions(distributions: object) -> None:
    entries = distributions if isinstance(distributions, list) else [None]
    names = [str(entry.get("name")) if isinstance(entry, dict) else "" for entry in entries]
    if not all(_NAME.fullmatch(name) for name in names):
        raise ValueError("a distribution in the facts file has no canonical name")
    if names != sorted(set(names)):
        raise ValueError("the distributions in the facts file are not unique and sorted")


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
