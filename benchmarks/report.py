# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/performance.md from the results, written between its markers.

python -m benchmarks.report
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.results import ratio, seconds

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
OPERATIONS = {
    "inspect": "inspection of an existing file",
    "cold": "cold import",
    "refresh": "refresh, base layers known",
}
WANTED = {"inspect": "15", "cold": "2", "refresh": "3"}
PHASES = {
    "ours": (
        "verify",
        "claim",
        "space",
        "manifest",
        "import",
        "locate",
        "check",
        "examine",
        "inspect",
        "hash",
        "store",
    ),
    "reference": ("importing_oci", "preparing_sqsh", "verifying_sqsh", "inspecting_image", "inspection_complete"),
}
FLOORS = {
    "read": "read the file once",
    "openssl": "SHA-256 with OpenSSL",
    "sha256sum": "SHA-256 with coreutils",
    "import_cold": "`enroot import`, nothing cached, our squash options",
    "import_warm": "`enroot import`, all layers but the last cached, our squash options",
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def jobs(size: Mapping[str, Any], name: str, part: str = "job") -> list[float]:
    return [run[part] for run in size["measured"].get(name, [])]


def whole(size: Mapping[str, Any], name: str) -> list[float]:
    return [sum(run[part] for part in ("submit", "job", "publish")) for run in size["measured"].get(name, [])]


def label(size: Mapping[str, Any]) -> str:
    return f"{size['sqsh_bytes'] / 1e9:.2f} GB"


def comparison() -> str:
    rows = []
    for size in results.read("side_by_side")["sizes"]:
        for operation, text in OPERATIONS.items():
            theirs, ours = (jobs(size, f"{operation}.{side}") for side in ("reference", "ours"))
            all_theirs, all_ours = (whole(size, f"{operation}.{side}") for side in ("reference", "ours"))
            rows.append(
                [
                    label(size),
                    text,
                    seconds(theirs),
                    seconds(ours),
                    f"**{ratio(theirs, ours):.1f}**",
                    WANTED[operation],
                    f"{ratio(all_theirs, all_ours):.1f}",
                ]
            )
        unchanged = size["measured"]["unchanged.ours"]
        count = sum(run["jobs"] for run in unchanged)
        rows.append(
            [
                label(size),
                "unchanged digest",
                "a cold import",
                f"{seconds([run['whole'] for run in unchanged])}, {count} jobs",
                "-",
                "no job",
                f"{ratio(whole(size, 'cold.reference'), [run['whole'] for run in unchanged]):.0f}",
            ]
        )
    head = ["file", "what", "reference, s", "ours, s", "ratio", "wanted", "ratio, all told"]
    return table(head, rows)


def floor() -> str:
    sizes = results.read("side_by_side")["sizes"]
    rows = [[text, *(seconds(size["measured"][f"floor.{name}"]) for size in sizes)] for name, text in FLOORS.items()]
    return table(["floor, s", *map(label, sizes)], rows)


def _phases(side: str, operation: str) -> str:
    """Medians; the rest of the job is Slurm's start of it, and what comes before the first phase and after the last."""
    sizes = results.read("side_by_side")["sizes"]
    rows: list[list[str]] = []
    runs = [size["measured"][f"{operation}.{side}"] for size in sizes]
    for name in PHASES[side]:
        spent = [statistics.median(run["phases"].get(name, 0.0) for run in size) for size in runs]
        if any(spent):
            rows.append([name, *(f"{value:.2f}" for value in spent)])
    rest = [statistics.median(run["job"] - _named(run, side) for run in size) for size in runs]
    rows.append(["the rest", *(f"{value:.2f}" for value in rest)])
    return table([f"{OPERATIONS[operation]}, {side}, s", *map(label, sizes)], rows)


def _named(run: Mapping[str, Any], side: str) -> float:
    return float(sum(spent for name, spent in run["phases"].items() if name in PHASES[side]))


def phases() -> str:
    parts = [_phases(side, operation) for operation in ("inspect", "cold") for side in ("ours", "reference")]
    return "\n\n".join(parts)


def images() -> str:
    document = results.read("side_by_side")
    rows = [
        [
            label(size),
            str(size["image"]["layers"]),
            f"{size['image']['layer_bytes'] / 1e9:.2f} GB",
            f"{size['image']['top_bytes'] / 1e9:.3f} GB",
            str(size["image"]["files"]),
            str(len(size["measured"]["cold.ours"])),
            f"{size['load']['least']}–{size['load']['most']}",
        ]
        for size in document["sizes"]
    ]
    return table(["file", "layers", "packed", "last layer", "files in data layers", "repetitions", "load"], rows)


def machine() -> str:
    rows = []
    for name in ("side_by_side", "squash_options", "moving", "task_cost", "control_plane"):
        document = results.read(name)
        found, versions = document["machine"], document["versions"]
        rows.append(
            [
                f"`{name}`",
                document["date"],
                f"{found['processor']}, {found['cores']} cores, {found['memory_gib']} GiB, Linux {found['kernel']}",
                ", ".join(f"{key} {value}" for key, value in sorted(versions.items())),
            ]
        )
    return table(["result", "date", "machine", "versions"], rows)


def squash_options() -> str:
    document = results.read("squash_options")
    rows = [
        [
            f"`{name}`",
            f"{statistics.median(found['bytes']) / 1e6:.0f}",
            seconds(found["import"]),
            seconds(found["start"]),
            seconds(found["read"]),
        ]
        for name, found in document["options"].items()
    ]
    return table(["squash options", "size, MB", "import, s", "start, s", "read a quarter, s"], rows)


def moving() -> str:
    rows = []
    for name, runs in results.read("moving")["ways"].items():
        spent = [[run["phases"].get(phase, 0.0) for run in runs] for phase in ("import", "hash", "store")]
        rows.append([name, seconds([run["job"] for run in runs]), *map(seconds, spent)])
    return table(["way", "job, s", "import, s", "rest of the hash (and copy), s", "store, s"], rows)


def task_cost() -> str:
    document = results.read("task_cost")
    rows = []
    for part in ("execute", "trigger", "resume"):
        runs = [run[part] for run in document["tasks"]]
        count = ("connections", "commands", "bytes_to_cluster", "bytes_from_cluster")
        middle = [statistics.median(run[name] for run in runs if run[name] is not None) for name in count]
        rows.append(
            [
                part,
                seconds([run["processor"] for run in runs]),
                seconds([run["wall"] for run in runs]),
                *(f"{value:.0f}" for value in middle[:2]),
                *(f"{value / 1000:.0f}" for value in middle[2:]),
            ]
        )
    rows.append(["import of Airflow and its SSH provider", seconds(document["import"]["airflow"]), *["-"] * 5])
    rows.append(["the same and our operators", seconds(document["import"]["with operator"]), *["-"] * 5])
    head = ["part of the task", "processor, s", "wall, s", "connections", "commands", "kB to cluster", "kB back"]
    return table(head, rows)


def control_plane() -> str:
    rows = [
        [
            str(row["tasks"]),
            str(row["connections"]),
            str(row["commands"]),
            f"{row['minutes']:.1f}",
            f"{row['commands'] / row['minutes']:.1f}",
            f"{row['seconds_per_look']:.2f}",
            f"{row['bytes_asked'] / 1024:.0f}",
        ]
        for row in results.read("control_plane")["rows"]
    ]
    head = ["waiting tasks", "SSH connections", "commands", "minutes", "commands a minute", "s per look", "KiB asked"]
    return table(head, rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "comparison": comparison,
    "images": images,
    "floor": floor,
    "phases": phases,
    "squash options": squash_options,
    "moving": moving,
    "task cost": task_cost,
    "control plane": control_plane,
    "machine": machine,
}


def main() -> int:
    page = PAGE.read_text()
    for name, make in TABLES.items():
        block = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        try:
            text = make()
        except FileNotFoundError as err:
            text = f"Not measured yet: {Path(err.filename).name} is not among the results."
        page, count = block.subn(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{PAGE.name} has {count} places for table '{name}'")
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
