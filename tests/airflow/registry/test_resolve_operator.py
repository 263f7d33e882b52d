# SPDX-License-Identifier: Apache-2.0
"""OciResolveOperator against the real registry."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_slurm_images.core.errors import (
    RegistryNotFoundError,
    RegistryUnavailableError,
)
from airflow_slurm_images.operators.resolve import OciResolveOperator
from tests.cluster.misbehaving_registry import MisbehavingRegistry
from tests.cluster.registries import Registries


class Ti(SimpleNamespace):
    """As much of a task instance as the operator uses; `before` are the values of all indexes in the run before."""

    before: list[Any] | None = None

    def xcom_pull(self, **asked: Any) -> Any:
        if asked.get("run_id") == "before":
            assert asked == {"task_ids": ["r"], "run_id": "before"}
            return self.before
        assert asked["map_indexes"] == self.map_index and asked["include_prior_dates"]
        if isinstance(self.previous, Exception):
            raise self.previous
        return self.previous

    def get_previous_dagrun(self) -> Any:
        return None if self.before is None else SimpleNamespace(run_id="before")

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def run(operator: OciResolveOperator, previous: Any = None, **mapped: Any) -> tuple[str, dict[str, Any]]:
    ti = Ti(**{"previous": previous, "pushed": {}, "map_index": -1, **mapped})
    return operator.execute({"ti": ti}), ti.pushed  # type: ignore[typeddict-item]


def test_the_operator_returns_the_pinned_reference_and_pushes_the_rest(registries: Registries, connect: Any) -> None:
    image = f"{registries.open.address}/team/app:oci"
    operator = OciResolveOperator(task_id="r", image=image, registry_conn_id=connect(registries.open))
    reference, pushed = run(operator)
    assert reference.startswith(f"{image}@sha256:")
    assert pushed["resolved"]["platform_digest"] == reference.partition("@")[2]
    assert pushed["resolved"]["index_digest"] and json.dumps(pushed)


OLD = "sha256:" + 64 * "0"


@pytest.fixture
def resolved_before(
    registries: Registries, connect: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> tuple[OciResolveOperator, str, str]:
    """An operator, its image, and what it returned for it; only what it tells from now on is in the log."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(OciResolveOperator, "log", logging.getLogger("resolve"))
    image = f"{registries.open.address}/team/app:oci"
    operator = OciResolveOperator(task_id="r", image=image, registry_conn_id=connect(registries.open))
    same, _ = run(operator)
    caplog.clear()
    return operator, image, same


@pytest.mark.parametrize(
    ("previous", "word"),
    [("{image}@" + OLD, "old " + OLD), ("{same}", "still"), ("other/app:1@" + OLD, " is "), (None, " is "),
     ([1, 2], " is "), (RuntimeError("API server is away"), "cannot look up")],
)  # fmt: skip
def test_a_tag_that_moved_shows_old_and_new(
    resolved_before: tuple[OciResolveOperator, str, str],
    caplog: pytest.LogCaptureFixture,
    previous: Any,
    word: str,
) -> None:
    operator, image, same = resolved_before
    if isinstance(previous, str):
        previous = previous.replace("{image}", image).replace("{same}", same)
    run(operator, previous)
    assert word in caplog.text and same.partition("@")[2] in caplog.text


@pytest.mark.parametrize(
    ("before", "word"),
    [
        (["{image}@" + OLD, "other/app:2@" + OLD], f"old {OLD}"),
        (["other/app:1@" + OLD, "{same}"], "still"),
        (["other/app:1@" + OLD, None, 5], " is "),
        (None, " is "),
    ],
)
def test_an_image_that_stood_elsewhere_in_the_list_is_found_again(
    resolved_before: tuple[OciResolveOperator, str, str],
    caplog: pytest.LogCaptureFixture,
    before: list[Any] | None,
    word: str,
) -> None:
    """An entry was put at the head of the list: at this map index there was another image."""
    operator, image, same = resolved_before
    texts = {"{image}@" + OLD: f"{image}@{OLD}", "{same}": same}
    values = None if before is None else [texts.get(value, value) for value in before]
    run(operator, "other/app:1@" + OLD, map_index=1, before=values)
    assert word in caplog.text and same.partition("@")[2] in caplog.text


def test_what_a_retry_cannot_help_fails_at_once_with_its_cause(registries: Registries, connect: Any) -> None:
    image = f"{registries.open.address}/team/app:nope"
    operator = OciResolveOperator(task_id="r", image=image, registry_conn_id=connect(registries.open))
    with pytest.raises(AirflowFailException, match="unknown tag nope") as caught:
        run(operator)
    assert isinstance(caught.value.__cause__, RegistryNotFoundError)


def test_what_a_retry_may_help_is_left_to_retries(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_slurm_images.hooks._oci_http.time.sleep", lambda _seconds: None)
    with MisbehavingRegistry() as gone:
        address = gone.address
    operator = OciResolveOperator(task_id="r", image=f"{address}/team/app:1.0", registry_conn_id=connect(address))
    with pytest.raises(RegistryUnavailableError):
        run(operator)


def test_nothing_is_read_before_rendering() -> None:
    operator = OciResolveOperator(task_id="r", image="{{ params.image }}", arch="{{ params.arch }}")
    assert set(operator.template_fields) == {"image", "registry_conn_id", "arch", "os", "variant"}
    with pytest.raises(AirflowFailException, match="is refused"):
        run(operator)
