# SPDX-License-Identifier: Apache-2.0
"""Field types shared by the records: what a digest, an alias, a path or a token may look like.

Paths end up in shell words, in Enroot's mount fields (split at ``:`` and ``,``) and inside a quoted word of
Enroot's own mount helper, so their alphabet is small on purpose.
"""

from __future__ import annotations

import math
import posixpath
import re
from typing import Annotated, Any

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, Field, StringConstraints

ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Whole name of an alias; a cluster's name has the same alphabet, so that both fit into an asset's URI."""
MAX_PATH = 1024
_PATH = re.compile(r"/[A-Za-z0-9._/+@%=~-]*")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")


def _safe_path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("the path must be absolute")
    if len(value) > MAX_PATH:
        raise ValueError(f"the path is longer than {MAX_PATH} characters")
    if not _PATH.fullmatch(value):
        raise ValueError("the path may hold only letters, digits and . _ / + @ % = ~ -")
    if ".." in value.split("/"):
        raise ValueError("the path must not hold '..'")
    return posixpath.normpath(value).replace("//", "/")


def _normal(value: str) -> str:
    if posixpath.normpath(value) != value or value.startswith("//"):
        raise ValueError("the path is not normalised")
    return value


def plain_json(value: Any) -> Any:
    """Return ``value`` where every reader of a record can keep it as it is, else raise ValueError.

    Refused: numbers that are not finite (no JSON), NUL (PostgreSQL's JSON has none), and keys that begin with two
    underscores, which Airflow's XCom takes for orders to build an object of a class that they name.
    """
    if isinstance(value, str) and "\0" in value:
        raise ValueError("text must not hold NUL")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number must be finite")
    if isinstance(value, dict):
        for key, item in value.items():
            if reserved_key(key):
                raise ValueError(f"the key {key[:80]!r} has a meaning for Airflow and must not stand in a record")
            plain_json(key)
            plain_json(item)
    if isinstance(value, list | tuple):
        for item in value:
            plain_json(item)
    return value


def reserved_key(key: str) -> bool:
    """Tell whether a key of a JSON object has a meaning for Airflow's serialisation."""
    return key.startswith("__")


def slurm_time(text: str) -> str | None:
    """The time in a small file that the login node wrote, None where it was not written whole."""
    return text.strip() if _TIME.fullmatch(text.strip()) else None


def whole_number(text: str) -> int | None:
    """The number a text holds, None where it holds anything else or more than a file's size could be.

    >>> [whole_number(text) for text in ("12", "", "-1", "\N{SUPERSCRIPT TWO}", "9" * 5000)]
    [12, None, None, None, None]
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _requirement(value: str) -> str:
    try:
        requirement = Requirement(value)
    except InvalidRequirement as err:
        raise ValueError(f"{value!r} is not a PEP 508 requirement such as 'torch>=2.4'") from err
    if requirement.url is not None or requirement.extras:
        raise ValueError(f"{value!r}: a direct URL or extras cannot be checked in an image; name and version can")
    return str(requirement)


SafePath = Annotated[str, AfterValidator(_safe_path)]
"""Absolute POSIX path without ``..`` and without characters that a shell or Enroot would take apart."""

RecordedPath = Annotated[str, AfterValidator(_normal), AfterValidator(_safe_path)]
"""The same where it was written by us: it is normalised already."""

ImagePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f\x7f]{0,4095}$"), AfterValidator(_normal)]
"""Absolute, normalised path inside an image."""

AliasName = Annotated[str, StringConstraints(pattern=rf"^{ALIAS.pattern}$")]
"""Alias of a published image: starts with a letter or digit, at most 128 characters."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
OciDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Hex16 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
ClusterName = Annotated[str, StringConstraints(pattern=rf"^{ALIAS.pattern}$")]
LoginName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}\$?$")]
GroupName = LoginName
Architecture = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,32}$")]
HostPort = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]+(:[0-9]{1,5})?$")]
SquashOptions = Annotated[str, StringConstraints(pattern=r"^(-[A-Za-z]|[A-Za-z0-9])[A-Za-z0-9 ._=+-]{0,510}$|^$")]
DistributionRequirement = Annotated[str, AfterValidator(_requirement)]
PythonVersion = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$")]
SlurmTime = Annotated[str, StringConstraints(pattern=rf"^{_TIME.pattern}$")]
"""Local time of the cluster, as Slurm takes it for a start bound."""
Version1 = Annotated[int, Field(ge=1, le=1)]
"""Not ``Literal[1]``, which takes ``true``."""
NonEmpty = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Fact = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,1024}$")]
"""One line that came out of an image."""
PlainJson = Annotated[dict[str, Any], AfterValidator(plain_json)]
