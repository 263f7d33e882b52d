# SPDX-License-Identifier: Apache-2.0
"""What a job must never do, whatever happens to it: act on changed files, run twice, outlive its end, keep secrets."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_slurm_images.core import failures, job_script
from airflow_slurm_images.core.errors import IntegrityError
from airflow_slurm_images.core.plan import PACKAGE_FILES
from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import (
    CREDENTIALS,
    LocalCluster,
    Outcome,
    import_request,
    inspect_request,
    secrets_in,
)

STAGED = (*PACKAGE_FILES, "plan.json", "package.sha256", "staged.sha256", "job.sbatch")
TAMPERED, SUPERSEDED = 71, 72


def until(what: Callable[[], object], seconds: float = 10) -> None:
    """Wait for something that other processes do."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# --- changed files


@pytest.mark.parametrize("name", STAGED)
def test_one_changed_bit_stops_the_job_before_enroot(cluster: LocalCluster, name: str) -> None:
    plan, job_id = cluster.place(import_request("client"), CREDENTIALS)
    directory = Path(plan.attempt_directory)
    flip(directory / name)
    done = Outcome(plan, job_id, cluster.slurm.run(job_id))
    assert done.status == TAMPERED, done.output
    assert done.record.exit_status == TAMPERED
    assert cluster.slurm.enroot_calls() == []
    assert secrets_in(directory) == []


@pytest.mark.parametrize("name", ["enroot.rc", "job.sbatch", "staged.sha256"])
def test_one_changed_bit_stops_the_submission(cluster: LocalCluster, name: str) -> None:
    plan, staged = cluster.stage(import_request("client"))
    flip(Path(plan.attempt_directory) / name)
    with pytest.raises(IntegrityError, match="nothing was submitted"):
        cluster.hook.submit(plan, staged)
    assert cluster.slurm.calls("sbatch") == []


# --- one job an attempt


def test_a_second_job_of_an_attempt_is_superseded_and_changes_nothing(cluster: LocalCluster) -> None:
    plan, first = cluster.place(import_request(), CREDENTIALS)
    second = cluster.slurm.submit(Path(plan.attempt_directory) / "job.sbatch")
    assert cluster.slurm.run(first) == 0
    record = (Path(plan.attempt_directory) / "completion.json").read_bytes()
    done = Outcome(plan, second, cluster.slurm.run(second))
    assert done.status == SUPERSEDED
    assert "superseded" in done.output
    assert (done.directory / "completion.json").read_bytes() == record
    assert len(cluster.slurm.enroot_calls("import")) == 1


def test_a_job_beside_the_running_one_leaves_its_login_alone(cluster: LocalCluster) -> None:
    plan, first = cluster.place(import_request(), CREDENTIALS)
    second = cluster.slurm.submit(Path(plan.attempt_directory) / "job.sbatch")
    gate = cluster.slurm.enroot / "go"
    cluster.slurm.enroot_does("import", 'until [[ -e "${here}/go" ]]; do :; done\ncp "${here}/image.sqsh" "${output}"')
    running = cluster.slurm.start(first)
    until(lambda: cluster.slurm.enroot_calls("import"))
    assert cluster.slurm.run(second) == SUPERSEDED
    assert secrets_in(Path(plan.attempt_directory))
    assert not (Path(plan.attempt_directory) / "completion.json").exists()
    gate.touch()
    assert running.wait(20) == 0


def test_the_same_job_restarted_by_slurm_starts_over(cluster: LocalCluster) -> None:
    cluster.slurm.enroot_does("import", "exit 1")
    done = cluster.run(import_request())
    assert done.record.exit_status == 78
    cluster.slurm.enroot_does("import", 'cp "${here}/image.sqsh" "${output}"')
    again = Outcome(done.plan, done.job_id, cluster.slurm.run(done.job_id, restarts=1))
    assert again.status == 0, again.output
    assert again.record.restart_count == 1
    assert again.record.exit_status == 0


def test_a_restart_count_that_did_not_grow_is_no_restart(cluster: LocalCluster) -> None:
    done = cluster.run(import_request())
    assert cluster.slurm.run(done.job_id) == SUPERSEDED


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_claim_whose_maker_died_before_it_named_itself_is_a_failure_that_a_retry_helps(
    cluster: LocalCluster, restarts: int
) -> None:
    plan, job_id = cluster.place(import_request())
    (Path(plan.attempt_directory) / "claim").mkdir()
    status = cluster.slurm.run(job_id, restarts=restarts)
    assert failures.EXIT_CODES[status].retryable
    assert "claimed by nobody" in Path(plan.attempt_directory, "slurm.out").read_text()
    assert cluster.slurm.enroot_calls("import") == []
    assert not Path(plan.attempt_directory, "completion.json").exists()  # if somebody is alive, it is theirs to write


def test_a_claim_that_is_named_a_moment_later_is_waited_for(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    claim = Path(plan.attempt_directory) / "claim"
    claim.mkdir()
    running = cluster.slurm.start(job_id)
    until(lambda: "phase claim" in Path(plan.attempt_directory, "slurm.out").read_text())
    (claim / "job_id").write_text("999 0\n")
    assert running.wait(20) == SUPERSEDED


def test_the_text_of_a_claim_is_never_calculated(cluster: LocalCluster, tmp_path: Path) -> None:
    done = cluster.run(import_request())
    claim = done.directory / "claim/job_id"
    claim.write_text(f"{done.job_id} UID[$(touch\t{tmp_path}/injected)]\n")
    assert cluster.slurm.run(done.job_id, restarts=1) == SUPERSEDED
    assert not (tmp_path / "injected").exists()


def test_an_attempt_that_cannot_be_claimed_says_why(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    (Path(plan.attempt_directory) / "claim").write_text("")  # as good as a full disk: mkdir fails
    done = Outcome(plan, job_id, cluster.slurm.run(job_id))
    assert done.status == 70
    assert "cannot claim" in done.output
    assert done.record.exit_status == 70


# --- ends from outside

BUSY = """
echo TOP-SECRET > "${ENROOT_CACHE_PATH}/.tokens.1000"
echo data > "${ENROOT_TEMP_PATH}/layer"
setsid sleep 1000 &
echo ready
sleep 1000
"""


def busy(cluster: LocalCluster) -> tuple[subprocess.Popen[bytes], Outcome]:
    """A job in the middle of its import, with a helper in a session of its own."""
    cluster.slurm.enroot_does("import", BUSY)
    plan, job_id = cluster.place(import_request(), CREDENTIALS)
    process = cluster.slurm.start(job_id)
    done = Outcome(plan, job_id, 0)
    until(lambda: "ready" in done.output)
    assert secrets_in(done.directory)
    assert cluster.slurm.leftovers()
    return process, done


def test_sigterm_leaves_a_record_and_nothing_else(cluster: LocalCluster) -> None:
    process, done = busy(cluster)
    process.terminate()
    assert process.wait(20) == 143
    assert (done.record.exit_status, done.record.phase) == (143, "import")
    assert cluster.slurm.leftovers() == []
    assert secrets_in(done.directory) == []
    assert cluster.slurm.processes() == {}


# A kill of several takes its time, the children first; what is killed alone is replaced by its parent.
SLOW_KILL = """
source "$1/process.sh"
kill() {
    if [[ "$1" == -KILL ]]; then
        shift
        for pid in $(printf '%s\\n' "$@" | sort -rn); do
            command kill -KILL "${pid}"
            sleep 0.3
        done
    else
        command kill "$@"
    fi
}
(while :; do setsid --fork --wait sleep "$2"; done) &
until pgrep -f "^sleep $2\\$" > /dev/null; do sleep 0.05; done
asi::kill_tree "$!"
pgrep -f "^sleep $2\\$"
"""


def test_what_is_being_killed_starts_nothing_more() -> None:
    cluster, mine = Path(job_script.__file__).parents[1] / "cluster", f"60.{os.getpid()}"
    command = ["/bin/bash", "-c", SLOW_KILL, "bash", str(cluster), mine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr


HANG = 'touch "${0%/*}/asked"; sleep 1000'
OLD_UNSHARE = '[[ "$*" != *--map-current-user* ]] || exit 1\nexit 0'
QUESTIONS = {
    "enroot version": ("enroot", HANG, "check"),
    "enroot start --help": ("enroot", f'[[ "$*" != *--help* ]] || {{ {HANG}; }}\necho 4.1.2', "inspect"),
    "unshare": ("unshare", HANG, "inspect"),
    "unsquashfs -cat": (
        "unsquashfs",
        f'[[ "$*" != *-cat* ]] || {{ {HANG}; }}\nexec /usr/bin/unsquashfs "$@"',
        "examine",
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_tool_that_does_not_answer_holds_up_no_signal(cluster: LocalCluster, question: str) -> None:
    tool, body, phase = QUESTIONS[question]
    if "--help" in question:
        cluster.slurm.tool("unshare", OLD_UNSHARE)
    cluster.slurm.tool(tool, body)
    plan, job_id = cluster.place(inspect_request(image("plain"), "client"))
    process = cluster.slurm.start(job_id)
    done = Outcome(plan, job_id, 0)
    until((cluster.slurm.enroot / "asked").exists)
    until(lambda: (done.directory / "phase").read_text().startswith(f"{phase} "))
    process.terminate()
    assert process.wait(20) == 143
    assert (done.record.exit_status, done.record.phase) == (143, phase)
    assert cluster.slurm.leftovers() == []
    assert cluster.slurm.processes() == {}


def test_a_batch_shell_killed_alone_leaves_nothing_for_longer_than_five_seconds(cluster: LocalCluster) -> None:
    process, done = busy(cluster)
    process.kill()
    process.wait(5)
    until(lambda: not cluster.slurm.leftovers() and not cluster.slurm.processes(), 5)
    assert secrets_in(done.directory) == []
    assert not (done.directory / "completion.json").exists()


def test_a_batch_shell_killed_while_it_hashes_leaves_nothing_either(cluster: LocalCluster) -> None:
    hang = '[[ "$(readlink /proc/self/fd/0)" == /dev/null ]] || { touch "${0%/*}/hashing"; sleep 1000; }'
    cluster.slurm.tool("openssl", f"{hang}\nexec sha256sum")
    _, job_id = cluster.place(import_request())
    process = cluster.slurm.start(job_id)
    until((cluster.slurm.enroot / "hashing").exists)
    process.send_signal(signal.SIGKILL)
    process.wait(5)
    until(lambda: not cluster.slurm.leftovers() and not cluster.slurm.processes(), 5)


@pytest.mark.parametrize("script", ['cp "${here}/image.sqsh" "${output}"', "exit 1"], ids=["good", "bad"])
def test_the_login_is_removed_however_the_import_ends(cluster: LocalCluster, script: str) -> None:
    cluster.slurm.enroot_does(
        "import",
        f"""cp "${{ENROOT_CONFIG_PATH}}/.credentials" "${{here}}/seen"
        stat -c %a "${{ENROOT_CONFIG_PATH}}/.credentials" "${{ENROOT_CONFIG_PATH}}" > "${{here}}/modes"
        echo TOP-SECRET > "${{ENROOT_CACHE_PATH}}/.tokens.1000"
        {script}""",
    )
    plan, job_id = cluster.place(import_request(), CREDENTIALS)
    cluster.slurm.run(job_id)
    assert (cluster.slurm.enroot / "seen").read_bytes() == CREDENTIALS
    assert (cluster.slurm.enroot / "modes").read_text().split() == ["600", "700"]
    assert secrets_in(cluster.workspace) == []
    assert not (Path(plan.attempt_directory) / "enroot-config").exists()
    # Neither what Slurm shows of the job nor what a process list shows may hold it.
    assert secrets_in(cluster.slurm.root / "slurm") == []


# --- output


def test_a_talkative_tool_cannot_fill_the_disk_nor_stop_the_job(cluster: LocalCluster) -> None:
    cluster.slurm.enroot_does("import", 'yes | head -c 50000000\necho end >&2\ncp "${here}/image.sqsh" "${output}"')
    done = cluster.run(import_request())
    assert done.status == 0
    assert (done.directory / "enroot.log").stat().st_size == 8 * 2**20
    assert (done.directory / "slurm.out").stat().st_size < 9 * 2**20


def test_a_log_that_cannot_be_written_does_not_break_the_import(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    (Path(plan.attempt_directory) / "enroot.log").mkdir()  # as good as a full disk: it cannot be written
    cluster.slurm.enroot_does("import", 'yes | head -c 1000000 || exit 9\ncp "${here}/image.sqsh" "${output}"')
    done = Outcome(plan, job_id, cluster.slurm.run(job_id))
    assert done.status == 0, done.output


def test_scratch_that_cannot_be_made_is_named(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(import_request())
    shutil.rmtree(cluster.slurm.scratch)
    done = Outcome(plan, job_id, cluster.slurm.run(job_id))
    assert done.status == 89
    assert str(cluster.slurm.scratch) in done.output


def test_a_sweep_sees_no_scratch_whose_lock_is_not_held_yet(cluster: LocalCluster) -> None:
    seen = cluster.slurm.enroot / "seen"
    nodes = f'"{cluster.slurm.scratch}"/asi-*/node'
    cluster.slurm.tool("flock", f'for node in {nodes}; do [[ ! -e $node ]] || echo "$node" >> {seen}; done\nexit 0')
    done = cluster.run(import_request())
    assert done.status == 0, done.output
    assert not seen.exists()


def test_a_shell_that_dies_before_it_opens_the_guards_pipe_is_cleaned_up_too(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    os.mkfifo(scratch / "guard")
    script = f"""
        set +o posix
        source "{Path(job_script.__file__).parents[1]}/cluster/process.sh"
        asi::forget_credentials() {{ :; }}
        set -m
        asi::guard "{scratch}/guard" "{scratch}" < /dev/null > /dev/null 2>&1 &
        kill -KILL $$
    """
    assert subprocess.run(["/bin/bash", "-c", script]).returncode == -signal.SIGKILL
    until(lambda: not scratch.exists())


def test_a_record_that_did_not_reach_the_disk_whole_is_no_record(cluster: LocalCluster) -> None:
    cut = 'case "$*" in *completion.new) head -c 40 -- "${@: -1}" > cut && cat cut > "${@: -1}" ;; esac'
    cluster.slurm.tool("sync", cut)
    done = cluster.run(import_request())
    assert not (done.directory / "completion.json").exists()
    assert "the completion record cannot be written" in done.output


def test_nothing_is_piped_into_a_reader_that_leaves_early() -> None:
    """With pipefail such a pipe fails whenever the writer is the slower one."""
    for path in (Path(job_script.__file__).parents[1] / "cluster").glob("*.sh"):
        for line in path.read_text().splitlines():
            assert not re.search(r"(?<!\|)\|\s*grep -\w*q", line), f"{path.name}: {line}"
