# SPDX-License-Identifier: Apache-2.0
"""The inspector's file, read strictly: it was written by a program inside an untrusted image.

Only the keys that ``cluster/inspect_image.py`` writes are taken, each with its type; what else stands there is left
out, as it would travel on into XCom.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from airflow_slurm_images.core.fields import Fact, Version1

FACTS_LIMIT = 1024 * 1024
"""Bytes of the inspector's file; a larger one is refused."""
MAX_DISTRIBUTIONS = 20_000
MAX_LISTED = 500
"""Entries the inspector keeps of each list that an image could inflate; the last warnings say what it left out."""

_Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]{0,4200}$")]
_FullVersion = Annotated[
    str, StringConstraints(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}(\.[0-9]{1,9})?[A-Za-z0-9.+_-]{0,64}$")
]


@dataclass(frozen=True)
class InspectorFacts:
    """A valid facts file."""

    inspector_version: str
    inspection: dict[str, Any]
    """Of the kind that was asked for; the records check the rest of it."""
    image: dict[str, Any]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _Distribution(_Model):
    name: Fact
    version: Fact


class _Shadowed(_Distribution):
    path: _Text


class _Unreadable(_Model):
    directory: _Text
    path: _Text
    reason: _Text


class _Editable(_Model):
    name: Fact
    source: _Text


class _Image(_Model):
    """What the inspector knows besides the value under ``inspection``."""

    python_executable: _Text | None = None
    python_executable_resolved: _Text | None = None
    python_implementation: _Text | None = None
    python_version: _FullVersion | None = None
    python_abi: _Text | None = None
    python_prefix: _Text | None = None
    python_base_prefix: _Text | None = None
    python_path_env: _Text | None = None
    machine: _Text | None = None
    libc: _Text | None = None
    installer: _Text | None = None
    path_executable: _Text | None = None
    distributions: list[_Distribution] = Field(default_factory=list, max_length=MAX_DISTRIBUTIONS)
    shadowed_distributions: list[_Shadowed] = Field(default_factory=list, max_length=MAX_LISTED)
    unreadable_distributions: list[_Unreadable] = Field(default_factory=list, max_length=MAX_LISTED)
    editable_distributions: list[_Editable] = Field(default_factory=list, max_length=MAX_LISTED)
    warnings: list[_Text] = Field(default_factory=list, max_length=MAX_LISTED + 10)


class _Document(_Model):
    model_config = ConfigDict(extra="forbid")

    facts_version: Version1
    inspector_version: Fact
    kind: str
    inspection: dict[str, Any]
    image: _Image


def read_inspector_facts(raw: bytes, kind: str) -> InspectorFacts:
    """Return the inspector's file after checking its form, its kind and everything under ``image``.

    Raises ValueError for what is too large, not JSON, nested or repeated in odd ways, or of another version or kind.
    """
    try:
        document = _Document.model_validate_json(json.dumps(_load(raw)))
    except ValidationError as err:
        fault = err.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}") from None
    if document.kind != kind or document.inspection.get("kind") != kind:
        raise ValueError(f"the facts file is not of kind {kind}")
    image = document.image.model_dump(mode="json", exclude_unset=True)
    return InspectorFacts(document.inspector_version, document.inspection, image)


def _load(raw: bytes) -> dict[str, Any]:
    if len(raw) > FACTS_LIMIT:
        raise ValueError(f"the facts file has {len(raw)} bytes, over the limit of {FACTS_LIMIT}")
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
        # Strict on the way back: a lone surrogate is no text, 1e999 no number.
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8")
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
