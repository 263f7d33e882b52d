# SPDX-License-Identifier: Apache-2.0
"""Running DAGs in this process with ``dag.test()``, and looking at what they left."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk import DAG

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


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
        with create_session() as session:
            rows = session.execute(
                query.where(TaskInstance.dag_id == self.dag_id, TaskInstance.run_id == self.run_id)
            ).all()
        return {
            (task if index < 0 else f"{task}[{index}]"): (str(state), int(number)) for task, index, state, number in rows
        }

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """The value as the database holds it: what is not plain JSON shows as Airflow's own wrapping."""
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
        if not found:
            return None
        return json.loads(found[0]) if isinstance(found[0], str) else found[0]

    def record(self, task_id: str = "task", map_index: int = -1) -> dict[str, Any]:
        value = self.xcom(task_id, map_index=map_index)
        assert isinstance(value, dict), f"{task_id} returned {value!r}; the log:\n{self.log}"
        return value

    def failure(self, task_id: str = "task", map_index: int = -1) -> dict[str, Any]:
        value = self.xcom(task_id, "failure", map_index)
        assert isinstance(value, dict), f"{task_id} pushed no failure; the log:\n{self.log}"
        return value


class DagRunner:
    """Runs DAGs of this process; the log is what they print meanwhile."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, dag: DAG, conf: Mapping[str, Any] | None = None, at: datetime | None = None) -> Run:
        _register(dag)
        self._capfd.readouterr()
        run = dag.test(logical_date=at or datetime.now(timezone.utc), run_conf=dict(conf) if conf else None)
        out, err = self._capfd.readouterr()
        return Run(dag.dag_id, run.run_id, str(run.state), _ANSI.sub("", out + err))


def _register(dag: DAG) -> None:
    """Write the DAG to the database, as the DAG processor does with files."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    try:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag, sync_bag_to_db  # type: ignore[attr-defined,no-redef]
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    bag = DagBag(dag_folder="/dev/null")
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "tests", "1")
