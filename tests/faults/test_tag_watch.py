# SPDX-License-Identifier: Apache-2.0
"""`dags_examples/on_new_tag.py` on a whole Airflow: a tag of a private registry moves, and the triggerer restarts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import images as images_module
from tests.cluster import multiplatform
from tests.cluster.box import Box
from tests.cluster.polling import wait_until
from tests.cluster.registries import Registries
from tests.cluster.secret_hunt import Hunt
from tests.faults.airflow_stack import CHECKOUT, AirflowStack
from tests.faults.steps import DEPLOYMENT

pytestmark = pytest.mark.slow  # a whole Airflow takes minutes to come up

DAG_ID = "on_new_tag"
REPOSITORY, TAG = "watched/tool", "latest"


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registries]:
    with Registries(tmp_path_factory.mktemp("registries")) as registries:
        yield registries


@pytest.fixture(scope="module")
def push(registries: Registries, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Let the tag stand for an image that holds this text; gives its digest."""

    def move(text: str) -> str:
        target = tmp_path_factory.mktemp("image") / text
        multiplatform.write_image(target, "amd64", text)
        return images_module.push_layout(registries.open.address, target / "layout", REPOSITORY, TAG)

    return move


@pytest.fixture(scope="module")
def stack(
    box_plain: Box, registries: Registries, push: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowStack]:
    push("first")
    address = registries.bearer.address
    fields = {"conn_type": "oci_registry", "host": address, "login": registries.login, "password": registries.password}
    environment = {
        "AIRFLOW_CONN_SLURM_DEFAULT": box_plain.connection_json,
        "AIRFLOW_CONN_PRIVATE": json.dumps(fields | {"extra": {"insecure": True}}),
        "NO_PROXY": "*",
    }
    stack = AirflowStack(tmp_path_factory.mktemp("airflow") / "home", environment, DEPLOYMENT)
    text = (CHECKOUT / "dags_examples" / "on_new_tag.py").read_text()
    for constant, value in (
        ('IMAGE = "vllm/vllm-openai:latest"', f'IMAGE = "{address}/{REPOSITORY}:{TAG}"'),
        ("REGISTRY_CONN_ID: str | None = None", 'REGISTRY_CONN_ID: str | None = "private"'),
        ("poll_interval=300", "poll_interval=1"),
        ('kind="serving"', 'kind="generic", poll_interval=1'),
    ):
        assert text.count(constant) == 1
        text = text.replace(constant, value)
    # A deferred task that goes on while its first process still ends is taken for dead by Airflow, and retried.
    text = text.replace("retry_delay=timedelta(minutes=5)", "retry_delay=timedelta(seconds=1)")
    (stack.home / "dags" / "on_new_tag.py").write_text(text)
    with stack:
        yield stack


def kept(stack: AirflowStack) -> str:
    """What the watcher keeps in the metadata database: in the asset's store, or in a Variable."""
    with sqlite3.connect(f"file:{stack.home}/airflow.db?mode=ro", uri=True, timeout=30) as database:
        tables = {row[0] for row in database.execute("select name from sqlite_master where type = 'table'")}
        table, value = ("asset_state_store", "value") if "asset_state_store" in tables else ("variable", "val")
        rows = database.execute(f"select {value} from {table} where key like 'oci_tag_%'").fetchall()
    return str(rows[0][0]) if rows else ""


def runs(stack: AirflowStack) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stack.get(f"dags/{DAG_ID}/dagRuns?order_by=run_after")["dag_runs"]
    return found


def finished(stack: AirflowStack, number: int) -> bool:
    """Whether there are so many runs and all of them ended."""
    return len(runs(stack)) == number and all(run["state"] in ("success", "failed") for run in runs(stack))


def imported(stack: AirflowStack, run: dict[str, Any]) -> str:
    """Digest that a run imported."""
    path = f"dags/{DAG_ID}/dagRuns/{run['dag_run_id']}/taskInstances/import/xcomEntries/return_value"
    value = stack.get(path)["value"]
    record = json.loads(value) if isinstance(value, str) else value
    return str(record["source"]["oci_digest"])


def test_every_move_of_a_tag_runs_the_dag_once_also_across_restarts_of_the_triggerer(
    stack: AirflowStack, box_plain: Box, registries: Registries, push: Callable[[str], str]
) -> None:
    assert wait_until(lambda: bool(kept(stack)), 120, 0.5), stack.logs()
    assert runs(stack) == []

    second = push("second")
    assert wait_until(lambda: finished(stack, 1), 240, 1), (runs(stack), stack.logs())
    assert imported(stack, runs(stack)[0]) == second

    stack.stop_component("triggerer")
    push("between")
    third = push("third")
    stack.start_component("triggerer")
    assert wait_until(lambda: finished(stack, 2), 240, 1), (runs(stack), stack.logs())
    assert imported(stack, runs(stack)[1]) == third

    stack.stop_component("triggerer")
    stack.start_component("triggerer")
    fourth = push("fourth")
    assert wait_until(lambda: finished(stack, 3), 240, 1), (runs(stack), stack.logs())
    assert imported(stack, runs(stack)[2]) == fourth

    alias: Path = box_plain.workspace / "aliases" / "vllm.sqsh"
    record = json.loads(alias.with_suffix(".json").read_text())
    assert record["source"]["oci_digest"] == record["source"]["platform_digest"] == fourth
    # The password is nowhere: not in the metadata database, not in any log, not on the cluster.
    hunt = Hunt(registries.login, registries.password)
    assert hunt.files(stack.home, box_plain.root) == []
