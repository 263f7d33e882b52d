# SPDX-License-Identifier: Apache-2.0
"""What a task that cannot succeed does: fails early, once, and with all that helps."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from tenacity import wait_none

from airflow_slurm_images.operators.images import OciImportOperator, SqshInspectOperator
from tests.airflow.contexts import task_context
from tests.airflow.dag_runs import DagRunner, Run
from tests.cluster.box import Box

RETRIES: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}
PINNED = "registry.example/team/app@sha256:" + 64 * "a"
FAILURE_KEYS = {
    *("schema_version", "error", "message", "remedy", "retryable", "job_id", "cluster", "state"),
    *("exit_code", "phase", "reason", "run_directory", "log_paths"),
}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unpinned": ({"image": "registry.example/team/app:1.0"}, "sha256"),
    "login in it": ({"image": "user:pass@" + PINNED}, "credentials"),
    "a URL": ({"image": "https://" + PINNED}, "scheme"),
    "alias with a slash": ({"name": "../etc/passwd"}, "name"),
    "unknown kind": ({"kind": "trainer"}, "kind"),
    "unknown profile field": ({"profile": {"memry": "1G"}}, "memry"),
    "profile that is no mapping": ({"profile": "fast"}, "profile"),
    "two directives in one": ({"profile": {"partition": "cpu\n#SBATCH --exclusive"}}, "partition"),
    "no requirement": ({"required_distributions": ["tinylib>"]}, "required_distributions"),
    "requirements of no packages": ({"kind": "generic", "required_distributions": ["tinylib"]}, "generic"),
    "no interval": ({"poll_interval": 0}, "poll_interval"),
    "timeout in words": ({"run_timeout": "soon"}, "run_timeout"),
    "unknown choice": ({"on_conflict": "shrug"}, "on_conflict"),
}


def jobs(box: Box) -> set[int]:
    return {job.job_id for job in box.squeue()}


def test_a_bad_literal_is_no_import_error() -> None:
    """Nothing is parsed before rendering: the DAG processor must not fail for one task of many."""
    with DAG("bad_literals", schedule=None):
        OciImportOperator(task_id="import", image="not pinned at all", name="/", kind="?", poll_interval=-1)
        SqshInspectOperator(task_id="inspect", path="relative", kind="?")


def refused(change: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an operator that is asked for something it must refuse."""
    return {"image": PINNED, "name": "app", "kind": "client", "poll_interval": 1, **change}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_fails_before_anything_is_submitted(box: Box, what: str) -> None:
    before, context, (change, word) = jobs(box), task_context(), BAD[what]
    with pytest.raises(AirflowFailException, match="What to do: ") as caught:
        OciImportOperator(task_id="task", **refused(change)).execute(context)
    failure = context["ti"].pushed["failure"]
    assert set(failure) == FAILURE_KEYS
    assert (failure["error"], failure["retryable"], failure["job_id"]) == ("InvalidRequestError", False, None)
    assert word in failure["message"] and failure["message"] in str(caught.value) and failure["remedy"]
    assert jobs(box) == before


def test_such_a_task_fails_at_its_first_try(run_dag: DagRunner, box: Box) -> None:
    with DAG("refused", schedule=None) as dag:
        OciImportOperator(task_id="image", **refused({"image": "{{ 'repository' }}:tag"}), **RETRIES)
        OciImportOperator(task_id="profile", **refused({"profile": {"memry": "1G"}}), **RETRIES)
        SqshInspectOperator(task_id="path", path="relative", kind="generic", **RETRIES)
    run = run_dag(dag)
    assert set(run.states().values()) == {"failed"} and set(run.tries().values()) == {1}
    assert "is refused: digest: " in run.log_of("image")
    assert "Plan:" not in run.log


def test_a_profile_without_workspace_names_the_remedy(
    run_dag: DagRunner, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {key: value for key, value in box.extra.items() if key != "workspace_root"}
    monkeypatch.setenv("AIRFLOW_CONN_BARE", json.dumps({**box.connection, "extra": extra}))
    with DAG("bare", schedule=None) as dag:
        OciImportOperator(task_id="task", image=PINNED, name="app", slurm_conn_id="bare", **RETRIES)
    run = run_dag(dag)
    assert (run.tries()["task"], run.failure()["error"]) == (1, "InvalidRequestError")
    assert "workspace_root" in run.failure()["remedy"]


# -- failed jobs


@pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferred"])
def test_an_unknown_digest_fails_without_retry_and_says_everything(
    run_dag: DagRunner, box: Box, images: dict[str, str], deferrable: bool
) -> None:
    image = images["client"].partition("@")[0] + "@sha256:" + 64 * "0"
    with DAG(f"unknown_digest_{deferrable}", schedule=None) as dag:
        OciImportOperator(task_id="task", image=image, name="gone", **RETRIES, poll_interval=1, deferrable=deferrable)
    run = run_dag(dag)
    assert (run.states()["task"], run.tries()["task"]) == ("failed", 1)
    failure = run.failure()
    assert set(failure) == FAILURE_KEYS
    assert (failure["error"], failure["retryable"]) == ("RegistryNotFoundError", False)
    assert failure["phase"] in ("manifest", "import") and failure["reason"] == "registry_not_found"
    assert failure["exit_code"] != 0 and failure["job_id"] in jobs(box)
    assert failure["cluster"] in (None, box.cluster_name)
    directory = failure["run_directory"]
    assert all(path.startswith(f"{directory}/") for path in failure["log_paths"])
    assert (Path(directory) / "slurm.out").exists() and (Path(directory) / "plan.json").exists()
    assert run.xcom("task") is None
    assert not (box.workspace / "aliases" / "gone.sqsh").is_symlink()
    _says_everything(run, failure)


def _says_everything(run: Run, failure: dict[str, Any]) -> None:
    """The message is in the task log, too: what, phase, state, exit code, last lines, where, what to do."""
    log = run.log_of()
    assert "AirflowFailException" in log
    for text in (
        f"Job {failure['job_id']} failed: the registry has no such repository or digest",
        f"phase {failure['phase']}, Slurm state {failure['state']}, exit code {failure['exit_code']}",
        "last lines of its output:",
        "404",
        f"run directory: {failure['run_directory']}",
        "What to do: Check repository and digest",
    ):
        assert text in failure["message"] + f"\nWhat to do: {failure['remedy']}"
        assert text in log


def test_a_distribution_that_is_missing_publishes_nothing(run_dag: DagRunner, box: Box, images: dict[str, str]) -> None:
    with DAG("lacking", schedule=None) as dag:
        OciImportOperator(
            task_id="task",
            image=images["client"],
            name="lacking",
            required_distributions=["tinylib>=99", "nowhere", "pip"],
            poll_interval=1,
            **RETRIES,
        )
    run = run_dag(dag)
    failure = run.failure()
    assert (run.tries()["task"], failure["reason"]) == (1, "distributions_missing")
    assert "tinylib>=99 (installed: 1.4.0)" in failure["message"] and "nowhere (not installed)" in failure["message"]
    assert not (box.workspace / "aliases" / "lacking.sqsh").is_symlink()


def test_a_cluster_that_is_away_is_left_to_retries(
    run_dag: DagRunner, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps({**box.connection, "port": port}))
    monkeypatch.setattr("airflow_slurm_images.hooks.ssh_exchange.wait_random_exponential", lambda **_: wait_none())
    with DAG("away", schedule=None) as dag:
        OciImportOperator(task_id="task", image=PINNED, name="app", slurm_conn_id="away", **RETRIES)
    run = run_dag(dag)
    assert (run.states()["task"], run.tries()["task"]) == ("failed", 2)
    assert (run.failure()["error"], run.failure()["retryable"]) == ("ClusterUnavailableError", True)
