# SPDX-License-Identifier: Apache-2.0
"""OCI documents, read from bytes: media types, indexes, manifests, configs, and the choice of one platform.

Sources: OCI image specification 1.1 (``image-index.md``, ``manifest.md``, ``config.md``, ``media-types.md``)
and the distribution project's "Image Manifest Version 2, Schema 2". Both say the same with other media types.

A digest is the hash of the *bytes* as served; nothing here re-serialises a document. What a document is
follows from its own ``mediaType``, which the digest covers; the ``Content-Type`` header, which nothing
covers, only helps documents that carry none, and must not contradict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_slurm_images.core.digest import require_sha256
from airflow_slurm_images.core.errors import RegistryNotFoundError, RegistryResponseError
from airflow_slurm_images.core.platform import Platform

MAX_DOCUMENT = 4 * 1024 * 1024
"""Bytes of the largest index, manifest or config read: the limit the distribution specification advises."""

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"

ACCEPT = ", ".join((OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST))
"""Sent with every manifest request: distribution 2.8 answers 404 for OCI documents without it [measured]."""

_KINDS: Mapping[str, Literal["index", "image"]] = {
    OCI_INDEX: "index",
    DOCKER_LIST: "index",
    OCI_MANIFEST: "image",
    DOCKER_MANIFEST: "image",
}
_PLATFORMS_SHOWN = 50
_SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1+"
_LAYER = re.compile(r"application/vnd\.(oci\.image\.layer\.(nondistributable\.)?v1|docker\.image\.rootfs)\.")
_ATTESTATION = "vnd.docker.reference.type"  # BuildKit's provenance and SBOM entries in an index


@dataclass(frozen=True, kw_only=True)
class ResolvedImage:
    """What a tag or digest stood for when asked, for one platform. All bytes behind it were hashed."""

    reference: str
    """``registry/repository[:tag]@<platform_digest>``: what to import."""
    registry: str
    repository: str
    tag: str | None
    index_digest: str | None
    """``sha256:<hex>`` of the multi-platform index, ``None`` where the tag names one image directly."""
    platform_digest: str
    """``sha256:<hex>`` of the manifest of the chosen platform."""
    media_type: str
    """Media type of that manifest."""
    platform: str
    """``os/architecture[/variant]`` in OCI names, such as ``linux/amd64``."""
    size: int
    """Bytes of all layers as the registry stores them (compressed): what a first import downloads."""

    def to_json(self) -> dict[str, str | int | None]:
        """Plain JSON, as pushed to XCom."""
        return asdict(self)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class _RawPlatform(_Model):
    os: str | None = None
    architecture: str | None = None
    variant: str | None = None

    @property
    def platform(self) -> Platform | None:
        return Platform.stated(self.architecture, self.os, self.variant)


class Descriptor(_Model):
    """A pointer to content: media type, digest and size in bytes, for index entries with platform."""

    media_type: str = Field("", alias="mediaType")
    digest: str
    size: int = Field(ge=0, lt=2**63)
    raw_platform: _RawPlatform | None = Field(None, alias="platform")
    annotations: dict[str, str] | None = None

    @property
    def platform(self) -> Platform | None:
        """The platform the index states; ``None`` where it states none (or ``unknown/unknown``)."""
        return self.raw_platform.platform if self.raw_platform else None


class ImageIndex(_Model):
    """A multi-platform index (OCI index or Docker manifest list)."""

    media_type: str
    entries: tuple[Descriptor, ...]


class ImageManifest(_Model):
    """The manifest of one image of one platform."""

    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def size(self) -> int:
        """Bytes of all layers, compressed."""
        return sum(layer.size for layer in self.layers)


class _Document(_Model):
    schema_version: int | None = Field(None, alias="schemaVersion")
    media_type: str | None = Field(None, alias="mediaType")
    artifact_type: str | None = Field(None, alias="artifactType")
    manifests: tuple[Descriptor, ...] | None = None
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] | None = None
    fs_layers: Any = Field(None, alias="fsLayers")


_M = TypeVar("_M", bound=_Model)


def parse_manifest(content: bytes, content_type: str = "") -> ImageIndex | ImageManifest:
    """Read the bytes of an index or manifest; ``content_type`` is the response header's value.

    Raises RegistryResponseError for schema 1, artifacts that are no images, and what is no manifest at all.
    """
    refuse_schema_1(content_type)
    header = _plain(content_type)
    document = _load(_Document, content, "manifest", header)
    if document.schema_version == 1 or document.fs_layers is not None:
        refuse_schema_1(_SCHEMA_1)
    media_type = document.media_type or (header if header in _KINDS else _by_shape(document, header))
    kind = _KINDS.get(media_type)
    if kind is None:
        _refuse_artifact(media_type)
    if document.manifests is not None and (document.config is not None or document.layers is not None):
        raise RegistryResponseError(
            "the document is an index and an image at once; clients would disagree about it (CVE-2021-41190)"
        )
    if _KINDS.get(header, kind) != kind:
        raise RegistryResponseError(f"the document calls itself {media_type}, the registry calls it {header}")
    return _as_index(document, media_type) if kind == "index" else _as_image(document, media_type)


def choose(index: ImageIndex, wanted: Platform) -> Descriptor:
    """The entry of the index for the wanted platform; it is named by a sha256 digest, whatever else an index may say.

    Without a wanted variant the usual one of the architecture is taken, or the only one there is. Among
    several entries of one platform the first counts, as for other clients. A lone entry without a platform is
    returned too: its config tells. Raises RegistryNotFoundError, listing what is there, RegistryResponseError for
    an entry with another digest or none.
    """
    entry = _entry_for(index, wanted)
    require_sha256(entry.digest, f"the index's image for {wanted}")
    return entry


def _entry_for(index: ImageIndex, wanted: Platform) -> Descriptor:
    named = [(entry.platform, entry) for entry in index.entries if not _is_attestation(entry)]
    fitting = [(platform, entry) for platform, entry in named if platform and platform.fits(wanted)]
    exact = [entry for platform, entry in fitting if platform.variant == wanted.variant]
    if exact:
        return exact[0]
    if wanted.variant is None and len({platform for platform, _ in fitting}) == 1:
        return fitting[0][1]
    if len(named) == 1 and named[0][1].raw_platform is None:
        return named[0][1]
    there = sorted({str(platform) for platform, _ in named if platform})[:_PLATFORMS_SHOWN]
    there = there or ["none that states its platform"]
    if wanted.variant is None and fitting:
        problem, remedy = f"{wanted} comes in several variants", "name the variant"
    else:
        problem, remedy = f"there is no image for {wanted}", "ask for one of these platforms or another tag"
    raise RegistryNotFoundError(
        f"{problem}; the index holds {', '.join(there)}", remedy=remedy, details={"platforms": there}
    )


def config_platform(content: bytes) -> Platform:
    """The platform an image's own config states. Raises RegistryResponseError where it states none."""
    stated = _load(_RawPlatform, content, "image config", "")
    if stated.platform is None:
        raise RegistryResponseError(
            "the image's config names no architecture, so nothing tells which nodes it runs on",
            remedy="build it with a current tool, or push it as part of an index",
        )
    return stated.platform


def check_platform(stated: Platform, wanted: Platform, *, from_index: bool) -> None:
    """Refuse an image whose own config speaks of another platform than wanted."""
    variant_differs = wanted.variant and stated.variant and stated.variant != wanted.variant
    if stated.fits(wanted) and (from_index or not variant_differs):
        return
    if from_index:
        raise RegistryResponseError(
            f"the index says {wanted}, the image's own config says {stated}",
            remedy="the image was put together wrongly; build its index again",
        )
    raise RegistryNotFoundError(
        f"there is no image for {wanted}; this is a single image for {stated}",
        remedy="ask for its platform, or for a tag that has yours",
        details={"platforms": [str(stated)]},
    )


def _as_index(document: _Document, media_type: str) -> ImageIndex:
    if document.manifests is None:
        raise RegistryResponseError("the index has no list of manifests")
    return ImageIndex(media_type=media_type, entries=document.manifests)


def _as_image(document: _Document, media_type: str) -> ImageManifest:
    if document.config is None or document.layers is None:
        raise RegistryResponseError("the manifest has no config or no layers")
    if document.config.media_type not in (OCI_CONFIG, DOCKER_CONFIG):
        _refuse_artifact(document.artifact_type or document.config.media_type)
    _check_layers(document.layers)
    return ImageManifest(media_type=media_type, config=document.config, layers=document.layers)


def _check_layers(layers: Iterable[Descriptor]) -> None:
    """Signatures and attestations carry an image's config type; only their layers tell."""
    types = [layer.media_type for layer in layers]
    for media_type in types:
        if not _LAYER.match(media_type):
            _refuse_artifact(media_type)
        if media_type.endswith("+encrypted"):
            raise RegistryResponseError("the image's layers are encrypted; Enroot cannot read them")
    if not types:
        raise RegistryResponseError("the image has no layers, so there is nothing to import")


def refuse_schema_1(content_type: str) -> None:
    """Raise RegistryResponseError for schema 1. Its digest is not that of its bytes: look before hashing."""
    if _plain(content_type).startswith(_SCHEMA_1):
        raise RegistryResponseError(
            "the image is in Docker's schema 1 format, which is no longer supported",
            remedy="push it again with a current tool, for example `skopeo copy --format v2s2`",
        )


def _plain(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_attestation(entry: Descriptor) -> bool:
    """Also an entry for ``unknown``, which no node is, and an index in the index."""
    unknown = entry.raw_platform is not None and entry.raw_platform.architecture == "unknown"
    return unknown or _ATTESTATION in (entry.annotations or {}) or _KINDS.get(entry.media_type, "image") != "image"


def _by_shape(document: _Document, header: str) -> str:
    """OCI leaves ``mediaType`` out of older documents, and some registries send ``application/json``."""
    if document.manifests is not None:
        return OCI_INDEX
    if document.config is not None:
        return OCI_MANIFEST
    raise RegistryResponseError(f"the answer (sent as {header[:100]!a}) is JSON but no manifest")


def _load(model: type[_M], content: bytes, what: str, header: str) -> _M:
    try:
        return model.model_validate_json(content)
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False)[0]
        place = ascii(".".join(str(part) for part in first["loc"])[:200])[1:-1]
        sent = f" (sent as {header[:100]!a})" if header else ""
        problem = f"{place}: {first['msg']}" if place else str(first["msg"])
        raise RegistryResponseError(
            f"the answer is no {what}{sent}: {problem}",
            remedy="check that the host is a container registry, not a web page or a login portal in between",
        ) from err


def _refuse_artifact(media_type: str) -> NoReturn:
    raise RegistryResponseError(
        f"this is no container image but an artifact of type {media_type[:120]!a}",
        remedy="name the repository and tag of the image itself, not of its chart, signature or attestation",
    )
