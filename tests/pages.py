# SPDX-License-Identifier: Apache-2.0
"""Reading the project's own pages, for the tests that compare them with the code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Row:
    """One row of a table; `words` are those its first cell has in code font."""

    cells: list[str]

    @property
    def words(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.cells[0])


def page(name: str) -> str:
    return (ROOT / name).read_text()


def section(name: str, title: str) -> str:
    """What stands below a heading of the second level, up to the next one."""
    _, found, text = page(name).partition(f"\n## {title}\n")
    assert found, f"{name} has no section '{title}'"
    return text.partition("\n## ")[0]


def rows(text: str) -> list[Row]:
    """The rows of all tables, without their heads."""
    lines = text.splitlines()
    rules = {index for index, line in enumerate(lines) if re.fullmatch(r"[|: -]*--[|: -]*", line)}
    heads = {index - 1 for index in rules}
    body = [line for index, line in enumerate(lines) if line.startswith("|") and index not in rules | heads]
    return [Row([cell.strip() for cell in line.strip("|").split("|")]) for line in body]


def defaults_told(text: str) -> dict[str, str | None]:
    """Parameter -> default of a table; None where the cell gives no value in code font, but words."""
    told: dict[str, str | None] = {}
    for row in rows(text):
        value = re.fullmatch(r"`([^`]+)`|(required)", row.cells[1])
        told |= dict.fromkeys(row.words, (value[1] or value[2]) if value else None)
    return told
