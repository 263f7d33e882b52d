# SPDX-License-Identifier: Apache-2.0
"""The refresh DAGs that users copy, on a registry whose tags move."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.pool import Pool
from airflow.sdk import DAG

from tests.airflow.dag_runs import DagRunner, Run, dag_bag
from tests.airflow.test_example_dags import EXAMPLES, load
from tests.cluster import images as images_module
from tests.cluster import multiplatform
from tests.cluster.box import Box


@pytest.fixture
def registry(box: Box, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of the box's registry, and the connection `box_registry` to it."""
    fields = {"conn_type": "oci_registry", "host": box.registry, "extra": {"insecure": True}}
    monkeypatch.setenv("AIRFLOW_CONN_BOX_REGISTRY", json.dumps(fields))
    monkeypatch.setenv("NO_PROXY", "*")
    return box.registry


@pytest.fixture
def push(registry: str, tmp_path: Path) -> Callable[[str, str], str]:
    """Let a tag (`repository:tag`) stand for an image that holds this text; gives the digest."""

    def move(tag: str, text: str) -> str:
        repository, _, version = tag.partition(":")
        target = tmp_path / f"image-{text}"
        multiplatform.write_image(target, "amd64", text)
        return images_module.push_layout(registry, target / "layout", repository, version)

    return move


def refresh(run_dag: DagRunner, dag: DAG, file: Path, entries: list[dict[str, Any]]) -> Run:
    file.write_text(json.dumps(entries))
    return run_dag(dag, {"file": str(file)})


def entry(registry: str, tag: str, name: str, **more: Any) -> dict[str, Any]:
    return {"image": f"{registry}/{tag}", "name": name, "registry_conn_id": "box_registry", **more}


def test_a_refresh_imports_what_moved_and_runs_no_job_for_what_did_not(
    run_dag: DagRunner, box: Box, registry: str, push: Callable[[str, str], str], tmp_path: Path
) -> None:
    dag = load("refresh_images")
    entries = [entry(registry, "night/a:stable", "night-a"), entry(registry, "night/b:stable", "night-b")]
    digests = [push("night/a:stable", "first"), push("night/b:stable", "second")]
    first = refresh(run_dag, dag, tmp_path / "list.json", entries)
    assert first.xcom("summary") == {"night-a": "imported", "night-b": "imported"}
    assert first.record("refresh.import", 0)["source"]["oci_digest"] == digests[0]
    jobs = len(box.squeue())

    second = refresh(run_dag, dag, tmp_path / "list.json", entries)
    assert second.xcom("summary") == {"night-a": "present", "night-b": "present"}
    assert len(box.squeue()) == jobs

    moved = push("night/b:stable", "third")
    third = refresh(run_dag, dag, tmp_path / "list.json", entries[::-1])  # the list may be put in another order
    assert third.xcom("summary") == {"night-a": "present", "night-b": "imported"}
    assert f"old {digests[1]}, new {moved}" in third.log_of("refresh.resolve", 0)
    rows = [line.split() for line in third.log_of("summary").splitlines() if line.startswith("night-")]
    assert [row[:4] for row in rows] == [
        ["night-b", "imported", f"{registry}/night/b:stable", moved],
        ["night-a", "present", f"{registry}/night/a:stable", digests[0]],
    ]
    alias = box.workspace / "aliases" / "night-b.sqsh"
    assert third.record("refresh.import", 0)["sqsh"]["path"] == str(alias.resolve())


def test_one_image_that_fails_does_not_stop_the_others(
    run_dag: DagRunner, registry: str, push: Callable[[str, str], str], tmp_path: Path
) -> None:
    push("night/c:stable", "other")
    entries = [
        entry(registry, "night/none:stable", "night-none"),
        entry(registry, "night/c:stable", "night-c"),
        entry(registry, "night/c:stable", "night-client", kind="client"),
        entry(registry, "night/c:stable", "night-odd", kind="trainer"),
    ]
    run = refresh(run_dag, load("refresh_images"), tmp_path / "list.json", entries)
    outcomes = run.xcom("summary")
    assert outcomes["night-none"] == "failed: resolve"
    assert outcomes["night-c"] in ("imported", "present")  # one of the two finds what the other one imported
    assert outcomes["night-client"] in ("failed: no_shell", "failed: start_failed")
    assert outcomes["night-odd"] == "failed: InvalidRequestError"  # an error that has no reason
    states = run.states()
    assert states["refresh.resolve[0]"] == "failed" and states["refresh.import[0]"] == "upstream_failed"
    assert states["refresh.import[1]"] == states["summary"] == "success"


def test_an_entry_that_cannot_be_meant_is_said_before_anything_is_asked(run_dag: DagRunner, tmp_path: Path) -> None:
    run = refresh(run_dag, load("refresh_images"), tmp_path / "list.json", [{"image": "a/b:c", "nmae": "b"}])
    assert run.state == "failed" and "missing ['name'], unknown ['nmae']" in run.log
    assert not [task for task in run.states() if task.startswith("refresh.") and "[" in task]


def test_the_list_may_be_a_variable_and_may_be_empty(run_dag: DagRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_SLURM_IMAGES_REFRESH", "[]")
    run = run_dag(load("refresh_images"))
    assert run.xcom("summary") in ({}, None) and run.state == "success"


@pytest.mark.parametrize("own", [None, "slurm_images"])
def test_imports_are_throttled_by_the_pool_that_is_named_and_by_their_number(tmp_path: Path, own: str | None) -> None:
    """As it stands it runs on every Airflow, which has that pool; another one is one word in the copy."""
    shipped = f'POOL = "{Pool.DEFAULT_POOL_NAME}"'
    text = (EXAMPLES / "refresh_images.py").read_text()
    assert text.count(shipped) == 1 and "airflow pools set slurm_images" in text
    copy = tmp_path / "refresh_images.py"
    copy.write_text(text.replace(shipped, f'POOL = "{own}"') if own else text)
    (dag,) = dag_bag(str(copy)).dags.values()
    imports = dag.get_task("refresh.import")
    assert imports.pool == (own or Pool.DEFAULT_POOL_NAME)
    assert imports.max_active_tis_per_dag == 3
    assert dag.get_task("refresh.resolve").max_active_tis_per_dag == 4


def test_two_entries_of_one_name_are_refused(run_dag: DagRunner, tmp_path: Path) -> None:
    """They would move the alias back and forth, every night."""
    names = ["one", "twice", "twice", "other", "thrice", "thrice", "thrice"]
    entries = [{"image": f"a/b:{number}", "name": name} for number, name in enumerate(names)]
    run = refresh(run_dag, load("refresh_images"), tmp_path / "list.json", entries)
    assert run.state == "failed" and "several entries for ['thrice', 'twice']" in run.log
    assert not [task for task in run.states() if task.startswith("refresh.") and "[" in task]


def test_on_new_tag_started_by_hand_imports_what_the_tag_is(
    run_dag: DagRunner, registry: str, push: Callable[[str, str], str]
) -> None:
    dag = load("on_new_tag")
    digest = push("watched/tool:latest", "watched")
    tasks: Any = dag.task_dict
    for name in ("resolve", "import"):
        tasks[name].registry_conn_id = "box_registry"
    tasks["import"].kind = "generic"
    tasks["what_moved"].python_callable.__globals__["IMAGE"] = f"{registry}/watched/tool:latest"
    run = run_dag(dag)
    assert run.states() == {"what_moved": "success", "resolve": "success", "import": "success"}
    assert run.record("import")["source"]["oci_digest"] == digest


@pytest.mark.parametrize(
    ("events", "expected"),
    [([(2, "new"), (1, "old")], "new"), ([(1, "old"), (3, None), (2, "new")], None), ([(1, None), (2, "new")], "new")],
)
def test_of_several_moves_the_newest_is_imported_and_an_event_made_by_hand_means_the_tag(
    events: list[tuple[int, str | None]], expected: str | None
) -> None:
    """A run that waited gets all events since, in no particular order."""
    what_moved: Any = load("on_new_tag").get_task("what_moved")
    payloads = {name: {"image": "i", "old": "o", "new": "n", "reference": f"i@{name}"} for name in ("old", "new")}
    made = [SimpleNamespace(timestamp=time, extra={"payload": payloads[name]} if name else {}) for time, name in events]
    reference = what_moved.python_callable(triggering_asset_events={"tag": made[:1], "again": made[1:]})
    assert reference == (f"i@{expected}" if expected else "vllm/vllm-openai:latest")


def test_on_new_tag_is_watched_by_a_trigger_that_survives_the_database() -> None:
    timetable: Any = load("on_new_tag").timetable
    (asset,) = timetable.asset_condition.objects
    (watcher,) = asset.watchers
    path, arguments = watcher.trigger.serialize()
    assert path == "airflow_slurm_images.triggers.registry.OciTagTrigger"
    assert json.loads(json.dumps(arguments))["image"] == "vllm/vllm-openai:latest"
