# SPDX-License-Identifier: Apache-2.0
"""What is read from Airflow's context: run key, try, generation; lenient author input; errors as Airflow wants them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, BaseOperator

from airflow_slurm_images.core.errors import ClusterUnavailableError, InvalidRequestError
from airflow_slurm_images.task_context import TaskTry, deployment_id, listing, mapping, reported, seconds
from tests.airflow.contexts import task_context
from tests.airflow.dag_runs import DagRunner, Run


@pytest.mark.parametrize(
    ("retries", "try_number", "max_tries", "generation", "is_retry"),
    [
        (0, 1, 0, 1, False),
        (2, 1, 2, 1, False),
        (2, 2, 2, 1, True),
        (2, 3, 2, 1, True),
        # A clear sets max_tries = try_number + retries and the next try is one more.
        (2, 2, 3, 2, False),  # cleared after the first try
        (2, 3, 3, 2, True),
        (2, 4, 5, 4, False),  # cleared after all three tries
        (0, 2, 1, 2, False),
        (0, 3, 2, 3, False),  # cleared again
        # retries changed in the DAG between the tries: never a generation that has not begun
        (0, 1, 2, 1, False),
        (5, 2, 2, 1, True),
    ],
)
def test_the_generation_is_the_first_try_since_the_run_began_or_was_cleared(
    retries: int, try_number: int, max_tries: int, generation: int, is_retry: bool
) -> None:
    found = TaskTry.read(task_context(try_number=try_number, max_tries=max_tries), retries)
    assert (found.number, found.generation, found.is_retry) == (try_number, generation, is_retry)
    assert found.stream == f"try{try_number}"


def test_every_try_shares_the_run_key_and_nothing_else_does() -> None:
    same = {"dag_id": "d", "task_id": "t", "run_id": "r"}

    def key(**change: Any) -> str:
        return TaskTry.read(task_context(**{**same, **change}), 2).run_key

    assert len(key()) == 32
    assert {key(try_number=2, max_tries=2), key(try_number=4, max_tries=5), key(map_index=None)} == {key()}
    others = [key(map_index=0), key(map_index=1), key(run_id="r2"), key(task_id="t2"), key(dag_id="d2")]
    assert len({key(), *others}) == 6


def test_deployments_differ_by_their_setting_else_by_their_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SLURM_IMAGES__DEPLOYMENT_ID", "prod-eu")
    assert deployment_id() == "prod-eu"
    monkeypatch.delenv("AIRFLOW__SLURM_IMAGES__DEPLOYMENT_ID")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://one.example")
    one = deployment_id()
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://two.example")
    assert one.startswith("url-") and one != deployment_id()


class Reader(BaseOperator):
    """Notes what it reads of its tries; fails as often as told."""

    seen: list[tuple[int, int, bool]]

    def __init__(self, *, failures: int, seen: list[tuple[int, int, bool]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.failures = failures
        self.seen = seen

    def execute(self, context: Any) -> None:
        found = TaskTry.read(context, int(self.retries or 0))
        self.seen.append((found.number, found.generation, found.is_retry))
        if found.number <= self.failures:
            raise RuntimeError("once more")


def test_this_airflow_counts_tries_as_assumed(run_dag: DagRunner) -> None:
    seen: list[tuple[int, int, bool]] = []
    with DAG("tries", schedule=None) as dag:
        Reader(task_id="task", failures=1, seen=seen, retries=2, retry_delay=timedelta(0))
    run = run_dag(dag)
    assert (run.state, seen) == ("success", [(1, 1, False), (2, 1, True)])
    assert _tries_after_a_clear(run) == (3, 3, False)


def _tries_after_a_clear(run: Run) -> tuple[int, int, bool]:
    """Clear the run as the UI does, and read what its next try would see."""
    from airflow.models.taskinstance import TaskInstance, clear_task_instances
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = select(TaskInstance).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
    with create_session() as session:
        instances = list(session.scalars(query))
        clear_task_instances(instances, session)
        session.flush()
        number, max_tries = instances[0].try_number, instances[0].max_tries
    found = TaskTry.read(task_context(try_number=number + 1, max_tries=max_tries), 2)
    return found.number, found.generation, found.is_retry


# -- author input


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {}),
        ("", {}),
        ("None", {}),
        ({"memory": "1G"}, {"memory": "1G"}),
        ('{"memory": "1G", "layer_cache": false}', {"memory": "1G", "layer_cache": False}),
        ("{'memory': '1G', 'layer_cache': False}", {"memory": "1G", "layer_cache": False}),
    ],
)
def test_a_mapping_may_be_text_that_a_template_made(value: Any, expected: dict[str, Any]) -> None:
    assert mapping("profile", value) == expected


@pytest.mark.parametrize("value", ["fast", "[1]", 7, ["a"], "{", "__import__('os')", "(" * 1000])
def test_what_is_no_mapping_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="profile must be a mapping"):
        mapping("profile", value)


def test_a_list_may_be_text_that_a_template_made() -> None:
    assert listing('["a", "b>=1"]') == ["a", "b>=1"]
    assert listing("['a', 'b']") == ["a", "b"]
    assert listing("('a',)") == ("a",)
    assert listing("torch>=2\nnumpy") == "torch>=2\nnumpy"
    assert listing("[broken") == "[broken"
    assert listing(None) is None


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), (5, 5.0), ("5", 5.0), (0.5, 0.5), (timedelta(minutes=1), 60.0)]
)
def test_seconds_may_be_numbers_text_or_timedeltas(value: Any, expected: float | None) -> None:
    assert seconds("t", value) == expected


@pytest.mark.parametrize("value", [0, -1, "soon", "", timedelta(0), float("inf"), float("nan"), [], True])
def test_other_durations_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="t must be a positive number of seconds"):
        seconds("t", value)


# -- errors


def test_errors_are_pushed_and_those_a_retry_cannot_help_end_the_task() -> None:
    context = task_context()
    with pytest.raises(AirflowFailException, match="What to do: repair it") as caught, reported(context):
        raise InvalidRequestError("broken", remedy="repair it")
    assert isinstance(caught.value.__cause__, InvalidRequestError)
    assert context["ti"].pushed["failure"]["error"] == "InvalidRequestError"


def test_errors_that_a_retry_can_help_stay_what_they_are() -> None:
    context = task_context()
    with pytest.raises(ClusterUnavailableError), reported(context):
        raise ClusterUnavailableError("away", details={"job_id": 7})
    assert context["ti"].pushed["failure"]["job_id"] == 7


def test_other_peoples_errors_are_none_of_ours() -> None:
    context = task_context()
    with pytest.raises(KeyError), reported(context):
        raise KeyError("x")
    assert context["ti"].pushed == {}
