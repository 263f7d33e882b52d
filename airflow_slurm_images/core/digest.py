# SPDX-License-Identifier: Apache-2.0
"""Digests of OCI content: SHA-256 of the bytes as served (OCI image specification 1.1, ``descriptor.md``)."""

from __future__ import annotations

import hashlib
import re

from airflow_slurm_images.core.errors import IntegrityError, RegistryResponseError

_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


def sha256_digest(content: bytes) -> str:
    """``sha256:<hex>`` of the bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def verify(content: bytes, digest: str, what: str) -> None:
    """Compare bytes with the digest they were asked for by.

    Raises IntegrityError, or RegistryResponseError for an algorithm other than SHA-256.
    """
    require_sha256(digest, what)
    actual = sha256_digest(content)
    if actual != digest:
        raise IntegrityError(
            f"{what} should be {digest}, but the bytes received are {actual}",
            remedy="a proxy, mirror or damaged registry serves other bytes than asked for; do not use them",
            details={"expected": digest, "actual": actual, "size_bytes": len(content)},
        )


def is_sha256(digest: str) -> bool:
    """Whether the text is ``sha256:`` and 64 lower-case hex characters."""
    return _SHA256.fullmatch(digest) is not None


def require_sha256(digest: str, what: str) -> None:
    """Raise RegistryResponseError for another algorithm or no digest at all; ask before using it in a URL."""
    if not is_sha256(digest):
        raise RegistryResponseError(f"{what} has the digest {digest[:100]!a}; only sha256 digests are supported")
