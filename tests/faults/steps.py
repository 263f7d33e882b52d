# SPDX-License-Identifier: Apache-2.0
"""Processes of task tries: started, waited for, killed; and what they said when they ended."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from tests.faults import worker

DEPLOYMENT = "tests"  # as tests.airflow.environment sets it


@cache
def forks() -> ForkServerContext:
    """A server that has Airflow imported; it takes over the environment of its first use."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worker.__name__])
    return context


@dataclass(frozen=True)
class Outcome:
    """How a step ended; exactly one of value, deferred, event and error is there."""

    value: dict[str, Any] | None
    deferred: dict[str, Any] | None
    event: dict[str, Any] | None
    error: str | None
    message: str
    retryable: bool
    log: str = field(repr=False)


class Step:
    """A running step. ``origin`` is the deferral that a trigger step goes on from."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.what: str = document["what"]
        self._out = Path(document["out"])
        self.origin: Outcome | None = None
        self._process = forks().Process(target=worker.main, args=(document,), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    @property
    def log(self) -> str:
        file = self._out.with_suffix(".log")
        return file.read_text(errors="replace") if file.exists() else ""

    def outcome(self, timeout: float = 120) -> Outcome:
        """Wait for the end and say how it was."""
        self._process.join(timeout)
        assert not self._process.is_alive(), f"{self.what} has not ended after {timeout:.0f} s:\n{self.log}"
        assert self._out.exists(), f"{self.what} ended with {self._process.exitcode}:\n{self.log}"
        found = json.loads(self._out.read_text())
        return Outcome(
            found.get("value"),
            found.get("deferred"),
            found.get("event"),
            found.get("error"),
            found.get("message", ""),
            found.get("retryable", True),
            self.log,
        )

    def killed(self, timeout: float = 120) -> bool:
        """Wait for the end; whether it was by SIGKILL."""
        self._process.join(timeout)
        return self._process.exitcode == -signal.SIGKILL

    def kill(self) -> None:
        """SIGKILL, as the OOM killer or a lost node."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.join(10)

    def terminate(self, patience: float = 5) -> None:
        """SIGTERM, and SIGKILL after the seconds that Airflow's supervisor allows."""
        os.kill(self.pid, signal.SIGTERM)
        self._process.join(patience)
        self.kill()
