"""Boxes start beside each other, lose and regain their daemons, and end without a trace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import procfs
from .box import Box, BoxError, temporary_box
from .box_helpers import left_over, reaches, run, ssh, state_of, submit
from .polling import wait_until
from .slurm_daemons import CLOSED_PARTITION

LOOPBACK_IN_HEX = "0100007F"
PROJECT = Path(__file__).parents[2]

# -- daemons taken away


def test_slurmctld_keeps_its_jobs_over_a_restart(any_box: Box) -> None:
    job_id = submit(any_box, f"--partition={CLOSED_PARTITION}", "--wrap=true")
    any_box.stop_slurmctld()
    assert "is DOWN" in any_box.as_user(["scontrol", "ping"]).stdout
    any_box.start_slurmctld()
    assert state_of(any_box, job_id) == "PENDING"
    any_box.as_user(["scancel", str(job_id)], check=True)


def test_jobs_survive_a_restart_of_slurmd_but_not_the_loss_of_the_node(box_plain: Box) -> None:
    job_id = submit(box_plain, "--wrap=sleep 601")
    assert reaches(box_plain, job_id, "RUNNING")
    box_plain.restart_slurmd()
    assert state_of(box_plain, job_id) == "RUNNING"
    asleep = [pid for pid in box_plain.space.pids("sleep") if procfs.mentions(pid, "601")]
    assert asleep
    box_plain.stop_slurmd()
    assert [pid for pid in asleep if procfs.parent_of(pid) is not None] == []
    assert box_plain.space.pids("slurmstepd") == []
    box_plain.start_slurmd()
    box_plain.as_user(["scancel", str(job_id)])
    assert wait_until(lambda: not box_plain.active_jobs(), 60)


def test_slurmdbd_comes_back(box_accounting: Box) -> None:
    box_accounting.stop_slurmdbd()
    assert box_accounting.as_user(["sacct"]).returncode != 0
    job_id = submit(box_accounting, "--job-name=meanwhile", "--wrap=true")
    assert reaches(box_accounting, job_id, "COMPLETED")
    box_accounting.start_slurmdbd()
    assert wait_until(lambda: bool(box_accounting.sacct("meanwhile")), 60)


def test_a_frozen_daemon_can_be_stopped() -> None:
    with temporary_box(accounting=False) as box:
        for daemon in (box.slurm.slurmctld, box.slurm.slurmd):
            frozen = daemon.pid
            os.kill(frozen, signal.SIGSTOP)
            daemon.stop()
            assert procfs.parent_of(frozen) is None
            assert not daemon.running


# -- apart from each other and from the machine


def test_two_boxes_started_at_once_do_not_collide() -> None:
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        starts = [stack.enter_context, stack.enter_context]
        one, two = pool.map(lambda start: start(temporary_box(accounting=True)), starts)
        assert one.cluster_name != two.cluster_name
        assert not set(one.ports.numbers) & set(two.ports.numbers)
        jobs = {box.cluster_name: submit(box, "--job-name=mine", "--wrap=true") for box in (one, two)}
        for box in (one, two):
            assert reaches(box, jobs[box.cluster_name], "COMPLETED")
            assert len(box.squeue("mine")) == 1


def test_everything_listens_on_loopback_only(any_box: Box) -> None:
    addresses = {port: procfs.listening_addresses(port) for port in any_box.ports.numbers}
    assert all(found == {LOOPBACK_IN_HEX} for found in addresses.values()), addresses


def test_a_user_can_mount_squashfs_inside(box_plain: Box) -> None:
    made, mounted = box_plain.workspace / "made.sqsh", box_plain.workspace / "mounted"
    box_plain.as_user(["mksquashfs", "/etc/hostname", str(made), "-quiet"], check=True)
    box_plain.as_user(["mkdir", str(mounted)], check=True)
    box_plain.as_user(["squashfuse", str(made), str(mounted)], check=True)
    assert box_plain.as_user(["ls", str(mounted)]).stdout == "hostname\n"
    box_plain.as_user(["fusermount3", "-u", str(mounted)], check=True)


# -- ending


@pytest.mark.parametrize("accounting", [True, False])
def test_stopping_leaves_no_process(accounting: bool) -> None:
    with temporary_box(accounting) as box:
        job_id = submit(box, "--wrap=setsid sleep 602")
        assert reaches(box, job_id, "RUNNING")
        detached = [*ssh(box), "setsid sleep 603 > /dev/null 2>&1 < /dev/null &"]
        assert run(detached).returncode == 0
        assert wait_until(lambda: len(box.space.pids("sleep")) == 2, 10)
        inside = box.space.pids()
        assert left_over(box.root)
    assert left_over(box.root) == []
    assert [pid for pid in inside if procfs.parent_of(pid) is not None] == []


def test_a_box_ends_with_its_owner() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.hold"], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    root = Path(owner.stdout.readline().strip())
    assert left_over(root)
    owner.kill()
    owner.communicate()
    assert wait_until(lambda: left_over(root) == [], 10)
    shutil.rmtree(root)


def test_a_failed_start_shows_the_log_and_leaves_nothing() -> None:
    with (
        pytest.raises(BoxError, match="nonsense") as caught,
        temporary_box(accounting=False, slurm_conf={"SelectType": "select/nonsense"}),
    ):
        pass
    assert str(caught.value).startswith("slurmctld ended")


def test_a_root_that_users_cannot_enter_is_refused() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="asi-closed-") as closed,
        pytest.raises(BoxError, match="cannot enter"),
        Box(Path(closed) / "box", accounting=False),
    ):
        pass
