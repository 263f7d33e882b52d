# SPDX-License-Identifier: Apache-2.0
"""docs/operators.md and the docstrings of the public classes name what their constructors take."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from airflow_slurm_images.core import errors
from airflow_slurm_images.core.errors import JobFailedError, RegistryError, SlurmImagesError
from airflow_slurm_images.hooks.registry import OciRegistryHook
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.hooks.ssh_exchange import ClusterAccessError
from airflow_slurm_images.operators.base import ImageJobOperator
from airflow_slurm_images.operators.images import (
    ImagePruneOperator,
    ImageVerifyOperator,
    OciImportOperator,
    OciResolveOperator,
    SqshInspectOperator,
)
from airflow_slurm_images.sensors.images import SlurmJobSensor
from airflow_slurm_images.triggers.images import SlurmJobTrigger
from airflow_slurm_images.triggers.registry import OciTagTrigger
from tests.pages import defaults_told, rows, section

PAGE = "docs/operators.md"
TASKS: list[type] = [
    *(OciImportOperator, SqshInspectOperator, SlurmJobSensor),
    *(OciResolveOperator, ImagePruneOperator, ImageVerifyOperator),
]
OTHERS: list[type] = [SlurmHook, OciRegistryHook, SlurmJobTrigger, OciTagTrigger]
FIRST = {"name", "kind"}
"""Parameters of the common base that each operator takes in its own way."""


def parameters(kind: type) -> dict[str, Any]:
    """Parameter -> default, as the class itself declares them; of an import also the common ones."""
    named = {
        name: parameter.default
        for name, parameter in inspect.signature(kind.__init__).parameters.items()  # type: ignore[misc]
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    if kind is OciImportOperator:
        common = parameters(ImageJobOperator)
        named |= {name: default for name, default in common.items() if name not in FIRST}
    return named


def shown(default: Any) -> str | None:
    if default is inspect.Parameter.empty:
        return "required"
    return None if default in (None, ()) else str(default)


@pytest.mark.parametrize("kind", TASKS)
def test_the_page_tells_every_parameter_with_its_default(kind: type) -> None:
    told = defaults_told(section(PAGE, kind.__name__).partition("\n### ")[0])
    assert told == {name: shown(default) for name, default in parameters(kind).items()}


@pytest.mark.parametrize("kind", TASKS)
def test_the_page_tells_what_is_templated(kind: Any) -> None:
    text = section(PAGE, kind.__name__).partition("\n### ")[0]
    everything = "ll are templated" in text or "ll parameters are templated" in text
    own = parameters(kind)
    fields = {"dry_run" if field == "rehearse" else field for field in kind.template_fields}
    told = {word for row in rows(text) if everything or row.cells[2].endswith("Templated") for word in row.words}
    assert told == fields & set(own)


@pytest.mark.parametrize("kind", [*TASKS, *OTHERS])
def test_a_class_documents_every_parameter(kind: type) -> None:
    text = inspect.getdoc(kind) or ""
    missing = {name for name in parameters(kind) if f":param {name}:" not in text}
    assert not missing - {"kwargs"}


def kinds_of_errors() -> list[type[SlurmImagesError]]:
    abstract = (SlurmImagesError, RegistryError)
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SlurmImagesError)]
    return [*(kind for kind in found if kind not in abstract), ClusterAccessError]


@pytest.mark.parametrize("kind", kinds_of_errors())
def test_the_page_tells_every_error_and_whether_it_is_retried(kind: type[SlurmImagesError]) -> None:
    table = {word: row for row in rows(section(PAGE, "Errors")) for word in row.words if word.endswith("Error")}
    retried = "if it can help" if kind is JobFailedError else "yes" if kind.retryable else "no"
    assert table[kind.__name__].cells[1] == retried
