"""The grammar of image references: docker://[USER@][REGISTRY#]IMAGE[:TAG][@DIGEST]."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .console import fail

HUB = "registry-1.docker.io"

_USER = r"(?:(?P<user>[\w.!~*'()%;:&=+$,\-./<>?@]+?)@)??"
_END = r"(?::(?P<tag>[A-Za-z0-9._:-]+?))??(?:@(?P<digest>sha256:[A-Za-z0-9]+))?"
_IMAGE = r"(?P<image>[a-z0-9/._-]+)"
_FORMS = tuple(
    re.compile(f"docker://{_USER}{form}{_END}")
    for form in (rf"(?P<first>[^/#@]+)/{_IMAGE}", r"(?P<image>[^/@#:]+)", rf"(?P<registry>[^#/@]+)#{_IMAGE}")
)


@dataclass(frozen=True)
class Source:
    user: str
    registry: str
    image: str
    tag: str

    @property
    def host(self) -> str:
        """Credentials are looked up without the port."""
        return self.registry.rpartition(":")[0] or self.registry

    @property
    def default_filename(self) -> str:
        image = self.image.removeprefix("library/") if self.registry == HUB else self.image
        return f"{image.replace('/', '+')}+{self.tag}.sqsh"


def credentials_file() -> Path:
    return Path(os.environ["ENROOT_CONFIG_PATH"]) / ".credentials"


def credentials_lines() -> list[str]:
    """An unreadable or missing file is one without entries."""
    try:
        return credentials_file().read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _known_user(host: str) -> str:
    """The login of the first line for this host, so that an entry alone makes an import log in."""
    pattern = re.compile(rf"\s*machine\s+{re.escape(host)}\s+login\s+.+")
    for line in credentials_lines():
        if pattern.match(line):
            return line.split()[3]
    return ""


def _place(match: re.Match[str]) -> tuple[str, str]:
    """Registry and image. docker.io is taken literally, as in every release up to 4.1.2."""
    found = match.groupdict()
    image = found["image"]
    if found.get("registry"):
        return found["registry"], image
    first = found.get("first")
    if first is None:
        return HUB, f"library/{image}"
    return (first, image) if re.search(r"[.:]", first) else (HUB, f"{first}/{image}")


def parse(uri: str) -> Source:
    match = next(filter(None, (form.fullmatch(uri) for form in _FORMS)), None)
    if match is None:
        fail(f"Invalid image reference: {uri}")
    registry, image = _place(match)
    tag = match["digest"] or match["tag"] or "latest"
    bare = Source("", registry, image, tag)
    return Source(match["user"] or _known_user(bare.host), registry, image, tag)
