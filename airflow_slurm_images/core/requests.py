# SPDX-License-Identifier: Apache-2.0
"""What an author asked for: an import of a pinned image, or the inspection of a file that is there.

Author input is read leniently once, by the ``build_*`` functions, after Airflow rendered the templates; the
resulting records are strict and frozen and go into the plan as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from airflow_slurm_images.core.author_input import flag
from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.fields import AliasName, Architecture, DistributionRequirement, SafePath
from airflow_slurm_images.core.profile import invalid_input
from airflow_slurm_images.core.reference import ImageReference

Kind = Literal["client", "serving", "generic"]

OCI_ARCHITECTURES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}
"""OCI names that Enroot does not take ("Unsupported architecture: arm64"); it wants the names of ``uname -m``."""


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    kind: Kind
    required_distributions: tuple[DistributionRequirement, ...] = ()

    @model_validator(mode="after")
    def _requirements_need_python(self) -> _Request:
        if self.required_distributions and self.kind == "generic":
            raise ValueError("required_distributions needs kind 'client' or 'serving': 'generic' lists no packages")
        return self


class ImportRequest(_Request):
    """Import ``image`` (canonical pinned reference) and publish it under the alias ``name``."""

    operation: Literal["import_oci"] = "import_oci"
    image: str
    name: AliasName
    arch: Architecture | None = None
    insecure: bool = False
    """Plain HTTP for this registry, because its connection says so."""

    @model_validator(mode="after")
    def _image_is_canonical(self) -> ImportRequest:
        if str(ImageReference.parse(self.image)) != self.image:
            raise ValueError("image is not in its canonical form")
        return self

    @property
    def reference(self) -> ImageReference:
        """The parsed reference."""
        return ImageReference.parse(self.image)


class InspectRequest(_Request):
    """Inspect the ``.sqsh`` at ``path``; with ``name`` an alias points at it afterwards."""

    operation: Literal["inspect_sqsh"] = "inspect_sqsh"
    path: SafePath
    name: AliasName | None = None
    copy_to_store: bool = False

    @model_validator(mode="after")
    def _copy_needs_a_name(self) -> InspectRequest:
        if self.copy_to_store and self.name is None:
            raise ValueError("copy_to_store=True needs a name: a store file without an alias would be pruned")
        return self


_R = TypeVar("_R", bound=BaseModel)
Request = Annotated[ImportRequest | InspectRequest, Field(discriminator="operation")]


def build_import(
    *, image: Any, name: Any, kind: Any, arch: Any = None, required_distributions: Any = (), insecure: bool = False
) -> ImportRequest:
    """Build the request of an import from rendered author input.

    Raises :class:`InvalidRequestError` that names the field, the value, the rule and the remedy.
    """
    reference = ImageReference.parse(_text("image", image))
    wanted = _text("arch", arch) if arch not in (None, "") else None
    return _build(
        ImportRequest,
        image=str(reference),
        name=_text("name", name),
        kind=_text("kind", kind),
        arch=OCI_ARCHITECTURES.get(wanted, wanted) if wanted else None,
        required_distributions=_texts("required_distributions", required_distributions),
        insecure=insecure,
    )


def build_inspect(
    *, path: Any, name: Any, kind: Any, copy_to_store: Any = False, required_distributions: Any = ()
) -> InspectRequest:
    """Build the request of an inspection from rendered author input; raises :class:`InvalidRequestError`."""
    return _build(
        InspectRequest,
        path=_text("path", path),
        name=_text("name", name) if name not in (None, "") else None,
        kind=_text("kind", kind),
        copy_to_store=flag("copy_to_store", copy_to_store),
        required_distributions=_texts("required_distributions", required_distributions),
    )


def _build(model: type[_R], **values: Any) -> _R:
    try:
        return model(**values)
    except ValidationError as err:
        raise invalid_input("request", err) from err


def _text(field: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidRequestError(
            f"Invalid request: {field} must be text, got {value!r}", remedy=f"Pass {field} as a string."
        )
    return str(value).strip() if field != "image" else str(value)


def _texts(field: str, value: Any) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return tuple(line.strip() for line in value.splitlines() if line.strip())
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return tuple(_text(field, item) for item in value)
    raise InvalidRequestError(
        f"Invalid request: {field} must be a list of texts, got {value!r}", remedy=f"Pass {field} as a list."
    )
