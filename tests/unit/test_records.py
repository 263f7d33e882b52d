# SPDX-License-Identifier: Apache-2.0
"""Records are refused where what they say cannot be true, whoever wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from airflow_slurm_images.core import image_record
from airflow_slurm_images.core.author_input import flag
from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.records import ClientInspection, ImageRecord

from . import records


def inspection(names: list[str], **values: Any) -> ClientInspection:
    given: dict[str, Any] = {
        "kind": "client",
        "python_implementation": "CPython",
        "python_version": "3.12.1",
        "python_abi": "cp312",
        "distributions": tuple({"name": name, "version": "1"} for name in names),
        "installer_path": "/usr/bin/pip",
        "installer_version": "24.0",
    }
    return ClientInspection(**{**given, **values})


def test_distributions_are_canonical_unique_and_sorted() -> None:
    assert len(inspection(["a", "b-c", "z"]).distributions) == 3
    for names in (["b", "a"], ["a", "a"], ["A"], ["b_c"], ["b.c"], ["b--c"]):
        with pytest.raises(ValidationError, match=r"canonical|unique and sorted"):
            inspection(names)


@pytest.mark.parametrize("text", ["", "a\n", "a\0", "\x1b[2J", "a" * 1025])
@pytest.mark.parametrize("key", ["python_implementation", "python_abi", "installer_version", "distributions"])
def test_what_an_image_says_is_one_short_line(key: str, text: str) -> None:
    value = ({"name": "a", "version": text},) if key == "distributions" else text
    with pytest.raises(ValidationError):
        inspection([], **{key: value})


@pytest.mark.parametrize(
    "value",
    [{"__type": "a.B", "__var": {}}, {"x": [{"__classname__": "a.B"}]}, {"x": float("inf")}, {"x": "\0"}, {"\0": 1}],
    ids=str,
)
@pytest.mark.parametrize("key", ["image", "of_another_tool"])
def test_a_record_holds_nothing_that_airflow_or_a_database_would_stumble_over(key: str, value: Any) -> None:
    plan = records.plan(records.import_request(kind="generic"))
    good = image_record.assemble(plan, records.completion(), None, {}).model_dump(mode="json")
    assert ImageRecord.model_validate_json(json.dumps(good | {"of_another_tool": {"x": 1}}))
    with pytest.raises(ValidationError, match=r"in a record|finite|NUL"):
        ImageRecord.model_validate_json(json.dumps(good | {key: value}))


@pytest.mark.parametrize(
    "path", ["pip", "/usr//bin/pip", "/usr/bin/../pip", "/usr/bin/pip/", "//usr/bin/pip", "/./pip"]
)
def test_a_recorded_path_is_absolute_and_normalised(path: str) -> None:
    with pytest.raises(ValidationError):
        inspection([], installer_path=path)
    with pytest.raises(ValidationError):
        records.handle(run_directory=path)


def test_a_file_stands_in_the_record_of_a_good_job_and_only_there() -> None:
    assert records.completion().sqsh is not None
    assert records.failed_completion(78).sqsh is None
    for values in ({"sqsh": None}, {"exit_status": 1}):
        with pytest.raises(ValidationError, match="exit_status 0"):
            records.completion(**values)


@pytest.mark.parametrize(
    ("value", "meaning"),
    [(True, True), ("Yes", True), ("on", True), (1, True), ("", False), (None, False), ("0", False)],
)
def test_a_flag_may_be_a_word(value: Any, meaning: bool) -> None:
    assert flag("copy_to_store", value) is meaning


def test_what_is_no_flag_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="copy_to_store must be true or false"):
        flag("copy_to_store", "maybe")
