# SPDX-License-Identifier: Apache-2.0
"""A whole Airflow on loopback and free ports: api-server, scheduler, triggerer and dag-processor.

Of the Airflow that runs the tests, with its own home, database and log folder below one directory. Every component
is a process group of its own, started and stopped by its id.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cluster import procfs, space
from tests.cluster.polling import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
AIRFLOW = (sys.executable, "-m", "airflow")
COMPONENTS = {
    "api-server": ("--host", "127.0.0.1"),
    "scheduler": ("--skip-serve-logs",),
    "triggerer": ("--skip-serve-logs",),
    "dag-processor": (),
}


class AirflowStack:
    """Use with ``with``; :meth:`start_component` and :meth:`stop_component` take one part away and give it back."""

    def __init__(self, home: Path, environment: Mapping[str, str], deployment: str) -> None:
        self.home = home
        self.port = _free_port()
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""
        self._environment = self._settings(deployment) | dict(environment)
        (home / "dags").mkdir(parents=True)
        for file in Path(__file__).with_name("dags").glob("*.py"):
            shutil.copy(file, home / "dags")

    def _settings(self, deployment: str) -> dict[str, str]:
        base = f"http://127.0.0.1:{self.port}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        return kept | {
            "PYTHONPATH": str(CHECKOUT),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__BASE_URL": base,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{base}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",  # no file changes
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "1",
            "AIRFLOW__SLURM_IMAGES__DEPLOYMENT_ID": deployment,
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }

    # -- life

    def __enter__(self) -> AirflowStack:
        try:
            self._run("db", "migrate")
            for name in COMPONENTS:
                self.start_component(name)
            assert wait_until(self.healthy, 240, 0.5), self.logs()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for name in reversed(list(self._parts)):
            self.stop_component(name)

    def _run(self, *arguments: str) -> None:
        argv = [*AIRFLOW, *arguments]
        done = subprocess.run(argv, env=self._environment, cwd=self.home, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def start_component(self, name: str) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self._parts[name] = subprocess.Popen(
                [*AIRFLOW, name, *COMPONENTS[name]],
                env=self._environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop_component(self, name: str, number: signal.Signals = signal.SIGTERM, patience: float = 20) -> None:
        """Signal a component as its supervisor would; what it leaves behind is killed."""
        process = self._parts.pop(name)
        below = procfs.descendants_of(process.pid)
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        for pid in (process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    @contextlib.contextmanager
    def frozen_triggers(self) -> Iterator[None]:
        """Let the process that runs the triggers stand still (SIGSTOP); it holds no lock of the database."""
        runners = procfs.descendants_of(self._parts["triggerer"].pid)
        space.kill(runners, signal.SIGSTOP)
        try:
            yield
        finally:
            space.kill(runners, signal.SIGCONT)

    @contextlib.contextmanager
    def no_free_slot(self) -> Iterator[None]:
        """Tasks are scheduled and not started meanwhile."""
        self._set_slots(0)
        try:
            yield
        finally:
            self._set_slots(128)

    def _set_slots(self, number: int) -> None:
        self.call("PATCH", "pools/default_pool?update_mask=slots", {"slots": number})

    def healthy(self) -> bool:
        """Whether all parts answer and all DAGs are known."""
        dead = [name for name, process in self._parts.items() if process.poll() is not None]
        assert not dead, f"{dead} ended:\n{self.logs()}"
        try:
            health = self.get("monitor/health")
            parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
            found = {dag["dag_id"] for dag in self.get("dags")["dags"]}
        except (OSError, ValueError):
            return False
        return all(health[part]["status"] == "healthy" for part in parts) and "sensor" in found

    def logs(self) -> str:
        """The ends of the components' logs."""
        files = sorted(self.home.glob("*.log"))
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    # -- the REST interface

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if not self._token:
            self._token = self._request("GET", "auth/token", None)["access_token"]
        return self._request(method, f"api/v2/{path}", body)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = json.dumps(body).encode() if body is not None else None
        url = f"http://127.0.0.1:{self.port}/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=60) as answer:
            return json.load(answer)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class TaskRun:
    """The task ``task`` of one run of a DAG, seen and handled as a user does."""

    def __init__(self, stack: AirflowStack, dag_id: str, conf: Mapping[str, Any], run_id: str) -> None:
        self.stack, self.dag_id, self.run_id = stack, dag_id, run_id
        stack.call("POST", f"dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": conf})

    @property
    def path(self) -> str:
        return f"dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/task"

    @property
    def instance(self) -> dict[str, Any]:
        found: dict[str, Any] = self.stack.get(self.path)
        return found

    @property
    def state(self) -> str | None:
        state = self.instance["state"]
        return None if state is None else str(state)

    def reaches(self, *states: str, tries: int | None = None, timeout: float = 120) -> bool:
        """Wait until the task is in one of the states (in that try)."""

        def there() -> bool:
            found = self.instance
            return found["state"] in states and tries in (None, found["try_number"])

        return wait_until(there, timeout, 0.3)

    def is_over(self) -> bool:
        """Whether the DAG run has ended, which is some time after its last task."""
        run = self.stack.get(f"dags/{self.dag_id}/dagRuns/{self.run_id}")
        return run["state"] in ("success", "failed")

    def mark(self, state: str) -> None:
        self.stack.call("PATCH", self.path, {"new_state": state})

    def clear(self) -> None:
        body = {"dry_run": False, "dag_run_id": self.run_id, "task_ids": ["task"], "only_failed": False}
        self.stack.call("POST", f"dags/{self.dag_id}/clearTaskInstances", {**body, "reset_dag_runs": True})

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process of the running task."""
        os.kill(int(self.instance["pid"]), number)

    def xcom(self, key: str = "return_value") -> Any:
        try:
            value = self.stack.get(f"{self.path}/xcomEntries/{key}")["value"]
        except urllib.error.HTTPError:
            return None
        return json.loads(value) if isinstance(value, str) else value

    def log(self) -> str:
        """The log files of all tries, the triggerer's part included."""
        folder = self.stack.home / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}" / "task_id=task"
        return "\n".join(f"== {file.name}\n{file.read_text()}" for file in sorted(folder.glob("*.log*")))
