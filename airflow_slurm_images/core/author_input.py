# SPDX-License-Identifier: Apache-2.0
"""Reading what authors write, or what a template made of it: "true" is True. Strict records come after this."""

from __future__ import annotations

from typing import Any

from airflow_slurm_images.core.errors import InvalidRequestError

_WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off", "", "none"), False),
}


def flag(field: str, value: Any) -> bool:
    """True or false, as a value or as a word; nothing is false. Raises InvalidRequestError that names ``field``."""
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise InvalidRequestError(
            f"Invalid request: {field} must be true or false, got {str(value)[:40]!a}",
            remedy=f"Write true or false for {field}.",
        )
    return _WORDS[word]
