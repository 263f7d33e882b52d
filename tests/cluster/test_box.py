"""A box does what a cluster does: jobs, logins, Enroot, a registry."""

from __future__ import annotations

import hashlib
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from . import procfs
from .box import Box, BoxError, temporary_box
from .box_helpers import reaches, run, ssh, state_of, submit
from .polling import wait_until
from .slurm_daemons import CLOSED_PARTITION, SHORT_PARTITION

MANIFEST_V2 = "application/vnd.docker.distribution.manifest.v2+json"

# -- jobs


def test_a_batch_job_completes_and_squeue_sees_it(any_box: Box) -> None:
    job_id = submit(any_box, "--job-name=trivial", "--wrap=true")
    assert reaches(any_box, job_id, "COMPLETED")
    assert job_id in {job.job_id for job in any_box.squeue("trivial")}
    assert job_id not in {job.job_id for job in any_box.active_jobs()}


def test_accounting_sees_the_job(box_accounting: Box) -> None:
    job_id = submit(box_accounting, "--job-name=accounted", "--wrap=true")
    assert wait_until(
        lambda: (job_id, "COMPLETED") in {(job.job_id, job.state) for job in box_accounting.sacct("accounted")},
        30,
    )


def test_without_accounting_sacct_fails(box_plain: Box) -> None:
    assert box_plain.account is None
    with pytest.raises(BoxError):
        box_plain.sacct()


def test_the_job_runs_as_the_user_on_the_node(any_box: Box) -> None:
    report = any_box.workspace / "report"
    job_id = submit(any_box, f"--wrap=id -un > {report}; uname -n >> {report}")
    assert reaches(any_box, job_id, "COMPLETED")
    assert report.read_text().split() == [any_box.user, any_box.node]


def test_partitions(any_box: Box) -> None:
    waiting = submit(any_box, f"--partition={CLOSED_PARTITION}", "--wrap=true")
    assert state_of(any_box, waiting) == "PENDING"
    any_box.as_user(["scancel", str(waiting)], check=True)
    too_long = any_box.as_user(["sbatch", f"--partition={SHORT_PARTITION}", "--time=10", "--wrap=true"])
    short = submit(any_box, f"--partition={SHORT_PARTITION}", "--wrap=true")
    assert reaches(any_box, short, "COMPLETED")
    assert too_long.returncode == 0  # accepted, and never started: its reason is PartitionTimeLimit
    any_box.as_user(["scancel", too_long.stdout.split()[-1]], check=True)


def test_a_job_over_its_memory_is_ended(any_box: Box) -> None:
    hog = "x = bytearray(200 * 1024 * 1024); import time; time.sleep(60)"
    job_id = submit(any_box, "--mem=20M", f"--wrap=/usr/bin/python3 -c '{hog}'")
    # Without control groups this is all Slurm says, besides a line in the job's error output.
    assert reaches(any_box, job_id, "FAILED")
    assert "ExitCode=0:9" in any_box.as_root(["scontrol", "show", "job", str(job_id)]).stdout


def test_finished_jobs_can_be_forgotten_soon() -> None:
    with temporary_box(accounting=False, min_job_age=2) as box:
        job_id = submit(box, "--wrap=true")
        assert wait_until(lambda: state_of(box, job_id) is None, 90, 0.5)


# -- logging in


def test_ssh_login_as_either_user(any_box: Box) -> None:
    for user in (any_box.user, any_box.other_user):
        done = run([*ssh(any_box, login=user), "id -un; id -Gn"])
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[0] == user
        assert any_box.group in done.stdout.split()


def test_ssh_needs_the_key(any_box: Box) -> None:
    done = run([*ssh(any_box, "-o", "PubkeyAuthentication=no"), "true"])
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_sshd_goes_away_with_its_sessions_and_comes_back_with_other_options(box_plain: Box) -> None:
    session = subprocess.Popen([*ssh(box_plain), "sleep 600"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert wait_until(lambda: bool(_asleep_in_a_session(box_plain)), 10)
    asleep = _asleep_in_a_session(box_plain)
    box_plain.stop_sshd()
    _, errors = session.communicate(timeout=10)
    assert session.returncode == 255, errors
    assert [pid for pid in asleep if procfs.parent_of(pid) is not None] == []
    assert run([*ssh(box_plain), "true"]).returncode == 255
    box_plain.start_sshd(AllowUsers=box_plain.other_user)
    try:
        assert run([*ssh(box_plain), "true"]).returncode == 255
    finally:
        box_plain.restart_sshd()
    assert run([*ssh(box_plain), "true"]).returncode == 0


def _asleep_in_a_session(box: Box) -> list[int]:
    """Not the box's other sleepers: jobs of earlier tests may have some."""
    return [pid for pid in procfs.descendants_of(box.sshd.daemon.pid) if procfs.name_of(pid) == "sleep"]


def test_enroot_is_found_in_a_login_and_in_a_job(box_plain: Box, enroot_dir: Path) -> None:
    enroot = Path(box_plain.extra["enroot_bin"]) / "enroot"
    assert run([*ssh(box_plain), str(enroot), "version"]).stdout.strip()[0].isdigit()
    report = box_plain.workspace / "version"
    job_id = submit(box_plain, f"--output={report}", "--wrap=enroot version")
    assert reaches(box_plain, job_id, "COMPLETED")
    assert report.read_text().strip()[0].isdigit()


def test_enroot_out_of_reach_of_users_is_copied(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "bin"
    hidden.mkdir(parents=True)
    (hidden / "enroot").symlink_to("/bin/true")
    hidden.chmod(0o700)
    with temporary_box(accounting=False, enroot_dir=hidden) as box:
        assert box.as_user(["enroot"]).returncode == 0


def test_the_connection_names_what_is_there(any_box: Box) -> None:
    connection = any_box.connection
    assert (connection["conn_type"], connection["login"]) == ("slurm_ssh", any_box.user)
    extra = connection["extra"]
    for key in ("key_file", "slurm_conf", "workspace_root", "slurm_bin"):
        assert Path(extra[key]).exists(), key
    assert Path(extra["workspace_root"]).owner() == any_box.user


# -- the registry


def test_the_registry_serves_the_pushed_digests(box_plain: Box, push_images: Callable[[Box], dict[str, str]]) -> None:
    digests = push_images(box_plain)
    assert set(digests) == {"client", "serving", "nopython", "static"}
    for name, digest in digests.items():
        url = f"http://{box_plain.registry}/v2/images/{name}/manifests/{digest}"
        # Enroot's first request names no media types, so this one does not either.
        with urllib.request.urlopen(url) as answer:
            body = answer.read()
        assert answer.headers["Content-Type"] == MANIFEST_V2
        assert f"sha256:{hashlib.sha256(body).hexdigest()}" == digest
