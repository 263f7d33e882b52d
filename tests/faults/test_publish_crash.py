# SPDX-License-Identifier: Apache-2.0
"""Kill the publisher before every single command it runs: the alias means the old image or the new one, never less.

The steps are not a list somebody keeps: a DEBUG trap sent ahead of the real scripts counts them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_slurm_images.core.remote import RemoteResult, parse
from tests.shell.workspace import PRUNE, Workspace

STEPPER = (Path(__file__).parent / "stepper.sh").read_bytes()
Scenario = Callable[[Path], tuple[Workspace, str, dict[str, str], bytes]]

CHANGES = ("mv", "ln", "rm", "mkdir", "rmdir", "chmod", "sync", "chgrp")
"""What changes the file system: killing before each of them, and at the end, leaves every state there can be."""


def first_publication(root: Path) -> tuple[Workspace, str, dict[str, str], bytes]:
    ws = Workspace(root)
    return ws, "publish", *ws.publication(ws.add("new"), "vllm")


def moved_alias(root: Path) -> tuple[Workspace, str, dict[str, str], bytes]:
    ws = Workspace(root)
    ws.publish(ws.add("old"))
    return ws, "publish", *ws.publication(ws.add("new"), "vllm")


def publication_out_of_the_trash(root: Path) -> tuple[Workspace, str, dict[str, str], bytes]:
    ws = Workspace(root)
    file = ws.add("new")
    constants, record = ws.publication(file, "vllm")
    item = root / "store/.trash" / file.stem
    item.mkdir(parents=True)
    file.rename(item / file.name)
    return ws, "publish", constants, record


def pruned_history(root: Path) -> tuple[Workspace, str, dict[str, str], bytes]:
    ws = Workspace(root)
    for content in ("old", "new"):
        ws.publish(ws.add(content))
    return ws, "prune", {**PRUNE, "ASI_KEEP_LAST": "1", "ASI_GRACE_SECONDS": "0", "ASI_TRASH_SECONDS": "0"}, b""


SCENARIOS: dict[str, tuple[Scenario, frozenset[str | None], str]] = {
    "first": (first_publication, frozenset({None, "new"}), "new"),
    "move": (moved_alias, frozenset({"old", "new"}), "new"),
    "trash": (publication_out_of_the_trash, frozenset({None, "new"}), "new"),
    "prune": (pruned_history, frozenset({"new"}), "new"),
}


class StandingStill:
    """A publisher that stands still before its command number ``number`` until :meth:`wake_up`."""

    def __init__(self, ws: Workspace, number: int, constants: dict[str, str], payload: bytes) -> None:
        self.mark = f"asi-{1:032x}"
        still = Workspace(ws.root, mark=self.mark, preamble=b"sleep() { :; }\n" + STEPPER)
        self.process = subprocess.Popen(
            ws.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**ws.environment, "ASI_TEST_STOP": str(number)},
        )
        assert self.process.stdin
        self.process.stdin.write(still.text("publish", constants, payload))
        self.process.stdin.close()
        self.process.stdin = None
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wake_up(self) -> RemoteResult:
        """Let it go on to its end."""
        self.process.send_signal(signal.SIGCONT)
        return parse(self.process.communicate()[0], self.mark)


def steps(scenario: Scenario, root: Path) -> list[int]:
    """Numbers of the commands of a whole run that change something, and of the last one."""
    ws, verb, constants, payload = scenario(root / "count")
    log = root / "steps"
    ws.preamble = STEPPER
    ws.environment["ASI_TEST_LOG"] = str(log)
    assert b" end 0" in ws.raw(verb, constants, payload)
    shutil.rmtree(root / "count")
    lines = [line.split(maxsplit=2) for line in log.read_text().splitlines()]
    changes = [int(line[0]) for line in lines if line[1] in CHANGES or " > " in line[-1]]
    return [*changes, len(lines)]


def assert_whole(ws: Workspace, allowed: frozenset[str | None]) -> None:
    """Old state or new state; every file of the store whole, every committed version readable."""
    assert ws.current() in allowed
    for version in ws.committed():
        assert (version / "record.json").read_bytes().endswith(b"}\n")
        assert (version / "image.sqsh").exists()
    for record in ws.store.glob("[0-9a-f]*.json"):
        assert record.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_before_any_command_leaves_old_or_new_and_the_next_run_cleans_up(name: str, tmp_path: Path) -> None:
    scenario, allowed, final = SCENARIOS[name]
    seen = set()
    root = tmp_path.resolve()
    numbers = steps(scenario, root)
    assert len(numbers) > 15
    for number in numbers:
        ws, verb, constants, payload = scenario(root / str(number))
        before = ws.current()
        ws.preamble, ws.environment["ASI_TEST_KILL"] = STEPPER, str(number)
        assert b" end " not in ws.raw(verb, constants, payload)
        assert_whole(ws, allowed)
        seen.add(ws.current())
        if verb == "prune":
            assert ws.current() == before

        del ws.environment["ASI_TEST_KILL"]
        ws.preamble = b"sleep() { :; }\n"  # looking ten times at a dead lock takes a second
        ws.age_locks()
        assert ws.run(verb, constants, payload).text("refused") == ""
        assert ws.current() == final
        assert_whole(ws, frozenset({final}))
        ws.age_locks()
        ws.prune(ASI_KEEP_LAST="1", ASI_GRACE_SECONDS="0", ASI_TRASH_SECONDS="0", ASI_PARTIAL_SECONDS="0")
        assert ws.leftovers() == []
        assert [path.read_text() for path in ws.store.glob("*.sqsh")] == [final]
        shutil.rmtree(ws.root)
    assert seen == set(allowed)


@pytest.mark.parametrize("other", ["old", "third", "prune"])
def test_given_up_for_dead_before_any_command_it_cannot_harm_who_took_over(other: str, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    outcomes = set()
    for number in steps(moved_alias, root):
        ws, _, constants, payload = moved_alias(root / str(number))
        publisher = StandingStill(ws, number, constants, payload)
        ws.preamble = b"sleep() { :; }\n"
        ws.age_locks()
        if other == "prune":
            ws.prune(ASI_KEEP_LAST="1", ASI_GRACE_SECONDS="0", ASI_TRASH_SECONDS="86400")
        else:
            assert ws.publish(ws.add(other)).text("refused") == ""
        result = publisher.wake_up()
        assert result.text("refused") in {"", "unavailable", "integrity"}
        outcomes.add(result.text("refused"))
        assert_whole(ws, frozenset({"old", "new", "third"}))
        assert ws.current() is not None
        if not result.text("refused") and other == "prune":
            assert ws.current() == "new"
        shutil.rmtree(ws.root)
    assert {"", "unavailable"} <= outcomes
