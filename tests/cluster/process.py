"""Daemons in the foreground, as children of the box, with their output in log files."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import procfs
from .errors import BoxError
from .polling import wait_until
from .space import ProcessSpace, end, kill, only_child

LOG_TAIL_LINES = 30


def tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    if not log.exists():
        return "(no log)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Daemon:
    """One program of a process space, started and stopped any number of times."""

    def __init__(
        self, argv: Sequence[str], space: ProcessSpace, logs: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = Path(argv[0]).name
        self.log = logs / f"{self.name}.log"
        self._argv = list(argv)
        self._space = space
        self._env = dict(env or {})
        self._launcher: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def running(self) -> bool:
        return self._launcher is not None and self._launcher.poll() is None

    @property
    def pid(self) -> int:
        """As seen from outside the box, so a test can signal it."""
        if not self.running:
            raise BoxError(f"{self.name} is not running")
        return self._pid

    def start(self) -> None:
        if self.running:
            raise BoxError(f"{self.name} is running already")
        self._launcher = self._space.launch(self._argv, self._env, self.log)
        try:
            self._pid = only_child(self._launcher)
        except BoxError as err:
            raise BoxError(self._with_log("ended at once")) from err

    def wait_ready(self, ready: Callable[[], bool], timeout: float = 30) -> None:
        """Poll until `ready()`; the error of a daemon that died or never got there carries its log."""
        reached = wait_until(lambda: not self.running or ready(), timeout)
        if self.running and reached:
            return
        state = "was not ready in time" if self.running else "ended"
        raise BoxError(self._with_log(state))

    def _with_log(self, what_happened: str) -> str:
        return f"{self.name} {what_happened}; the end of {self.log}:\n{tail(self.log)}"

    def stop(self, grace: float = 10, with_descendants: bool = False) -> None:
        """SIGTERM, then SIGKILL. Descendants are noted before, as they are orphans after."""
        below = procfs.descendants_of(self._pid) if with_descendants and self.running else []
        self._end(signal.SIGTERM, grace)
        end(below)

    def kill(self) -> None:
        """SIGKILL at once, as a crash would."""
        self._end(signal.SIGKILL, 10)

    def _end(self, number: signal.Signals, grace: float) -> None:
        if self._launcher is None:
            return
        if self.running:
            kill([self._pid], number)
            # A test may have frozen the daemon, and nsenter freezes along with its child.
            kill([self._pid, self._launcher.pid], signal.SIGCONT)
        try:
            self._launcher.wait(grace)
        except subprocess.TimeoutExpired:
            kill([self._pid])
            self._launcher.wait()
        self._launcher = None
