# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.shell.workspace import CLUSTER, Workspace

HARNESS = Path(__file__).with_name("store_harness.sh")


@dataclass
class Job:
    """One run of the job's store part."""

    ws: Workspace
    scratch: Path
    token: str = "0" * 32
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        """The file an import made."""
        return self.scratch / "work.sqsh"

    @property
    def partial(self) -> Path:
        """Temporary name in the store."""
        return self.ws.store / f".partial-{self.token}-0"

    def command(self, small: str = "") -> tuple[list[str], dict[str, str]]:
        """Arguments and environment of the harness."""
        argv = ["/bin/bash", str(HARNESS), str(CLUSTER), small]
        if small:
            argv = ["unshare", "--user", "--map-root-user", "--mount", *argv]
        environment = {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C",
            "ASI_STORE": str(self.ws.store),
            "ASI_SCRATCH": str(self.scratch),
            "ASI_ATTEMPT_DIR": str(self.scratch),
            "ASI_TOKEN": self.token,
            "SLURM_RESTART_COUNT": "0",
            "ASI_GROUP": "",
            "ASI_OPERATION": "import_oci",
            "ASI_COPY_TO_STORE": "0",
            "ASI_MIN_FREE_KIB": "0",
            "ASI_WORK": str(self.work),
            "ASI_WORK_OWNED": "1",
            **self.variables,
        }
        return argv, environment

    def run(self, *, small: str = "", hooks: str = "") -> subprocess.CompletedProcess[str]:
        """Run it to its end; ``hooks`` is shell text loaded after the files under test."""
        argv, environment = self.command(small)
        if hooks:
            path = self.scratch / "hooks.sh"
            path.write_text(hooks)
            environment["ASI_TEST_HOOKS"] = str(path)
        return subprocess.run(argv, env=environment, capture_output=True, text=True)


def result(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("result: ")).split()[1:]


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path.resolve() / "ws")


@pytest.fixture
def job(ws: Workspace, tmp_path: Path) -> Job:
    """An import on the store's own file system."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    job = Job(ws, scratch)
    job.work.write_text("image")
    return job


@pytest.fixture
def far(ws: Workspace) -> Iterator[Job]:
    """An import on another file system than the store's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        assert Path(scratch).stat().st_dev != ws.store.stat().st_dev
        job = Job(ws, Path(scratch))
        job.work.write_text("image")
        yield job


SHA = hashlib.sha256(b"image").hexdigest()


def test_on_one_file_system_the_file_is_moved_not_copied(job: Job) -> None:
    inode = job.work.stat().st_ino
    path, sha256, size, seen_inode, mtime, managed = result(job.run())
    file = job.ws.store / f"{SHA}.sqsh"
    assert (path, sha256, size, managed) == (str(file), SHA, "5", "true")
    assert (int(seen_inode), int(mtime)) == (inode, int(file.stat().st_mtime))
    assert file.stat().st_ino == inode
    assert file.stat().st_nlink == 1
    assert not job.work.exists()
    assert job.ws.files() == [file.name]


def test_between_file_systems_one_pass_copies_and_hashes(far: Job) -> None:
    reads = far.scratch / "reads"
    hooks = f'asi::sha256() {{ echo read >> "{reads}"; sha256sum | cut -d " " -f 1; }}\n'
    path, sha256, *_ = result(far.run(hooks=hooks))
    assert sha256 == SHA
    assert Path(path).read_text() == "image"
    assert reads.read_text().split() == ["read"]
    assert far.ws.files() == [f"{SHA}.sqsh"]


def test_modes_are_explicit_whatever_the_umask(job: Job) -> None:
    path = Path(result(job.run())[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o400


def test_an_inspection_leaves_the_file_where_it_is(job: Job) -> None:
    job.variables = {"ASI_OPERATION": "inspect_sqsh", "ASI_WORK_OWNED": ""}
    path, sha256, _, _, _, managed = result(job.run())
    assert (path, sha256, managed) == (str(job.work), SHA, "false")
    assert job.ws.files() == []


def test_a_file_that_is_used_again_is_hashed_and_stays(job: Job) -> None:
    there = job.ws.add("image")
    job.variables = {"ASI_EXISTING_SHA256": SHA, "ASI_WORK": str(there), "ASI_WORK_OWNED": ""}
    path, sha256, _, inode, _, managed = result(job.run())
    assert (path, sha256, int(inode), managed) == (str(there), SHA, there.stat().st_ino, "true")
    there.chmod(0o600)
    there.write_text("other")
    assert job.run().returncode == 87
    assert there.read_text() == "other"


def test_copy_to_store_keeps_the_given_file_on_any_file_system(job: Job) -> None:
    job.variables = {"ASI_OPERATION": "inspect_sqsh", "ASI_COPY_TO_STORE": "1", "ASI_WORK_OWNED": ""}
    path, *_ = result(job.run())
    assert Path(path).read_text() == job.work.read_text() == "image"
    assert Path(path).stat().st_ino != job.work.stat().st_ino


def test_a_result_that_cannot_be_looked_at_any_more_is_a_failure(job: Job) -> None:
    done = job.run(hooks='asi::add_to_store() { rm -f -- "${ASI_WORK}"; }')
    assert done.returncode == 88, done.stdout
    assert "cannot be looked at any more" in done.stderr
    assert "result:" not in done.stdout


@pytest.mark.parametrize("where", ["job", "far"])
def test_the_same_bytes_in_the_store_are_a_success(where: str, request: pytest.FixtureRequest) -> None:
    job: Job = request.getfixturevalue(where)
    there = job.ws.add("image")
    done = job.run()
    assert result(done)[0] == str(there)
    assert "already in the store" in done.stdout
    assert int(result(done)[3]) == there.stat().st_ino
    assert job.ws.files() == [there.name]


@pytest.mark.parametrize("where", ["job", "far"])
def test_a_corrupt_file_of_that_name_is_an_error_and_stays(where: str, request: pytest.FixtureRequest) -> None:
    job: Job = request.getfixturevalue(where)
    there = job.ws.store / f"{SHA}.sqsh"
    there.write_text("garbage")
    done = job.run()
    assert done.returncode == 87
    assert there.read_text() == "garbage"
    assert job.ws.files() == [there.name]


def test_a_link_of_that_name_is_an_error_and_stays(job: Job) -> None:
    there = job.ws.store / f"{SHA}.sqsh"
    there.symlink_to(job.scratch / "same")
    (job.scratch / "same").write_text("image")
    assert job.run().returncode == 87
    assert there.is_symlink()


def test_what_a_killed_start_of_this_attempt_left_is_replaced(far: Job) -> None:
    far.partial.write_text("half of a longer file")
    assert result(far.run())[1] == SHA
    assert far.ws.files() == [f"{SHA}.sqsh"]


def test_eight_jobs_with_the_same_bytes_leave_one_file(ws: Workspace, tmp_path: Path) -> None:
    jobs = []
    for number in range(8):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        job = Job(ws, scratch, token=f"{number:032x}")
        job.work.write_text("image")
        jobs.append(job)
    with ThreadPoolExecutor(8) as pool:
        answers = [result(done) for done in pool.map(Job.run, jobs)]
    assert len({tuple(answer) for answer in answers}) == 1
    assert ws.files() == [f"{SHA}.sqsh"]
    assert list((ws.aliases / ".locks").iterdir()) == []


def test_adding_a_file_again_starts_its_grace_period_anew(job: Job) -> None:
    job.ws.add("image")
    job.ws.prune()
    marker = job.ws.aliases / ".unnamed" / SHA
    assert marker.exists()
    result(job.run())
    assert not marker.exists()


def test_a_move_that_became_a_copy_is_hashed_again(job: Job) -> None:
    copying = 'printf imagE > "${!#}"; rm "${@: -2:1}"'
    hooks = f'mv() {{ if [[ "$*" == *work.sqsh* ]]; then {copying}; else command mv "$@"; fi; }}\n'
    done = job.run(hooks=hooks)
    assert done.returncode == 88
    assert "other bytes" in done.stderr
    assert job.ws.files() == []


def test_a_file_changed_while_it_is_hashed_is_refused(far: Job) -> None:
    hooks = f'asi::sha256() {{ sha256sum | cut -d " " -f 1; echo more >> "{far.work}"; }}\n'
    assert far.run(hooks=hooks).returncode == 81
    assert not list(far.ws.store.glob("*.sqsh"))


def test_a_copy_that_does_not_fit_says_so_before_it_starts(far: Job) -> None:
    far.work.write_bytes(b"x" * 3_000_000)
    done = far.run(small="1M")
    assert done.returncode == 73
    assert str(far.ws.store) in done.stderr
    assert "left: \n" in done.stdout


def test_no_space_in_the_middle_leaves_nothing_and_names_the_reason(far: Job) -> None:
    far.work.write_bytes(b"x" * 3_000_000)
    done = far.run(small="1M", hooks="asi::free_kib() { :; }\n")
    assert done.returncode == 88
    assert "No space left on device" in done.stderr
    assert "left: \n" in done.stdout


def test_quota_is_told_apart_from_no_space(far: Job) -> None:
    hooks = 'tee() { cat; printf "tee: x: Disk quota exceeded\\n" >&2; return 1; }\n'
    done = far.run(hooks=hooks)
    assert done.returncode == 88
    assert "Disk quota exceeded" in done.stderr


def test_an_error_of_the_file_server_at_the_end_of_writing_is_noticed(far: Job) -> None:
    done = far.run(hooks='sync() { printf "sync: Input/output error\\n" >&2; return 1; }\n')
    assert done.returncode == 88
    assert far.ws.files() == []


@pytest.mark.parametrize(("variable", "where"), [("ASI_SCRATCH", "scratch"), ("ASI_STORE", "store")])
def test_min_free_is_checked_for_scratch_and_store(far: Job, variable: str, where: str) -> None:
    far.variables = {"ASI_MIN_FREE_KIB": "1000000"}
    free = {"scratch": far.scratch, "store": far.ws.store}
    hooks = f'asi::free_kib() {{ [[ "$1" == "{free[where]}" ]] && echo 5 || echo 2000000; }}\n'
    done = far.run(hooks=hooks)
    assert done.returncode == 73
    assert f"only 5 KiB free at {free[where]}, min_free asks for 1000000" in done.stderr, variable


def test_an_inspection_needs_no_space_in_the_store(job: Job) -> None:
    job.variables = {"ASI_OPERATION": "inspect_sqsh", "ASI_WORK_OWNED": "", "ASI_MIN_FREE_KIB": "1000"}
    hooks = f'asi::free_kib() {{ [[ "$1" == "{job.ws.store}" ]] && echo 5 || echo 2000000; }}\n'
    assert job.run(hooks=hooks).returncode == 0


def test_a_lock_that_cannot_be_had_changes_nothing(job: Job) -> None:
    done = job.run(hooks='asi::lock() { ASI_LOCK_REASON="held by n1"; return 1; }\n')
    assert done.returncode == 88
    assert "held by n1" in done.stderr
    assert job.ws.files() == []


def test_a_signal_during_the_copy_ends_the_job_at_once(far: Job) -> None:
    hooks = far.scratch / "hooks.sh"
    hooks.write_text('asi::sha256() { kill -TERM "$$"; cat > /dev/null; sleep 600; }\n')
    argv, environment = far.command()
    process = subprocess.Popen(
        argv, env={**environment, "ASI_TEST_HOOKS": str(hooks)}, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.wait(timeout=30) == 143
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
