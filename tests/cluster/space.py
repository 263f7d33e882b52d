"""A private process space: PID, mount and host name namespaces for everything that belongs to one box.

Slurm's step daemons, ssh sessions and the jobs' own processes detach themselves from whatever started
them. A PID namespace is what still holds them all: ending its process 1 ends everything, and process 1 ends
with its owner.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from . import procfs
from .errors import BoxError
from .polling import wait_until

CLEAN_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}


def kill(pids: Sequence[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end(pids: Sequence[int], timeout: float = 10) -> None:
    """SIGKILL, and wait: a process is there for a moment after the signal."""
    kill(pids)
    wait_until(lambda: all(procfs.parent_of(pid) is None for pid in pids), timeout, 0.01)


class ProcessSpace:
    """Gone with everything inside once stopped, or once the process that started it dies."""

    def __init__(self, hostname: str, directory: Path) -> None:
        """`directory` takes the log and a hosts file."""
        self.hostname = hostname
        self._directory = directory
        self._keeper: subprocess.Popen[bytes] | None = None
        self._launched: list[subprocess.Popen[bytes]] = []
        self._init = 0
        self._namespace: str | None = None

    def start(self) -> None:
        # A pidfd rather than PR_SET_PDEATHSIG: that one fires when the starting *thread* ends.
        owner = os.pidfd_open(os.getpid())
        try:
            self._keeper = self._start_keeper(owner)
        finally:
            os.close(owner)
        assert self._keeper.stdout is not None
        with self._keeper.stdout as answer:
            if answer.readline() != b"ready\n":
                raise BoxError(f"no process space, which takes root and namespaces:\n{self._log.read_text()}")
        self._init = only_child(self._keeper)
        self._namespace = procfs.pid_namespace_of(self._init)

    def _start_keeper(self, owner: int) -> subprocess.Popen[bytes]:
        hosts = self._directory / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {self.hostname}\n" + Path("/etc/hosts").read_text())
        namespaces = ["--pid", "--mount", "--mount-proc", "--uts", "--fork", "--kill-child=KILL"]
        init = [sys.executable, "-I", str(Path(__file__).with_name("space_init.py"))]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                ["unshare", *namespaces, "--", *init, str(owner), self.hostname, str(hosts)],
                pass_fds=[owner],
                env=CLEAN_ENV,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self._directory / "space.log"

    def stop(self) -> None:
        if self._keeper is None:
            return
        if self._init:
            kill([self._init])
        else:
            self._keeper.kill()
        for process in (self._keeper, *self._launched):
            process.wait()
        self._keeper = None

    def enter(self, argv: Sequence[str], cwd: Path | None = None) -> list[str]:
        """The command line that runs `argv` inside."""
        directory = [f"--wdns={cwd}"] if cwd else []
        return ["nsenter", f"--target={self._init}", "--pid", "--mount", "--uts", *directory, "--", *argv]

    def launch(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Start a daemon inside. What is returned stands outside and waits for its only child, the daemon."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.enter(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=CLEAN_ENV | dict(env),
                cwd="/",
                # The interrupt key is for the test runner, which then stops us in order.
                start_new_session=True,
            )
        self._launched.append(process)
        return process

    def pids(self, name: str | None = None) -> list[int]:
        """Everything inside but process 1, by the pids seen outside; optionally only programs of a name."""
        if self._namespace is None:
            return []
        inside = (pid for pid in procfs.pids_in_namespace(self._namespace) if pid != self._init)
        return [pid for pid in inside if name is None or procfs.name_of(pid) == name]


def only_child(launcher: subprocess.Popen[bytes], timeout: float = 10) -> int:
    """The pid, as seen from outside, of what `unshare` or `nsenter` forked."""
    wait_until(lambda: launcher.poll() is not None or bool(procfs.children_of(launcher.pid)), timeout, 0.005)
    children = procfs.children_of(launcher.pid)
    if not children:
        launcher.kill()
        raise BoxError(f"{launcher.args!r} ended with status {launcher.wait()}")
    return children[0]
