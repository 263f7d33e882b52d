# SPDX-License-Identifier: Apache-2.0
"""What the pages promise to be complete is compared with the code; links lead somewhere, snippets stand alone."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from airflow_slurm_images.core import failures
from airflow_slurm_images.core.errors import JobFailedError
from airflow_slurm_images.core.evidence import VerdictKind
from airflow_slurm_images.core.failures import Failure
from airflow_slurm_images.core.profile import ENVIRONMENT_NAMES, ClusterProfile
from airflow_slurm_images.core.states import STATE_ADVICE
from tests.pages import PAGES, ROOT, Row, defaults_told, page, rows, section

PACKAGE = ROOT / "airflow_slurm_images"


# --- the reasons of a failure


def reason_rows() -> dict[str, Row]:
    table = rows(section("docs/troubleshooting.md", "When the job failed"))
    return {word: row for row in table for word in row.words}


def reasons_written_in(source: Path) -> Iterator[str]:
    """Every word that the module passes on as a `reason`, by keyword, by position, by default or in a dict."""
    tree = ast.parse(source.read_text())
    positions = dict(positions_of_reason(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else None
            at = positions.get(name or "")
            given = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
            given += node.args[at : at + 1] if at is not None else []
        elif isinstance(node, ast.Dict):
            given = [value for key, value in zip(node.keys, node.values, strict=True) if is_reason(key)]
        elif isinstance(node, ast.arguments):
            options = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            given = [value for option, value in options if option.arg == "reason" and value is not None]
        else:
            continue
        texts = [text.value for text in given if isinstance(text, ast.Constant) and isinstance(text.value, str)]
        yield from (text for text in texts if re.fullmatch(r"[a-z_]+", text))


def positions_of_reason(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args]
        elif isinstance(node, ast.ClassDef):
            names = [str(getattr(field.target, "id", "")) for field in node.body if isinstance(field, ast.AnnAssign)]
        if "reason" in names:
            yield getattr(node, "name", ""), names.index("reason")


def is_reason(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value == "reason"


def reasons_of_the_code() -> set[str]:
    # Runs in the image: its `reason` is a file that cannot be read.
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "inspect_image.py"]
    found = {reason for module in modules for reason in reasons_written_in(module)}
    found |= {state.value.lower() for state in STATE_ADVICE}
    # A job that is stuck has Slurm's own reason.
    return found | set(get_args(VerdictKind)) - {"wait", "succeeded", "failed", "stuck"}


def test_every_reason_has_a_row_and_every_row_a_reason() -> None:
    found = reasons_of_the_code()
    assert {"distributions_missing", "submission_unknown", "no_space", "layer_mismatch"} <= found
    assert set(reason_rows()) == found


def known_failures() -> list[Failure]:
    patterns = (*failures.NODE_PATTERNS, *failures.REGISTRY_PATTERNS)
    advised = [
        Failure(state.value.lower(), advice.message, advice.remedy, retryable=advice.retryable)
        for state, advice in STATE_ADVICE.items()
    ]
    odd = [failures.explain(status, "import", {}) for status in (1, 137)]
    return [*failures.EXIT_CODES.values(), *(pattern.failure for pattern in patterns), *advised, *odd]


@pytest.mark.parametrize("failure", known_failures(), ids=lambda failure: failure.reason)
def test_the_table_says_whether_a_retry_is_made(failure: Failure) -> None:
    made = failure.retryable if issubclass(failure.error, JobFailedError) else failure.error.retryable
    assert reason_rows()[failure.reason].cells[1] == ("yes" if made else "no")


# --- the profile


def test_every_profile_field_is_told_with_its_default() -> None:
    fields = {
        name: "required" if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in ClusterProfile.model_fields.items()
    }
    assert defaults_told(section("docs/cluster-setup.md", "The profile")) == {
        name: str(value).lower() if isinstance(value, bool) else str(value) if value not in (None, (), {}) else None
        for name, value in fields.items()
    }


def test_every_variable_of_the_jobs_environment_is_told() -> None:
    told = re.findall(r"`(\w+)`", section("docs/cluster-setup.md", "The job's environment"))
    assert set(told) >= ENVIRONMENT_NAMES


# --- links and snippets


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page(name)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), f"{name}: {target}"
        if anchor:
            assert anchor in anchors(file.read_text()), f"{name}: {target}"


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def snippets() -> list[tuple[str, str]]:
    return [(name, text) for name in PAGES for text in re.findall(r"^```python\n(.*?)^```", page(name), re.S | re.M)]


@pytest.mark.parametrize(("name", "text"), snippets(), ids=[f"{name}-{i}" for i, (name, _) in enumerate(snippets())])
def test_a_snippet_imports_what_it_uses(name: str, text: str) -> None:
    nodes = list(ast.walk(ast.parse(text)))
    known = set(dir(builtins))
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            known |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert used <= known, f"{name} uses without import: {used - known}"
