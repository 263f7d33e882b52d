# SPDX-License-Identifier: Apache-2.0
"""Submitting: what sbatch gets, what it answers, and what noise around the answer must not do."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.errors import ClusterUnavailableError, InvalidRequestError, SubmissionRefusedError
from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.core.remote import TruncatedAnswerError
from airflow_slurm_images.core.slurm import SubmittedJob
from airflow_slurm_images.hooks import ssh_exchange
from airflow_slurm_images.lifecycle import Lifecycle, Work
from tests.shell.fake_slurm.login import CREDENTIALS, RUN_KEY, LocalCluster, import_request, secrets_in

LOG = logging.getLogger("tests.submitting")

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


def test_inherited_slurm_variables_never_reach_sbatch(cluster: LocalCluster) -> None:
    cluster.login_environment |= {
        "SBATCH_MEM_PER_NODE": "100M",
        "SLURM_CPUS_PER_TASK": "1",
        "SQUEUE_FORMAT": "%i",
        "SACCT_FORMAT": "JobID",
        "SCANCEL_NAME": "x",
        "SCONTROL_ALL": "1",
        "PMIX_RANK": "0",
        "SLURM_CONF": "/etc/other/slurm.conf",
    }
    cluster.profile |= {"memory": "32G", "cpus_per_task": 8}
    cluster.hook = cluster.new_hook()
    _, job_id = cluster.submit(import_request())
    (call,) = cluster.slurm.calls("sbatch")
    unwanted = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "PMIX_")
    assert [name for name in call["env"] if name.startswith(unwanted)] == ["SLURM_CONF"]
    assert call["args"] == ["--parsable", "--export=NIL", "--no-requeue", "job.sbatch"]
    options = cluster.slurm.job(job_id)["options"]
    assert (options["mem"], options["cpus-per-task"]) == ("32G", "8")


def test_the_profiles_slurm_conf_and_cluster_are_used_by_every_command(cluster: LocalCluster) -> None:
    cluster.profile |= {"slurm_conf": "/etc/north/slurm.conf", "cluster": "north"}
    cluster.hook = cluster.new_hook()
    cluster.submit(import_request())
    cluster.hook.cancel(101, "asi-" + RUN_KEY)
    for command in ("sbatch", "squeue", "scancel"):
        for call in cluster.slurm.calls(command):
            assert call["env"]["SLURM_CONF"] == "/etc/north/slurm.conf"
            assert call["args"][:2] == ["-M", "north"]


@pytest.mark.parametrize(
    ("output", "job"),
    [
        ("75\n", SubmittedJob(75, None)),
        ("75;alpha\n", SubmittedJob(75, "alpha")),
        ("75;\n", SubmittedJob(75, None)),
        ("75;alpha\r\n", SubmittedJob(75, "alpha")),
        ("Submitted batch job 481 on cluster north\n", SubmittedJob(481, "north")),
    ],
)
def test_every_form_of_sbatchs_answer_is_read(cluster: LocalCluster, output: str, job: SubmittedJob) -> None:
    cluster.slurm.next_answer("sbatch", rc=0, out=output)
    plan, staged = cluster.stage(import_request())
    assert cluster.hook.submit(plan, staged).job == job
    # The attempt directory knows it too, for a worker that dies right now.
    (attempt,) = cluster.hook.prepare(RUN_KEY).attempts
    assert attempt.submitted == job
    assert attempt.submitted_at is not None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"rc": 0, "out": "sbatch: hello\n"}, "hello"),
        ({"rc": 1, "err": TIMED_OUT}, "Socket timed out"),
        ({"rc": 1, "err": "sbatch: error: Unable to contact slurm controller (connect failure)"}, "Unable to contact"),
        ({"rc": 1, "err": "sbatch: error: Protocol authentication error"}, "authentication"),
        ({"rc": 124}, "124"),
        ({"rc": 137}, "137"),
        ({"rc": 1}, "no message"),
    ],
)
def test_an_unclear_answer_is_doubt_and_no_job(cluster: LocalCluster, answer: dict[str, Any], words: str) -> None:
    cluster.slurm.next_answer("sbatch", **answer)
    plan, staged = cluster.stage(import_request())
    submitted = cluster.hook.submit(plan, staged)
    assert submitted.job is None
    assert words in (submitted.doubt or "")


@pytest.mark.parametrize(
    ("rc", "errors"),
    [
        (1, "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"),
        (1, "sbatch: error: invalid partition specified: gone"),
        (
            1,
            "sbatch: error: Batch job submission failed: Requested time limit is invalid",
        ),
        (127, "timeout: failed to run command 'sbatch': No such file or directory"),
    ],
)
def test_a_refusal_is_final_and_shows_slurms_words(cluster: LocalCluster, rc: int, errors: str) -> None:
    cluster.slurm.next_answer("sbatch", rc=rc, err=errors)
    plan, staged = cluster.stage(import_request())
    with pytest.raises(InvalidRequestError) as caught:
        cluster.hook.submit(plan, staged)
    assert errors in caught.value.message


LIMIT = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("rc", "errors"),
    [
        (1, f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: {LIMIT}"),
        (1, f"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: {LIMIT}"),
        (1, f"sbatch: error: AssocGrpSubmitJobsLimit\nsbatch: error: Batch job submission failed: {LIMIT}"),
        (1, f"sbatch: error: Batch job submission failed: {LIMIT}"),
        (124, "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"),
        (1, "sbatch: Slurm job queue full, sleeping and retrying"),
    ],
)
def test_a_submit_limit_is_a_refusal_that_a_retry_can_help(cluster: LocalCluster, rc: int, errors: str) -> None:
    cluster.slurm.next_answer("sbatch", rc=rc, err=errors)
    plan, staged = cluster.stage(import_request())
    with pytest.raises(SubmissionRefusedError) as caught:
        cluster.hook.submit(plan, staged)
    assert caught.value.retryable
    assert " ".join(errors.split()) in caught.value.message
    assert "pool" in (caught.value.remedy or "")


def test_a_limit_of_the_jobs_size_is_no_submit_limit(cluster: LocalCluster) -> None:
    errors = f"sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: {LIMIT}"
    cluster.slurm.next_answer("sbatch", rc=1, err=errors)
    plan, staged = cluster.stage(import_request())
    with pytest.raises(InvalidRequestError, match="QOSMaxWallDurationPerJobLimit"):
        cluster.hook.submit(plan, staged)


# --- noise


def test_what_login_scripts_print_is_never_read(cluster: LocalCluster) -> None:
    cluster.before = b"Welcome!\nJob 99999 done\nSubmitted batch job 99999\nasi-00 begin\nasi-00 sbatch.out OTk5OTk=\n"
    cluster.after = b"\nbye\n99999\n"
    _, job_id = cluster.submit(import_request())
    assert job_id == 101


def test_every_command_is_the_same_plain_one(cluster: LocalCluster) -> None:
    cluster.submit(import_request())
    assert set(cluster.commands) == {"/bin/bash -p -s"}


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_an_answer_without_its_end_is_truncated_and_may_be_retried(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    whole = ssh_exchange.exchange

    def cut(*args: object) -> bytes:
        answer = whole(*args)  # type: ignore[arg-type]
        return answer[: int(len(answer) * share)]

    monkeypatch.setattr(ssh_exchange, "exchange", cut)
    with pytest.raises(TruncatedAnswerError) as caught:
        cluster.hook.prepare(RUN_KEY)
    assert caught.value.retryable


def test_startup_files_of_the_account_do_not_run(cluster: LocalCluster, tmp_path: Path) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"touch {tmp_path}/sprung\n")
    cluster.login_environment |= {
        "BASH_ENV": str(trap),
        "ENV": str(trap),
        "BASH_FUNC_base64%%": "() { touch sprung; }",
        "BASH_FUNC_timeout%%": "() { touch sprung; }",
    }
    cluster.submit(import_request())
    assert not (tmp_path / "sprung").exists()


# --- more than one cluster


def north(cluster: LocalCluster) -> tuple[Work, JobHandle]:
    """A job that was sent to another cluster than the login node's own."""
    cluster.slurm.send_to("north")
    work = Work(import_request("client"), RUN_KEY, 1, False, "lab", {}, if_present="reimport")
    handle = Lifecycle(cluster.hook, LOG).begin(work)
    assert isinstance(handle, JobHandle) and handle.cluster == "north"
    cluster.slurm.change(handle.job_id, state="RUNNING")
    return work, handle


def test_a_retry_adopts_the_job_on_the_cluster_that_sbatch_answered(cluster: LocalCluster) -> None:
    work, first = north(cluster)
    again = Lifecycle(cluster.hook, LOG).begin(replace(work, is_retry=True))
    assert isinstance(again, JobHandle)
    assert (again.job_id, again.cluster) == (first.job_id, "north")
    assert len(cluster.slurm.jobs()) == 1


def test_a_cluster_that_does_not_answer_may_run_the_job(cluster: LocalCluster) -> None:
    work, _ = north(cluster)
    cluster.slurm.next_answer("squeue")  # the login node's own cluster has none of it
    cluster.slurm.next_answer("squeue", rc=1, err="squeue: error: No cluster 'north' known by database.")
    with pytest.raises(ClusterUnavailableError, match="cluster north: squeue ended with status 1"):
        Lifecycle(cluster.hook, LOG).begin(replace(work, is_retry=True))
    assert len(cluster.slurm.jobs()) == 1


@pytest.mark.parametrize("over", ["a record is there", "fenced"])
def test_a_cluster_that_is_gone_does_not_hold_up_what_is_over_there(cluster: LocalCluster, over: str) -> None:
    work, first = north(cluster)
    attempt = Path(first.run_directory)
    if over == "fenced":
        (attempt / "claim").mkdir()
        (attempt / "claim" / "job_id").write_text("0 0\n")
    else:
        (attempt / "completion.json").write_text("{}")
    (cluster.slurm.root / "slurm" / "sent_to").unlink()
    cluster.slurm.change(first.job_id, in_queue=False)
    second = Lifecycle(cluster.hook, LOG).begin(replace(work, generation=2))
    assert isinstance(second, JobHandle) and second.job_id != first.job_id
    asked = cluster.slurm.calls("squeue")[1:]
    assert asked and all("-M" not in call["args"] for call in asked)


def test_a_job_of_another_request_is_cancelled_on_its_own_cluster(cluster: LocalCluster) -> None:
    work, first = north(cluster)
    second = Lifecycle(cluster.hook, LOG).begin(replace(work, request=import_request("generic")))
    assert isinstance(second, JobHandle) and second.job_id != first.job_id
    assert cluster.slurm.job(first.job_id)["state"] == "CANCELLED"


@pytest.mark.parametrize(("before", "now"), [(None, "south"), ("north", None), ("north", "south")])
def test_a_job_from_before_the_profile_named_another_cluster_is_cancelled_where_it_is(
    cluster: LocalCluster, before: str | None, now: str | None
) -> None:
    work = Work(import_request("client"), RUN_KEY, 1, False, "lab", {}, if_present="reimport")
    first = Lifecycle(cluster.new_hook(cluster=before), LOG).begin(work)
    assert isinstance(first, JobHandle)
    second = Lifecycle(cluster.new_hook(cluster=now), LOG).begin(work)
    assert isinstance(second, JobHandle) and second.job_id != first.job_id
    states = [(job["cluster"], job["state"]) for job in cluster.slurm.jobs()]
    assert states == [(before, "CANCELLED"), (now, "PENDING")]


def test_a_kill_reaches_a_job_that_only_its_attempt_directory_knows(cluster: LocalCluster) -> None:
    _, first = north(cluster)
    cluster.hook.cancel(None, "asi-" + RUN_KEY)
    assert cluster.slurm.job(first.job_id)["state"] == "CANCELLED"


def test_the_login_of_a_job_on_another_cluster_stays_while_it_is_there_and_not_after(cluster: LocalCluster) -> None:
    cluster.slurm.send_to("north")
    plan, job_id = cluster.submit(import_request(), CREDENTIALS)
    job_file = Path(plan.attempt_directory, "job_id")
    os.utime(job_file, (job_file.stat().st_mtime - 3600,) * 2)
    cluster.hook.prepare(RUN_KEY)
    assert secrets_in(cluster.workspace) != []
    cluster.slurm.change(job_id, state="NODE_FAIL", in_queue=False)
    cluster.hook.prepare(RUN_KEY)
    assert secrets_in(cluster.workspace) == []
