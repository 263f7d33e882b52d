# SPDX-License-Identifier: Apache-2.0
"""Verifying and pruning a real workspace through ``dag.test()``: what is right stays, what drifted is told."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from airflow_slurm_images.operators.images import ImagePruneOperator, ImageVerifyOperator, SqshInspectOperator
from tests.airflow.dag_runs import DagRunner, Run
from tests.cluster.box import Box


def publish(run_dag: DagRunner, sqsh: Path, name: str) -> Path:
    """Copy ``sqsh`` into the store under the alias ``name``; returns the store file."""
    with DAG(f"publish_{name}", schedule=None) as dag:
        SqshInspectOperator(
            task_id="task", path=str(sqsh), name=name, copy_to_store=True, kind="generic", poll_interval=1
        )
    return Path(run_dag(dag).record()["sqsh"]["path"])


def verify(run_dag: DagRunner, name: str) -> Run:
    with DAG(f"verify_{name}", schedule=None) as dag:
        ImageVerifyOperator(task_id="task", name=name, poll_interval=1)
    return run_dag(dag)


def test_a_file_as_recorded_is_verified_in_a_job_and_drift_fails_the_task(
    run_dag: DagRunner, box: Box, sqsh: Path
) -> None:
    stored = publish(run_dag, sqsh, "verified")
    good = verify(run_dag, "verified")
    report = good.xcom("task")
    assert (report["drift"], report["path"], report["number"]) == (False, str(stored), 1)
    assert report["sha256"] == report["recorded_sha256"] == stored.stem

    whole = stored.read_bytes()
    stored.chmod(0o600)
    stored.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        bad = verify(run_dag, "verified")
        assert bad.failure()["error"] == "IntegrityError"
        assert stored.stem in bad.failure()["message"]
        assert bad.states() == {"task": "failed"}
    finally:
        stored.write_bytes(whole)
        stored.chmod(0o400)


def test_a_prune_tells_what_it_would_do_and_leaves_what_has_a_name(run_dag: DagRunner, box: Box, sqsh: Path) -> None:
    stored = publish(run_dag, sqsh, "kept")
    partial = stored.with_name(".partial-" + "0" * 32)
    partial.write_bytes(b"left by a dead job")
    with DAG("prune", schedule=None) as dag:
        ImagePruneOperator(task_id="rehearsal", keep_last="{{ 1 }}", grace_days=0, dry_run="{{ true }}")
        ImagePruneOperator(task_id="real", keep_last=1, grace_days=0, trash_days=1)
    run = run_dag(dag)
    rehearsal, real = run.xcom("rehearsal"), run.xcom("real")
    assert (rehearsal["dry_run"], real["dry_run"]) == (True, False)
    assert rehearsal["complete"] and real["complete"]
    assert stored.is_file() and (box.workspace / "aliases" / "kept.sqsh").resolve() == stored
    assert partial.is_file(), "younger than the two days after which a partial file counts as left behind"
    partial.unlink()
