# SPDX-License-Identifier: Apache-2.0
"""Running DAGs in this process with ``dag.test()``, and looking at what they left."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from unittest.mock import patch

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions import dag as dag_module

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PHASE = re.compile(r"asi: phase (\w+) \(\d+ s\)")


@dataclass(frozen=True)
class Run:
    """One run that is over."""

    dag_id: str
    run_id: str
    state: str
    log: str

    def states(self) -> dict[str, str]:
        """State by task id; mapped ones as ``task[0]``."""
        return {name: state for name, (state, _) in self._instances().items()}

    def tries(self) -> dict[str, int]:
        return {name: number for name, (_, number) in self._instances().items()}

    def _instances(self) -> dict[str, tuple[str, int]]:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        query = select(TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state, TaskInstance.try_number)
        query = query.where(TaskInstance.dag_id == self.dag_id, TaskInstance.run_id == self.run_id)
        with create_session() as session:
            rows = session.execute(query).all()
        return {
            (task if index < 0 else f"{task}[{index}]"): (str(state), int(number))
            for task, index, state, number in rows
        }

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """The value as the database holds it: what is not plain JSON shows Airflow's own wrapping."""
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        query = select(XComModel.value).where(
            XComModel.dag_id == self.dag_id,
            XComModel.run_id == self.run_id,
            XComModel.task_id == task_id,
            XComModel.key == key,
            XComModel.map_index == map_index,
        )
        with create_session() as session:
            found = session.execute(query).scalars().all()
        return found[0] if found else None

    def record(self, task_id: str = "task", map_index: int = -1) -> dict[str, Any]:
        """The image record (or job handle) that a task returned."""
        value = self.xcom(task_id, map_index=map_index)
        assert isinstance(value, dict), f"{task_id} returned {value!r}; the log:\n{self.log}"
        return value

    def failure(self, task_id: str = "task", map_index: int = -1) -> dict[str, Any]:
        """The ``failure`` that a task pushed."""
        value = self.xcom(task_id, "failure", map_index)
        assert isinstance(value, dict), f"{task_id} pushed no failure; the log:\n{self.log}"
        return value

    def log_of(self, task_id: str = "task", map_index: int = -1) -> str:
        """What was printed while this task ran, all its tries and pokes together."""
        parts = re.split(r"^@@ (\S+) (-?\d+)$", self.log, flags=re.MULTILINE)
        found = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        return "".join(text for task, index, text in found if (task, int(index)) == (task_id, map_index))

    def phases_of(self, task_id: str = "task", map_index: int = -1) -> list[str]:
        """The job's phases in the order the task log shows them."""
        return _PHASE.findall(self.log_of(task_id, map_index))


class DagRunner:
    """Runs DAGs of this process; the log is what they print meanwhile."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, dag: DAG, conf: Mapping[str, Any] | None = None) -> Run:
        register(dag)
        self._capfd.readouterr()
        with patch.object(dag_module, "_run_task", _announced(dag_module._run_task)):
            run = dag.test(logical_date=datetime.now(timezone.utc), run_conf=dict(conf) if conf else None)
        out, err = self._capfd.readouterr()
        return Run(dag.dag_id, run.run_id, str(run.state), _ANSI.sub("", out + err))


def _announced(run_task: Callable[..., Any]) -> Callable[..., Any]:
    """Tell which task the lines that follow are of; Airflow's own words for it do not reach every test."""

    def announce_and_run(*, ti: Any, **arguments: Any) -> Any:
        print(f"\n@@ {ti.task_id} {ti.map_index}", flush=True)
        return run_task(ti=ti, **arguments)

    return announce_and_run


def register(dag: DAG) -> None:
    """Write the DAG to the database, as the DAG processor does with files."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    bag = dag_bag("/dev/null")
    bag.bag_dag(dag)
    _dag_processing().sync_bag_to_db(bag, "tests", "1")


def dag_bag(folder: str) -> Any:
    """Read DAG files as Airflow does."""
    return _dag_processing().DagBag(dag_folder=folder)


def _dag_processing() -> Any:
    try:
        from airflow.dag_processing import dagbag
    except ImportError:  # Airflow 3.1
        from airflow.models import dagbag  # type: ignore[no-redef]
    return dagbag
