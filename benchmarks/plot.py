# SPDX-License-Identifier: Apache-2.0
"""docs/performance.svg from the results of benchmarks.side_by_side.

python -m benchmarks.plot
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks import results
from benchmarks.report import jobs

TARGET = Path(__file__).parents[1] / "docs" / "performance.svg"
REFERENCE, OURS, FLOOR, OTHER = "#b2552f", "#1f5fa8", "#8a8a8a", "#c4c4c4"
PARTS = ("import", "check", "examine", "inspect", "hash", "store")

Size = Mapping[str, Any]


def job(name: str) -> Callable[[Size], list[float]]:
    return lambda size: jobs(size, name)


def floor(name: str) -> Callable[[Size], list[float]]:
    return lambda size: list(size["measured"][f"floor.{name}"])


def phase(name: str) -> Callable[[Size], list[float]]:
    return lambda size: [run["phases"].get(name, 0.0) for run in size["measured"]["cold.ours"]]


PANELS: Mapping[str, Mapping[str, tuple[str, Callable[[Size], list[float]]]]] = {
    "Inspection of an existing file": {
        "reference": (REFERENCE, job("inspect.reference")),
        "ours": (OURS, job("inspect.ours")),
        "floor: one hash (OpenSSL)": (FLOOR, floor("openssl")),
        "floor: one read": (OTHER, floor("read")),
    },
    "Cold import": {
        "reference": (REFERENCE, job("cold.reference")),
        "ours": (OURS, job("cold.ours")),
        "floor: Enroot alone": (FLOOR, floor("import_cold")),
    },
    "Refresh, base layers known": {
        "reference": (REFERENCE, job("refresh.reference")),
        "ours": (OURS, job("refresh.ours")),
        "floor: Enroot alone": (FLOOR, floor("import_warm")),
    },
    "Parts of our cold import": {name: (f"C{number}", phase(name)) for number, name in enumerate(PARTS)},
}


def draw(
    axes: Axes, title: str, lines: Mapping[str, tuple[str, Callable[[Size], list[float]]]], sizes: list[Size]
) -> None:
    across = [size["sqsh_bytes"] / 1e9 for size in sizes]
    for name, (colour, values) in lines.items():
        found = [values(size) for size in sizes]
        middle = [statistics.median(each) for each in found]
        below = [value - min(each) for value, each in zip(middle, found, strict=True)]
        above = [max(each) - value for value, each in zip(middle, found, strict=True)]
        axes.errorbar(
            across, middle, yerr=[below, above], color=colour, marker="o", markersize=4, capsize=3, label=name
        )
    axes.set(title=title, xscale="log", yscale="log", xlabel="size of the file, GB", ylabel="seconds")
    axes.set_xticks(across, [f"{value:.2g}" for value in across])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(color="#e4e4e4")
    axes.legend(fontsize=8, frameon=False)


def main() -> int:
    mpl.rcParams.update({"svg.hashsalt": "performance", "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 10})
    sizes = results.read("side_by_side")["sizes"]
    figure = Figure(figsize=(10, 8), layout="constrained")
    grid = figure.subplots(2, 2)
    for axes, (title, lines) in zip(grid.flat, PANELS.items(), strict=True):
        draw(axes, title, lines, sizes)
    figure.savefig(TARGET, metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
