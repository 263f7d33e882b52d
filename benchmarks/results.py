# SPDX-License-Identifier: Apache-2.0
"""Result files: JSON below benchmarks/results, which tables and plot are made from."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).with_name("results")


def write(name: str, document: Mapping[str, Any], directory: Path = DIRECTORY) -> None:
    """Replace a result at once, so that a run that is cut off leaves what it had."""
    directory.mkdir(exist_ok=True)
    draft = directory / f".{name}.json"
    draft.write_text(json.dumps(document, indent=1) + "\n")
    draft.rename(directory / f"{name}.json")


def read(name: str, directory: Path = DIRECTORY) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / f"{name}.json").read_text())
    return found


def seconds(values: Sequence[float]) -> str:
    """Median, and the extremes where there is more than one value."""
    if not values:
        return "-"
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    text = f"{middle:.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):.{digits}f}–{max(values):.{digits}f})"
    return text


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Quotient of the medians: both were measured in turn, in one run."""
    return statistics.median(above) / statistics.median(below)
