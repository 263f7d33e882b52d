# SPDX-License-Identifier: Apache-2.0
"""As much of a task's context as operators use, for tests that call them directly."""

from __future__ import annotations

import secrets
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock


class TaskInstance(SimpleNamespace):
    """Keeps what is pushed; pulls give it back."""

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def xcom_pull(self, task_ids: str, key: str = "return_value", map_indexes: int | None = None) -> Any:
        assert (task_ids, map_indexes) == (self.task_id, self.map_index)
        return self.pushed.get(key)

    def get_first_reschedule_date(self, _context: Any) -> None:
        return None


def task_context(**fields: Any) -> dict[str, Any]:
    """Context of the first try of a task in a run of its own."""
    values = {
        "dag_id": "dag",
        "task_id": "task",
        "run_id": secrets.token_hex(8),
        "map_index": -1,
        "try_number": 1,
        "max_tries": 0,
        "pushed": {},
    }
    return {"ti": TaskInstance(**{**values, **fields}), "outlet_events": MagicMock()}


def handle(**fields: Any) -> dict[str, Any]:
    """A job handle as XCom carries it."""
    key, attempt = secrets.token_hex(16), secrets.token_hex(8)
    return {
        "schema_version": 1,
        "slurm_conn_id": "slurm_default",
        "job_id": 7,
        "cluster": None,
        "job_name": f"asi-{key}",
        "run_key": key,
        "attempt": attempt,
        "token": secrets.token_hex(16),
        "workspace": "/ws",
        "run_directory": f"/ws/users/me/runs/{key}/{attempt}",
        "submitted_at": "2026-01-01T00:00:00",
        "generation": None,
        "record_wait": 120,
        "profile": {},
        "on_conflict": "replace",
        **fields,
    }
