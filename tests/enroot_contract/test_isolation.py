"""What a container shares with the host, and the options that end it where Enroot has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .registries import OddRegistry
from .runner import Enroot


def _host_namespace(name: str) -> str:
    return str(Path(f"/proc/self/ns/{name}").readlink())


def _namespace(enroot: Enroot, image: Path, name: str, *options: str) -> str:
    result = enroot.start(image, "readlink", f"/proc/self/ns/{name}", options=options)
    assert result.status == 0, result.err
    return result.out.strip()


@pytest.mark.parametrize("name", ["user", "mnt"])
def test_user_and_mount_namespaces_are_always_new(enroot: Enroot, sqsh: Path, name: str) -> None:
    assert _namespace(enroot, sqsh, name) != _host_namespace(name)


@pytest.mark.parametrize("name", ["pid", "net", "ipc", "uts"])
def test_other_namespaces_are_new_only_where_enroot_has_the_option(enroot: Enroot, sqsh: Path, name: str) -> None:
    """Two programs call themselves 4.1.2; the help text tells whether this one can isolate."""
    host = _host_namespace(name)
    assert _namespace(enroot, sqsh, name) == host
    if enroot.offers(f"--{name}"):
        assert _namespace(enroot, sqsh, name, f"--{name}") != host
        return
    result = enroot.start(sqsh, "true", options=[f"--{name}"])
    assert (result.status, result.err) == (1, "")
    assert result.out.startswith("Usage: enroot start ")


@pytest.mark.parametrize("name", ["pid", "net", "ipc", "uts"])
def test_a_namespace_can_be_asked_for_in_the_environment_where_there_is_the_option(
    enroot: Enroot, sqsh: Path, name: str
) -> None:
    result = enroot.start(sqsh, "readlink", f"/proc/self/ns/{name}", env={f"ENROOT_UNSHARE_{name.upper()}": "yes"})
    isolated = result.out.strip() != _host_namespace(name)
    assert isolated == enroot.offers(f"--{name}")


def test_host_processes_are_reached_without_a_pid_namespace(enroot: Enroot, sqsh: Path) -> None:
    victim = enroot.popen("30", program="sleep")
    assert enroot.start(sqsh, "kill", "-9", str(victim.pid)).status == 0
    victim.communicate(timeout=10)
    assert victim.returncode == -9


def test_host_processes_are_out_of_reach_in_a_pid_namespace(enroot: Enroot, sqsh: Path) -> None:
    victim = enroot.popen("30", program="sleep")
    result = enroot.start(sqsh, "kill", "-9", str(victim.pid), options=["--pid"])
    alive = victim.poll() is None
    victim.kill()
    victim.communicate()
    assert alive
    assert result.status == 1


def test_the_host_s_network_is_reached_without_a_network_namespace(
    enroot: Enroot, sqsh: Path, odd: OddRegistry
) -> None:
    odd.bodies["/hello"] = ("text/plain", b"hello\n")
    command = ["wget", "-q", "-O", "-", f"http://{odd.address}/hello"]
    assert enroot.start(sqsh, *command).out == "hello\n"
    closed = enroot.start(sqsh, *command, options=["--net"])
    assert (closed.status, "hello" in closed.out) == (1, False)


@pytest.mark.parametrize(("command", "status"), [("exit 7", 7), ("sleep 1 & exit 0", 0), ("kill -TERM $$; exit 3", 3)])
def test_a_pid_namespace_does_not_change_the_status(enroot: Enroot, sqsh: Path, command: str, status: int) -> None:
    """The first process of a namespace ignores signals it has no handler for."""
    if not enroot.offers("--pid"):
        assert enroot.start(sqsh, "true", options=["--pid"]).out.startswith("Usage: ")
        return
    assert enroot.start(sqsh, "sh", "-c", command, options=["--pid", "--net", "--ipc"]).status == status


def test_only_the_container_s_processes_are_listed_in_a_pid_namespace(enroot: Enroot, sqsh: Path) -> None:
    result = enroot.start(sqsh, "ls", "/proc", options=["--pid"])
    if not enroot.offers("--pid"):
        assert result.out.startswith("Usage: ")
        return
    assert len([line for line in result.lines if line.isdigit()]) <= 4
