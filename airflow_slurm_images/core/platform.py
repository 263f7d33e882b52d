# SPDX-License-Identifier: Apache-2.0
"""Platforms: one spelling for what OCI, ``uname -m`` and people call an architecture.

OCI takes Go's names (``GOARCH``; image specification 1.1, ``image-index.md``); nodes and Enroot take ``uname
-m`` names. Defaults of variants follow containerd's ``platforms`` package: ``arm64`` is ``v8``, ``amd64`` is
``v1`` and ``arm`` is ``v7`` unless said otherwise, so that the plain name and the explicit default are one
platform.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_slurm_images.core.errors import InvalidRequestError

_NAMES: dict[str, tuple[str, str | None]] = {
    "x86_64": ("amd64", None), "x86-64": ("amd64", None), "amd64": ("amd64", None),
    "aarch64": ("arm64", None), "arm64": ("arm64", None), "armv8": ("arm64", None), "armv8l": ("arm", "v8"),
    "arm": ("arm", None), "armhf": ("arm", "v7"), "armv7": ("arm", "v7"), "armv7l": ("arm", "v7"),
    "armel": ("arm", "v6"), "armv6": ("arm", "v6"), "armv6l": ("arm", "v6"), "armv5": ("arm", "v5"),
    "armv5tel": ("arm", "v5"),
    "i386": ("386", None), "i486": ("386", None), "i586": ("386", None), "i686": ("386", None),
    "loongarch64": ("loong64", None), "mips64el": ("mips64le", None),
}  # fmt: skip
_DEFAULT_VARIANT = {"amd64": "v1", "arm64": "v8", "arm": "v7"}
_WORD = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")


@dataclass(frozen=True, order=True)
class Platform:
    """Operating system, architecture and variant in OCI names; make it with :meth:`of`.

    >>> str(Platform.of("x86_64")), str(Platform.of("aarch64", variant="v8")), str(Platform.of("armv6l"))
    ('linux/amd64', 'linux/arm64', 'linux/arm/v6')
    """

    os: str
    architecture: str
    variant: str | None = None
    """``None`` also for the architecture's default variant."""

    @classmethod
    def of(cls, architecture: str, *, os: str = "linux", variant: str | None = None) -> Platform:
        """Normalise names; an architecture nobody listed here is kept as it is, in lower case."""
        lower = architecture.strip().lower()
        name, implied = _NAMES.get(lower, (lower, None))
        chosen = (variant or "").strip().lower() or implied
        if chosen and chosen.isdigit():  # "7" and "v7" are both seen
            chosen = f"v{chosen}"
        return cls(os.strip().lower(), name, None if chosen == _DEFAULT_VARIANT.get(name) else chosen)

    @classmethod
    def requested(cls, architecture: str, *, os: str = "linux", variant: str | None = None) -> Platform:
        """The same for an author's input; raises InvalidRequestError where a part is no plain word."""
        for part, value in (("arch", architecture), ("os", os), ("variant", variant or "v1")):
            if not isinstance(value, str) or not _WORD.fullmatch(value.strip().lower()):
                raise InvalidRequestError(
                    f"{part} {str(value)[:40]!a} names no platform",
                    remedy="use names such as amd64 or x86_64, arm64 or aarch64; os linux; variant v7",
                    details={"part": part},
                )
        return cls.of(architecture, os=os, variant=variant)

    @classmethod
    def stated(cls, architecture: str | None, os: str | None, variant: str | None) -> Platform | None:
        """The same for what a document of a registry says; ``None`` where it says no plain words (or ``unknown``)."""
        words = [part.strip().lower() for part in (architecture or "unknown", os or "linux", variant or "v1")]
        if words[0] == "unknown" or not all(_WORD.fullmatch(word) for word in words):
            return None
        return cls.of(words[0], os=words[1], variant=variant)

    def fits(self, other: Platform) -> bool:
        """Same operating system and architecture, whatever the variant."""
        return (self.os, self.architecture) == (other.os, other.architecture)

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)
