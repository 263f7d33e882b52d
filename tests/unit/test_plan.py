# SPDX-License-Identifier: Apache-2.0
"""A plan is refused when anything in it was changed, and names the same work for every try."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from airflow_slurm_images import __version__
from airflow_slurm_images.core.errors import IntegrityError, InvalidRequestError, OtherVersionError
from airflow_slurm_images.core.plan import LifecyclePlan, canonical_digest, request_digest, run_key
from airflow_slurm_images.core.profile import ClusterProfile

from . import records

PLANS = [
    records.plan(records.import_request(required_distributions=["torch>=2", "numpy"], arch="arm64")),
    records.plan(records.inspect_request(name="copy", copy_to_store=True)),
]
Path = tuple[str | int, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a JSON tree, containers too."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from leaves(child, (*path, key))


def at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def replaced(tree: Any, path: Path, value: Any) -> Any:
    tree = copy.deepcopy(tree)
    at(tree, path[:-1])[path[-1]] = value
    return tree


def changes(value: Any) -> list[Any]:
    """Other values of the same type and of every other type."""
    others: list[Any] = [None, True, False, 0, 1, 7.5, "x", "", [], {}, [value], {"a": value}, str(value)]
    if isinstance(value, bool):
        others.append(not value)
    elif isinstance(value, int):
        others += [value + 1, float(value)]
    elif isinstance(value, str):
        others += [value + "0", value[:-1], value.upper(), f"{value}/", f" {value}", value + "\n"]
    return [other for other in others if json.dumps(other) != json.dumps(value)]


def refused(tree: Any) -> None:
    with pytest.raises(IntegrityError, match="not valid") as caught:
        LifecyclePlan.load(json.dumps(tree))
    assert caught.value.remedy


EVERY_PLACE = [(number, path) for number, plan in enumerate(PLANS) for path in leaves(json.loads(plan.to_json()))]


@pytest.mark.parametrize(
    ("number", "path"), EVERY_PLACE, ids=[f"{number}-{'.'.join(map(str, path))}" for number, path in EVERY_PLACE]
)
def test_every_changed_or_missing_field_is_refused(number: int, path: Path) -> None:
    tree = json.loads(PLANS[number].to_json())
    for value in changes(at(tree, path)):
        refused(replaced(tree, path, value))
    without = copy.deepcopy(tree)
    del at(without, path[:-1])[path[-1]]
    refused(without)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_value_of_any_kind_is_taken_for_another(data: st.DataObject) -> None:
    number, path = data.draw(st.sampled_from(EVERY_PLACE))
    tree = json.loads(PLANS[number].to_json())
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
    value = data.draw(st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=4))
    if json.dumps(value) != json.dumps(at(tree, path)):
        refused(replaced(tree, path, value))


@pytest.mark.parametrize("plan", PLANS)
def test_an_unknown_field_anywhere_is_refused(plan: LifecyclePlan) -> None:
    tree = json.loads(plan.to_json())
    for place in ((), ("request",), ("profile",)):
        changed = copy.deepcopy(tree)
        at(changed, place)["added"] = None
        refused(changed)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '"x"', b"\xff\xfe", "{}", "[" * 5000])
def test_what_is_no_plan_at_all_is_refused(text: str | bytes) -> None:
    with pytest.raises(IntegrityError):
        LifecyclePlan.load(text)


def test_a_plan_whose_digest_was_made_to_fit_must_still_derive() -> None:
    for name, value in (
        ("store_directory", "/elsewhere"),
        ("attempt_directory", "/ws/users/ann/runs/other"),
        ("cache_directory", "/tmp"),
        ("job_name", "asi-" + "0" * 32),
        ("source_digest", None),
        ("request_digest", "0" * 64),
        ("package_files", {}),
    ):
        tree = {**json.loads(PLANS[0].to_json()), name: value}
        del tree["plan_digest"]
        refused({**tree, "plan_digest": canonical_digest(tree)})


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_reads_back_and_cannot_be_changed(plan: LifecyclePlan) -> None:
    assert LifecyclePlan.load(plan.to_json()) == plan
    with pytest.raises(ValidationError):
        plan.token = "0" * 32  # type: ignore[misc]
    assert plan.attempt_directory == f"/ws/users/ann/runs/{plan.run_key}/{plan.attempt}"


# --- two versions of the package, one plan

FILES = {"job.sh": "1" * 64, "of_tomorrow.sh": "2" * 64}
PROFILE_OF_YESTERDAY = {key: value for key, value in json.loads(PLANS[0].to_json())["profile"].items() if key != "qos"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"package_files": FILES},
        {"profile": json.loads(records.plan().to_json())["profile"] | {"record_wait": 60}},
        {"profile": PROFILE_OF_YESTERDAY, "request_digest": "3" * 64},
    ],
    ids=["the same", "other files", "another profile", "a setting less"],
)
def test_a_sound_plan_of_another_version_counts(fields: dict[str, Any]) -> None:
    if "profile" in fields and "request_digest" not in fields:
        fields = {**fields, "request_digest": "4" * 64}
    plan = LifecyclePlan.load(records.plan_of_version("0.0.9", **fields))
    assert (plan.package_version, plan.token) == ("0.0.9", records.TOKEN)


def test_the_work_of_another_versions_plan_is_judged_by_what_this_one_makes_of_it() -> None:
    written = records.plan_of_version("0.0.9", profile=PROFILE_OF_YESTERDAY, request_digest="3" * 64)
    plan = LifecyclePlan.load(written)
    assert plan.asks(records.plan().request_digest)
    assert not plan.asks(records.plan(records.import_request(kind="serving")).request_digest)
    assert not plan.asks("3" * 64)


@pytest.mark.parametrize(
    "fields",
    [{"of_tomorrow": 1}, {"schema_version": 2}, {"token": "of another form"}, {"package_files": ["job.sh"]}],
    ids=lambda fields: next(iter(fields)),
)
def test_a_sound_plan_that_only_its_version_can_read_is_no_damage(fields: dict[str, Any]) -> None:
    with pytest.raises(OtherVersionError, match=r"planned by version 9\.0\.0") as caught:
        LifecyclePlan.load(records.plan_of_version("9.0.0", **fields))
    assert caught.value.retryable
    assert caught.value.remedy


def test_a_changed_plan_of_another_version_is_damage() -> None:
    written = json.loads(records.plan_of_version("9.0.0"))
    refused({**written, "token": "0" * 32})
    refused({**written, "of_tomorrow": 1})


def test_a_plan_of_this_version_names_exactly_its_files() -> None:
    with pytest.raises(IntegrityError, match="package_files"):
        LifecyclePlan.load(records.plan_of_version(__version__, package_files=FILES))


@pytest.mark.parametrize("key", ["token", "workspace_root", "job.sh"])
def test_a_key_that_stands_twice_is_refused(key: str) -> None:
    text = PLANS[0].to_json()
    line = next(line for line in text.splitlines() if line.strip().startswith(f'"{key}"'))
    with pytest.raises(IntegrityError, match="twice"):
        LifecyclePlan.load(text.replace(line, f"{line.rstrip(',')},\n{line}", 1))


@pytest.mark.parametrize("values", [{"workspace": "/my workspace"}, {"workspace": "ws"}, {"login": "a b"}])
def test_names_of_the_cluster_that_cannot_stand_in_a_plan_are_an_invalid_request(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        records.plan(**values)
    assert next(iter(values)) in caught.value.message


def test_the_run_key_is_of_the_task_and_not_of_the_request() -> None:
    parts = ("deployment", "dag", "task", "manual__2024", -1)
    key = run_key(*parts)
    assert key == run_key(*parts)
    assert len(key) == 32
    others = [
        run_key("other", *parts[1:]),
        run_key(parts[0], "other", *parts[2:]),
        run_key(*parts[:2], "other", *parts[3:]),
        run_key(*parts[:3], "other", -1),
        run_key(*parts[:4], 0),
        run_key("deployment", "dag", "task", "manual__2024-1", -1),
    ]
    assert len({key, *others}) == 7


def test_parts_of_a_run_key_cannot_flow_into_each_other() -> None:
    assert run_key("d", "a.b", "c", "r", 0) != run_key("d", "a", "b.c", "r", 0)
    assert run_key("d", 'a","b', "c", "r", 0) != run_key("d", "a", 'b","c', "r", 0)


def test_the_request_digest_changes_with_request_and_profile() -> None:
    profile = ClusterProfile.from_author(records.PROFILE)
    digests = {
        request_digest(records.import_request(), profile),
        request_digest(records.import_request(kind="serving"), profile),
        request_digest(records.import_request(name="other"), profile),
        request_digest(records.inspect_request(), profile),
        request_digest(records.import_request(), ClusterProfile.from_author({**records.PROFILE, "memory": "1G"})),
    }
    assert len(digests) == 5
