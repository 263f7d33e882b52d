# SPDX-License-Identifier: Apache-2.0
"""What an image's manifest and config say about it, as ``cluster/manifest.sh`` reduced and bounded them.

Their bytes were compared with the pinned digest before the import; that proves who wrote the values, not that they
are sensible, so types and sizes are checked here. Source: OCI image specification 1.1, ``config.md``.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from airflow_slurm_images.core.fields import OciDigest

_Text = Annotated[str, StringConstraints(max_length=4096)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _Layer(_Model):
    digest: OciDigest
    size_bytes: int | None = Field(None, ge=0)
    media_type: _Text | None = None


class _Description(_Model):
    created: _Text | None = None
    user: _Text | None = None
    labels: dict[str, _Text] = Field(default_factory=dict, max_length=256)
    volumes: list[_Text] = Field(default_factory=list, max_length=64)
    exposed_ports: list[_Text] = Field(default_factory=list, max_length=64)
    layers: list[_Layer] = Field(default_factory=list, max_length=256)


def parse_description(raw: bytes) -> dict[str, Any]:
    """Return ``created``, ``user``, ``labels``, ``volumes``, ``exposed_ports`` and ``layers`` (digest, size, type).

    ``layers`` stand in the order of the manifest, the base first. Raises ValueError for anything else.
    """
    try:
        return _Description.model_validate_json(raw).model_dump(mode="json")
    except ValidationError as err:
        fault = err.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise ValueError(f"{place}: {fault['msg']}" if place else str(fault["msg"])) from None
