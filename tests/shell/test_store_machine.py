# SPDX-License-Identifier: Apache-2.0
"""Random interleavings of publish, prune, read, crash and standstill on a directory, with the real shell code.

What must hold whatever happens: the alias shows an image that was published whole, link and record together, and
never an older one after a publication said it succeeded; no file that a version names is ever missing; nothing but
what prune may remove disappears.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import IO

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from airflow_slurm_images.core.remote import TruncatedAnswerError, parse
from tests.shell.workspace import PRUNE, Workspace

STEPPER = (Path(__file__).parents[1] / "faults/stepper.sh").read_bytes()
NAMES = st.sampled_from(["a", "b"])
CONTENTS = st.sampled_from(["one", "two", "three"])
DAY = 86400
Sleeper = tuple[subprocess.Popen[bytes], str, str, str]


class StoreMachine(RuleBasedStateMachine):
    """A model of two aliases: what each one may show."""

    readers = Bundle("readers")
    sleepers = Bundle("sleepers")

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp()).resolve()
        self.ws = Workspace(self.root / "ws")
        self.shown: dict[str, set[str | None]] = {"a": {None}, "b": {None}}
        self.opened: list[IO[str]] = []
        self.standing: list[subprocess.Popen[bytes]] = []
        self.calls = 0

    def new_call(self, preamble: bytes) -> str:
        """Every call has a marker of its own; whoever died or stands still has done so for long."""
        self.calls += 1
        self.ws.mark = f"asi-{self.calls:032x}"
        self.ws.preamble = b"sleep() { :; }\n" + preamble
        self.ws.age_locks()
        return self.ws.mark

    def teardown(self) -> None:
        """Close the readers and forget the directory."""
        for process in self.standing:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
        for file in self.opened:
            file.close()
        shutil.rmtree(self.root)

    def run_killed(self, verb: str, constants: dict[str, str], payload: bytes, kill: int) -> bool:
        """Run a verb that dies before its command number ``kill`` (0: never); did it come to its end?"""
        mark = self.new_call(STEPPER if kill else b"")
        self.ws.environment["ASI_TEST_KILL"] = str(kill)
        try:
            result = parse(self.ws.raw(verb, constants, payload), mark)
        except TruncatedAnswerError:
            return False
        assert "refused" not in result.fields, result.fields
        return True

    @rule(name=NAMES, content=CONTENTS, kill=st.one_of(st.just(0), st.integers(20, 300)))
    def publish(self, name: str, content: str, kill: int) -> None:
        """A job adds its file, Airflow publishes it; the publisher may die anywhere."""
        constants, record = self.ws.publication(self.ws.add(content), name)
        if self.run_killed("publish", constants, record, kill):
            self.shown[name] = {content}
        else:
            self.shown[name] = self.shown[name] | {content}

    @rule(target=sleepers, name=NAMES, content=CONTENTS, stop=st.integers(60, 300))
    def publish_and_stand_still(self, name: str, content: str, stop: int) -> Sleeper:
        """A publisher that stops anywhere, for so long that others take its locks over."""
        constants, record = self.ws.publication(self.ws.add(content), name)
        mark = self.new_call(STEPPER)
        process = subprocess.Popen(
            self.ws.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**self.ws.environment, "ASI_TEST_KILL": "0", "ASI_TEST_STOP": str(stop)},
        )
        self.standing.append(process)
        assert process.stdin
        process.stdin.write(self.ws.text("publish", constants, record))
        process.stdin.close()
        process.stdin = None
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.shown[name] = self.shown[name] | {content}  # it may have come to its end
        return process, mark, name, content

    @rule(sleeper=consumes(sleepers))
    def wake_up(self, sleeper: Sleeper) -> None:
        """It goes on: to its end, or it finds that it was given up for dead."""
        process, mark, name, content = sleeper
        process.send_signal(signal.SIGCONT)
        result = parse(process.communicate()[0], mark)
        refused = result.text("refused")
        if refused == "not_visible":  # true, where housekeeping without a grace period came between
            assert not self.ws.file_of(content).exists()
        else:
            assert refused in {"", "unavailable", "integrity"}
        self.shown[name] = self.shown[name] | {content}

    @rule(
        keep=st.sampled_from(["", "1", "2"]),
        grace=st.sampled_from(["0", "604800"]),
        trash=st.sampled_from(["0", "86400"]),
        kill=st.one_of(st.just(0), st.integers(20, 500)),
    )
    def prune(self, keep: str, grace: str, trash: str, kill: int) -> None:
        """Housekeeping, which may die anywhere."""
        variables = {"ASI_KEEP_LAST": keep, "ASI_GRACE_SECONDS": grace, "ASI_TRASH_SECONDS": trash}
        self.run_killed("prune", {**PRUNE, **variables}, b"", kill)

    @rule(days=st.integers(1, 10))
    def time_passes(self, days: int) -> None:
        """Grace periods run."""
        for path in (*self.ws.aliases.glob(".unnamed/*"), *self.ws.root.glob("store/.trash/*")):
            self.ws.age(path, days * DAY)

    @rule(target=readers, name=NAMES)
    def open_alias(self, name: str) -> tuple[IO[str], str] | None:
        """A job starts to run from the alias."""
        content = self.ws.current(name)
        if content is None:
            return None
        file = (self.ws.aliases / f"{name}.sqsh").open()
        self.opened.append(file)
        return file, content

    @rule(reader=consumes(readers))
    def read_on(self, reader: tuple[IO[str], str] | None) -> None:
        """It still reads the image it started from."""
        if reader is not None:
            assert reader[0].read() == reader[1]

    @invariant()
    def alias_shows_what_was_published(self) -> None:
        """Old or new, never nothing and never a mixture."""
        for name, allowed in self.shown.items():
            content = self.ws.current(name)
            assert content in allowed
            self.shown[name] = {content}

    @invariant()
    def every_named_file_is_there(self) -> None:
        """History can be gone back to as long as it is shown."""
        for name in self.shown:
            for version in self.ws.committed(name):
                assert (version / "image.sqsh").exists()

    @invariant()
    def store_files_are_what_their_names_say(self) -> None:
        """Nothing was overwritten, nothing hard-linked."""
        for file in self.ws.store.glob("[0-9a-f]*.sqsh"):
            assert file.stat().st_nlink == 1
            assert file == self.ws.add(file.read_text())


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_random_interleavings_keep_the_promises() -> None:
    _run(examples=8, steps=15)


@pytest.mark.slow
def test_many_long_random_interleavings_keep_the_promises() -> None:
    _run(examples=60, steps=40)
