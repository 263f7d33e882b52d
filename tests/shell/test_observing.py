# SPDX-License-Identifier: Apache-2.0
"""One look at waiting jobs through the real script: what it asks Slurm, and what it makes of the answers."""

from __future__ import annotations

import base64
import datetime
import os
import subprocess
from pathlib import Path

import pytest

from airflow_slurm_images.core import observation, remote
from airflow_slurm_images.core.decide import JobKey, Memory, decide
from airflow_slurm_images.core.errors import ClusterUnavailableError
from airflow_slurm_images.core.evidence import CompletionForeign, CompletionFound, CompletionInvalid, Limits
from airflow_slurm_images.core.observation import Observation, Watch
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.core.watch import JobWatch
from tests.shell.fake_slurm.login import LocalCluster, import_request

CONTROLLER_DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def watch_of(
    plan: LifecyclePlan, job_id: int, offset: int | None = 0, size: int = 65536, stream: str = "try1", kept: int = 0
) -> Watch:
    since = "2024-05-01T10:00:00"
    return Watch(job_id, plan.job_name, plan.token, plan.attempt_directory, since, stream, offset, size, kept)


def look(cluster: LocalCluster, plan: LifecyclePlan, job_id: int, **values: object) -> Observation:
    return cluster.hook.observe([watch_of(plan, job_id, **values)])[0]  # type: ignore[arg-type]


def test_a_waiting_job_costs_one_squeue_and_no_sacct(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    for state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
        cluster.slurm.change(job_id, state=state)
        seen = look(cluster, plan, job_id)
        assert [row.state for row in seen.evidence.queue.rows] == [state]
        assert seen.evidence.accounting is None
    assert len(cluster.slurm.calls("squeue")) == 4
    assert cluster.slurm.calls("sacct") == []


def test_a_good_record_needs_no_scheduler_at_all(cluster: LocalCluster) -> None:
    done = cluster.run(import_request())
    before = len(cluster.slurm.calls("squeue"))
    seen = look(cluster, done.plan, done.job_id)
    assert seen.evidence.completion == CompletionFound(0)
    assert seen.record == done.record
    assert (seen.phase, seen.claimed_by) == ("done", done.job_id)
    assert len(cluster.slurm.calls("squeue")) == before


def test_an_invalid_job_id_is_not_in_the_queue_and_accounting_is_asked(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    cluster.slurm.change(job_id, in_queue=False, state="COMPLETED", accounted=True)
    cluster.slurm.next_answer("squeue", rc=1, err="slurm_load_jobs error: Invalid job id specified")
    seen = look(cluster, plan, job_id)
    assert (seen.evidence.queue.status, seen.evidence.queue.rows) == ("ok", ())


def test_a_queue_that_cannot_be_read_is_unknown_and_nothing_else_is_asked(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    cluster.slurm.next_answer("squeue", rc=1, err=CONTROLLER_DOWN)
    seen = look(cluster, plan, job_id)
    assert seen.evidence.queue.status == "unknown"
    assert "Unable to contact" in seen.evidence.queue.detail
    assert cluster.slurm.calls("sacct") == []


NO_ROOM = ("/bin/bash", "-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "bash")
"""No file of this command can grow, as in a full /tmp."""


def test_no_room_for_temporary_files_never_makes_a_running_job_look_gone(cluster: LocalCluster) -> None:
    """Before bash 5.1 a here-string is a temporary file."""
    plan, job_id = cluster.place(import_request())
    cluster.slurm.login_tool("squeue", f"echo '{job_id}|RUNNING|None|0:05|n1|{plan.job_name}'")
    cluster.login_environment["BASH_COMPAT"] = "5.0"
    cluster.wrapper = NO_ROOM
    seen = look(cluster, plan, job_id)
    assert [(row.job_id, row.state) for row in seen.evidence.queue.rows] == [(job_id, "RUNNING")]
    assert seen.evidence.control is None


@pytest.mark.parametrize("lines", [0, 1])
def test_a_login_node_that_did_not_read_every_job_has_seen_none(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    plans = [cluster.place(import_request()) for _ in range(2)]
    whole = observation.payload([watch_of(*plan) for plan in plans])
    monkeypatch.setattr(observation, "payload", lambda _: b"".join(whole.splitlines(keepends=True)[:lines]))
    with pytest.raises(ClusterUnavailableError, match=f"read {lines} of 2 jobs"):
        cluster.hook.observe([watch_of(*plan) for plan in plans])


def test_a_field_that_cannot_be_told_whole_spoils_the_answer(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    cluster.slurm.login_tool("base64", "exit 137")
    with pytest.raises(ClusterUnavailableError, match="damaged"):
        look(cluster, plan, job_id)


def test_a_good_record_of_another_attempt_does_not_keep_the_queue_from_being_asked(cluster: LocalCluster) -> None:
    done = cluster.run(import_request())
    cluster.slurm.change(done.job_id, state="RUNNING", in_queue=True)
    watch = watch_of(done.plan, done.job_id)
    (seen,) = cluster.hook.observe([Watch(**{**watch.__dict__, "token": "f" * 32})])
    assert seen.evidence.completion == CompletionForeign()
    assert [row.job_id for row in seen.evidence.queue.rows] == [done.job_id]


def test_a_record_that_says_success_and_cannot_be_read_is_named_in_the_end(cluster: LocalCluster) -> None:
    done = cluster.run(import_request())
    record = done.directory / "completion.json"
    record.write_bytes(record.read_bytes().rstrip() + b" " * 2**20)
    seen = look(cluster, done.plan, done.job_id)
    assert isinstance(seen.evidence.completion, CompletionInvalid)
    assert seen.evidence.queue.status == "ok"


def test_an_absent_job_is_asked_for_by_id_name_and_the_clusters_own_time(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    cluster.slurm.change(job_id, in_queue=False, state="TIMEOUT", accounted=True)
    cluster.slurm.add_job(job_id + 1, "somebody-elses", in_queue=False, accounted=True)
    seen = look(cluster, plan, job_id)
    assert seen.evidence.accounting is not None
    assert [(row.job_id, row.state, row.name) for row in seen.evidence.accounting.rows] == [
        (job_id, "TIMEOUT", plan.job_name)
    ]
    (call,) = cluster.slurm.calls("sacct")
    assert {"-X", f"--jobs={job_id}", "--starttime=2024-04-30T10:00:00"} <= set(call["args"])
    assert not [word for word in call["args"] if word.startswith("--name")]  # accounting cuts a long list of names


def test_the_start_bound_comes_from_the_login_nodes_clock_and_zone(cluster: LocalCluster) -> None:
    cluster.login_environment["TZ"] = "UTC-6"  # six hours ahead
    plan, staged = cluster.stage(import_request())
    submitted = datetime.datetime.fromisoformat(cluster.hook.submit(plan, staged).submitted_at or "")
    there = datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=6))).replace(tzinfo=None)
    assert datetime.timedelta(0) <= there - submitted < datetime.timedelta(minutes=2)


def ask_controller(commands: str) -> list[str]:
    """Run commands beside the real function, with questions that take all the time they are given."""
    cluster = Path(remote.__file__).parents[1] / "cluster"
    functions = (cluster / "observe.sh").read_text().removesuffix("asi::main\n")
    asked = 'asi::run() { printf "%s %s\\n" "$1" "$2"; SECONDS="$((SECONDS + took))"; }'
    done = subprocess.run(
        ["/bin/bash", "-c", f"set -u\n{functions}\n{asked}\n{commands}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_slow_controller_gets_twenty_seconds_in_all() -> None:
    asked = ask_controller("took=14; asi::ask_controller 1 2 3 4 5")
    assert [line.split()[1] for line in asked] == ["15", "6"]
    assert len(ask_controller("took=0; asi::ask_controller {1..50}")) == 20


def test_every_job_has_its_turn_at_a_slow_controller() -> None:
    asked = ask_controller("RANDOM=1; took=20; for ((i = 0; i < 60; i++)); do asi::ask_controller {1..5}; done")
    assert len(asked) == 60
    assert {line.split()[0] for line in asked} == {f"scontrol.{number}" for number in range(1, 6)}


@pytest.mark.parametrize("rc", [0, 1])
def test_no_accounting_is_told_apart_and_the_controller_asked(cluster: LocalCluster, rc: int) -> None:
    plan, job_id = cluster.place(import_request())
    cluster.slurm.change(job_id, in_queue=False)
    cluster.slurm.next_answer("sacct", rc=rc, err="Slurm accounting storage is disabled")
    seen = look(cluster, plan, job_id)
    assert seen.evidence.accounting is not None
    assert seen.evidence.accounting.status == "disabled"
    assert len(cluster.slurm.calls("scontrol")) == 1


def test_many_jobs_are_one_command_and_one_squeue(cluster: LocalCluster) -> None:
    plans = [cluster.place(import_request()) for _ in range(3)]
    before = (len(cluster.commands), len(cluster.slurm.calls("squeue")))
    seen = cluster.hook.observe([watch_of(*plan) for plan in plans])
    assert [len(item.evidence.queue.rows) for item in seen] == [3, 3, 3]  # decide takes each one's own
    assert (len(cluster.commands), len(cluster.slurm.calls("squeue"))) == (before[0] + 1, before[1] + 1)


def test_a_line_of_squeue_that_is_no_row_leaves_only_the_jobs_without_one_open(cluster: LocalCluster) -> None:
    good, lost = (cluster.place(import_request()) for _ in range(2))
    rows = [f"{good[1]}|RUNNING|None|0:05|n1|{good[0].job_name}", f"{lost[1]}|RUN", "Welcome"]
    cluster.slurm.next_answer("squeue", out="\n".join((*rows, "")))
    cluster.slurm.next_answer("scontrol", rc=1, err=CONTROLLER_DOWN)
    seen = cluster.hook.observe([watch_of(*plan) for plan in (good, lost)])
    verdicts = []
    for (plan, job_id), one in zip((good, lost), seen, strict=True):
        memory = Memory(submitted_at=0.0, seen=True, absent_since=0.0)
        verdict, _ = decide(JobKey(job_id, plan.job_name), one.evidence, memory, Limits(), 900.0)
        verdicts.append((verdict.kind, verdict.state, len(verdict.warnings)))
    assert verdicts == [("wait", "RUNNING", 0), ("wait", None, 1)]


def test_a_node_that_failed_is_told_with_what_slurm_will_do(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    cluster.slurm.change(job_id, state="NODE_FAIL")
    control = look(cluster, plan, job_id).evidence.control
    assert control is not None and control.row is not None
    assert (control.row.state, control.row.requeue) == ("NODE_FAIL", False)


def test_a_look_tells_how_long_a_job_that_has_not_begun_is_waiting(cluster: LocalCluster) -> None:
    waiting, begun = (cluster.place(import_request()) for _ in range(2))
    for plan, _ in (waiting, begun):
        written = Path(plan.attempt_directory, "submitted_at")
        written.write_text("2024-05-01T10:00:00\n")
        os.utime(written, (0, written.stat().st_mtime - 3600))
    Path(begun[0].attempt_directory, "claim").mkdir()
    seen = cluster.hook.observe([watch_of(*waiting), watch_of(*begun)])
    assert seen[0].evidence.queued_for in range(3600, 3660)
    assert seen[1].evidence.queued_for is None


def test_what_is_wrong_with_one_job_stays_with_it(cluster: LocalCluster) -> None:
    good, bad, gone = (cluster.place(import_request()) for _ in range(3))
    Path(bad[0].attempt_directory, "completion.json").write_text('{"exit_status":0,')
    Path(bad[0].attempt_directory, "slurm.out").mkdir()
    for path in Path(gone[0].attempt_directory).rglob("*"):
        path.unlink() if path.is_file() else None
    Path(gone[0].attempt_directory).rename(gone[0].attempt_directory + "-moved")
    seen = cluster.hook.observe([watch_of(*plan) for plan in (good, bad, gone)])
    assert (seen[0].evidence.completion, seen[0].missing) == (None, False)
    assert isinstance(seen[1].evidence.completion, CompletionInvalid)
    assert seen[2].missing
    assert all(item.evidence.queue.status == "ok" for item in seen)


def test_a_record_of_another_attempt_is_foreign(cluster: LocalCluster) -> None:
    done = cluster.run(import_request())
    watch = watch_of(done.plan, done.job_id)
    (seen,) = cluster.hook.observe([Watch(**{**watch.__dict__, "token": "f" * 32})])
    assert seen.evidence.completion == CompletionForeign()
    assert seen.record is None


def test_a_record_that_is_a_link_or_too_large_is_not_trusted(cluster: LocalCluster, tmp_path: Path) -> None:
    done = cluster.run(import_request())
    record = done.directory / "completion.json"
    record.rename(tmp_path / "elsewhere.json")
    record.symlink_to(tmp_path / "elsewhere.json")
    assert look(cluster, done.plan, done.job_id).evidence.completion is None
    record.unlink()
    record.write_bytes((tmp_path / "elsewhere.json").read_bytes().rstrip() + b" " * 2**20)
    assert isinstance(look(cluster, done.plan, done.job_id).evidence.completion, CompletionInvalid)


# --- the job's output


def test_output_comes_in_pieces_of_the_size_asked_for_and_in_order(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    Path(plan.attempt_directory, "slurm.out").write_bytes(bytes(range(256)) * 4)
    first = look(cluster, plan, job_id, size=1000)
    second = look(cluster, plan, job_id, offset=1000, size=1000)
    assert first.log + second.log == bytes(range(256)) * 4
    assert (first.log_offset, second.log_offset) == (0, 1000)


def test_a_restarted_watcher_goes_on_where_its_stream_was_kept(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    Path(plan.attempt_directory, "slurm.out").write_bytes(b"0123456789")
    assert look(cluster, plan, job_id, offset=None).log_offset == 0
    look(cluster, plan, job_id, offset=6, kept=4)
    assert look(cluster, plan, job_id, offset=None).log == b"456789"
    assert look(cluster, plan, job_id, offset=None, stream="try2").log == b"0123456789"


def test_watchers_that_restart_at_every_look_show_each_line_once_and_whole(cluster: LocalCluster) -> None:
    """As a sensor in reschedule mode: a new process for each look, which keeps its place with a second one."""
    plan, job_id = cluster.place(import_request())
    cluster.slurm.change(job_id, state="RUNNING")
    handle = JobHandle(
        slurm_conn_id="c",
        job_id=job_id,
        cluster=None,
        job_name=plan.job_name,
        run_key=plan.run_key,
        attempt=plan.attempt,
        token=plan.token,
        workspace=plan.workspace,
        run_directory=plan.attempt_directory,
        submitted_at="2024-05-01T10:00:00",
    )
    shown = []
    for text in ("one\ntw", "o\nthree", "", " and a half\n", "four\n"):
        with Path(plan.attempt_directory, "slurm.out").open("a") as output:
            output.write(text)
        watch = JobWatch(handle, Limits(), 0.0, stream="try1", resume=True)
        (seen,) = cluster.hook.observe([watch.request()])
        _, lines = watch.feed(seen, 0.0)
        cluster.hook.observe([watch.request(0)])
        shown += [line.text for line in lines if not line.text.startswith("job ")]
    assert shown == ["one", "two", "three and a half", "four"]


def test_a_kept_offset_that_makes_no_sense_starts_over(cluster: LocalCluster, tmp_path: Path) -> None:
    plan, job_id = cluster.place(import_request())
    Path(plan.attempt_directory, "slurm.out").write_bytes(b"0123456789")
    for junk in ("", "-3", f"x[$(touch {tmp_path}/never)]", "08", "9999999999999999999999"):
        Path(plan.attempt_directory, "streamed.try1").write_text(junk)
        seen = look(cluster, plan, job_id, offset=None)
        assert seen.evidence.queue.status == "ok"
        assert seen.log_offset >= 0
    assert not (tmp_path / "never").exists()


def test_output_that_looks_like_our_own_markers_is_only_output(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    forged = base64.b64encode(b"PENDING").decode()
    text = f"asi-{'0' * 32} end 0\nsqueue.out {forged}\n\nasi end 0\n".encode()
    Path(plan.attempt_directory, "slurm.out").write_bytes(text)
    assert look(cluster, plan, job_id).log == text


def test_the_next_poll_goes_to_the_cluster_that_sbatch_named(cluster: LocalCluster) -> None:
    cluster.slurm.next_answer("sbatch", effect=True, out="Submitted batch job 101 on cluster north\n")
    plan, staged = cluster.stage(import_request())
    job = cluster.hook.submit(plan, staged).job
    assert job is not None
    cluster.hook.observe([watch_of(plan, job.job_id)], job.cluster)
    assert cluster.slurm.calls("squeue")[-1]["args"][:2] == ["-M", "north"]


# --- cancelling


def test_scancel_names_the_job_and_our_name(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    cluster.slurm.add_job(job_id + 1, "somebody-elses")
    answer = cluster.hook.cancel(job_id, plan.job_name)
    assert [(row.job_id, row.state) for row in answer.rows] == [(job_id, "CANCELLED")]
    (call,) = cluster.slurm.calls("scancel")
    assert {f"--name={plan.job_name}", str(job_id)} <= set(call["args"])
    assert cluster.slurm.job(job_id + 1)["state"] == "RUNNING"


def test_a_recycled_id_under_another_name_is_not_cancelled(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    cluster.slurm.change(job_id, name="somebody-elses")
    assert cluster.hook.cancel(job_id, plan.job_name).rows == ()
    assert cluster.slurm.job(job_id)["state"] == "PENDING"


def test_a_submission_cut_off_is_cancelled_by_its_name(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    cluster.hook.cancel(None, plan.job_name)
    assert cluster.slurm.job(job_id)["state"] == "CANCELLED"
    assert cluster.slurm.run(job_id) == 72  # started all the same: its claim is taken
