"""Who dies with whom. A container must not outlive the job that started it, and Enroot does not see to that."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from .runner import Enroot, alive_in_session, wait_until

DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
OWN_PIDS = ("unshare", "--user", "--map-current-user", "--pid", "--mount-proc", "--fork", "--kill-child=KILL")
LONELY = "echo runs; exec sleep 60"
FAMILY = "sleep 60 & echo runs; exec sleep 60"


@pytest.fixture(params=[[], ["--pid"]], ids=["plain", "pid-namespace"])
def options(request: pytest.FixtureRequest, enroot: Enroot) -> list[str]:
    """With a PID namespace as well, where this Enroot has it."""
    wanted: list[str] = request.param
    return [option for option in wanted if enroot.offers(option)]


class Running:
    """A container that has said it runs, and would go on for a minute."""

    def __init__(self, enroot: Enroot, image: Path, options: list[str], *before: str, script: str = LONELY) -> None:
        arguments = ["start", *options, "--rc", str(enroot.exec_rc), str(image), "sh", "-c", script]
        self.process: subprocess.Popen[str] = enroot.popen(*arguments, before=before)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "runs\n"

    def alive(self) -> list[str]:
        return alive_in_session(self.process.pid)

    def kill(self) -> None:
        """The first process alone, as the out-of-memory killer would."""
        self.process.kill()
        self.process.wait()

    def ends(self, patience: float = 5.0) -> bool:
        try:
            wait_until("nothing is left", lambda: not self.alive(), patience)
        except AssertionError:
            return False
        return True

    def sweep(self) -> None:
        """Take away what a test has shown to be left."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _session(entry) == self.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
        assert self.ends()


def _session(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return -1


def test_a_running_container_is_seen_by_these_tests(enroot: Enroot, sqsh: Path, options: list[str]) -> None:
    running = Running(enroot, sqsh, options)
    words = "\n".join(running.alive())
    running.sweep()
    assert "sleep 60" in words
    assert "squashfuse" in words


def test_killing_enroot_takes_command_and_mount_along(enroot: Enroot, sqsh: Path, options: list[str]) -> None:
    running = Running(enroot, sqsh, options)
    running.kill()
    assert running.ends()
    assert str(enroot.base) not in Path("/proc/self/mounts").read_text()


def test_what_the_command_had_started_dies_with_it_in_a_pid_namespace(enroot: Enroot, sqsh: Path) -> None:
    if not enroot.offers("--pid"):
        assert enroot.start(sqsh, "true", options=["--pid"]).out.startswith("Usage: ")
        return
    running = Running(enroot, sqsh, ["--pid"], script=FAMILY)
    running.kill()
    assert running.ends()


def test_a_time_limit_ends_the_container(enroot: Enroot, sqsh: Path, options: list[str]) -> None:
    running = Running(enroot, sqsh, options, "timeout", "-k", "1", "1")
    running.process.wait(timeout=20)
    # After -k, timeout has killed its own process group.
    assert running.process.returncode in (124, -9)
    assert running.ends()


def test_without_precautions_a_container_outlives_its_shell(enroot: Enroot, sqsh: Path, options: list[str]) -> None:
    running = Running(enroot, sqsh, options, enroot.helper("keep_running.sh"))
    running.kill()
    ended = running.ends(patience=1.0)
    running.sweep()
    assert not ended


def test_a_parent_death_signal_does_not_pass_through_timeout(enroot: Enroot, sqsh: Path, options: list[str]) -> None:
    """`timeout` dies with the shell, but its child does not hear of it."""
    before = (*DIES_WITH_PARENT, "timeout", "60")
    running = Running(enroot, sqsh, options, enroot.helper("keep_running.sh"), *before)
    running.kill()
    ended = running.ends(patience=1.0)
    running.sweep()
    assert not ended


def test_a_parent_death_signal_on_both_sides_of_timeout_ends_the_command(
    enroot: Enroot, sqsh: Path, options: list[str]
) -> None:
    before = (*DIES_WITH_PARENT, "timeout", "60", *DIES_WITH_PARENT)
    running = Running(enroot, sqsh, options, enroot.helper("keep_running.sh"), *before)
    running.kill()
    assert running.ends()


def test_a_pid_namespace_around_enroot_ends_all_of_it_in_every_release(
    enroot: Enroot, sqsh: Path, options: list[str]
) -> None:
    before = (*DIES_WITH_PARENT, *OWN_PIDS, "timeout", "-k", "5", "60")
    running = Running(enroot, sqsh, options, enroot.helper("keep_running.sh"), *before, script=FAMILY)
    running.kill()
    assert running.ends()


def test_that_namespace_may_close_network_and_ipc_as_well(enroot: Enroot, sqsh: Path) -> None:
    before = (*DIES_WITH_PARENT, "timeout", "60", *OWN_PIDS, "--net", "--ipc")
    script = "readlink /proc/self/ns/net; readlink /proc/self/ns/ipc; readlink /proc/self/ns/pid"
    result = enroot.start(sqsh, "sh", "-c", script, before=before)
    assert result.status == 0, result.err
    mine = {str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("net", "ipc", "pid")}
    assert len(result.lines) == 3
    assert not mine & set(result.lines)


@pytest.mark.parametrize("status", [0, 7])
def test_that_namespace_does_not_change_the_status(enroot: Enroot, sqsh: Path, status: int) -> None:
    before = (*DIES_WITH_PARENT, *OWN_PIDS, "timeout", "-k", "5", "60")
    assert enroot.start(sqsh, "sh", "-c", f"exit {status}", before=before).status == status
