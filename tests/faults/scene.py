# SPDX-License-Identifier: Apache-2.0
"""One Airflow task on a real box, try by try, with everything around it that a test may break.

The tries run in processes of their own (``worker.py``). The profile puts ``tools/`` in front of Enroot and, where a
test asks for them, of Slurm's commands; they note every call, so that imports and cancellations can be counted.
"""

from __future__ import annotations

import json
import pwd
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_slurm_images.core.plan import run_key
from tests.cluster.box import Box
from tests.cluster.polling import wait_until
from tests.cluster.works import as_operator
from tests.faults.evidence import Evidence
from tests.faults.steps import DEPLOYMENT, Outcome, Step

TOOLS = Path(__file__).with_name("tools")
RETRIES = 3


class Scene(Evidence):
    """A task of ``operator`` kind ``import`` (or ``sensor``), waiting ``blocking`` or ``deferred``."""

    def __init__(
        self,
        box: Box,
        image: str,
        mode: str,
        *,
        slurm_tools: Sequence[str] = (),
        profile: Mapping[str, Any] | None = None,
        limits: Mapping[str, float] | None = None,
        clock_shift: float = 0,
        **options: Any,
    ) -> None:
        """``limits``: shorter times of doubt than the product's; ``options``: parameters of the operator."""
        self.box, self.mode, self.limits, self.clock_shift = box, mode, dict(limits or {}), clock_shift
        self.name = f"t{secrets.token_hex(6)}"
        self.key = run_key(DEPLOYMENT, "faults", self.name, "run", -1)
        self.files = box.root / "faults" / self.name
        self.tools = self.files / "tools"
        self._place_tools(slurm_tools)
        self.number, self.max_tries, self.steps = 0, RETRIES, 0
        self.environment = {"AIRFLOW_CONN_BOX": box.connection_json}
        self.operator = "import"
        self.profile: dict[str, Any] = {"path_prepend": [str(self.tools), str(box.enroot_dir)], **(profile or {})}
        if slurm_tools:
            self.profile["slurm_bin"] = str(self.tools)
        self.options: dict[str, Any] = {
            "image": image,
            "name": self.name,
            "kind": "generic",
            "if_present": "reimport",  # else the image of the test before would do
            "slurm_conn_id": "box",
            "poll_interval": 0.5,
            "profile": self.profile,
            "deferrable": mode == "deferred",
            **options,
        }
        self.running: list[Step] = []
        self.mounts: list[Path] = []

    def _place_tools(self, slurm_tools: Sequence[str]) -> None:
        self.tools.mkdir(parents=True)
        assert self.box.enroot_dir is not None
        (self.tools / "real").write_text(f"{self.box.enroot_dir / 'enroot'}\n")
        shutil.copy(TOOLS / "enroot", self.tools)
        for name in slurm_tools:
            source = TOOLS / name if (TOOLS / name).exists() else TOOLS / "passing"
            shutil.copy(source, self.tools / name)
        for path in (self.files, self.tools):
            path.chmod(0o755)
        entry = pwd.getpwnam(self.box.user)
        shutil.chown(self.tools, entry.pw_uid, entry.pw_gid)

    # -- what a test sets up or breaks

    def flag(self, name: str, text: str = "") -> None:
        """Put a file for the tools; see there what it does."""
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o666)

    def unflag(self, name: str) -> None:
        (self.tools / name).unlink(missing_ok=True)

    def hold(self) -> None:
        """Jobs stop in front of their import until :meth:`release`."""
        self.flag("hold")

    def release(self) -> None:
        self.unflag("hold")

    def act(self, tool: str) -> None:
        """What happens inside the job before the import."""
        shutil.copy(TOOLS / tool, self.tools / "act")

    def place(self, name: str) -> Path:
        """A directory of the user's."""
        directory = self.files / name
        directory.mkdir()
        entry = pwd.getpwnam(self.box.user)
        shutil.chown(directory, entry.pw_uid, entry.pw_gid)
        return directory

    def mount(self, directory: Path, size: str) -> None:
        """Put a small file system over a directory, for this box alone; it goes when the scene does."""
        entry = pwd.getpwnam(self.box.user)
        options = f"size={size},uid={entry.pw_uid},gid={entry.pw_gid},mode=0700"
        as_operator(self.box, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory))
        self.mounts.append(directory)

    def unmount(self) -> None:
        for directory in self.mounts:
            as_operator(self.box, "umount", "--lazy", str(directory))
        self.mounts.clear()

    def become_sensor(self, handle: Mapping[str, Any], **options: Any) -> None:
        """From now on the tries are those of a sensor that waits for the job of ``handle``."""
        self.operator = "sensor"
        self.number = 0
        self.options = {"job": dict(handle), "poke_interval": 0.5, "deferrable": self.mode == "deferred", **options}

    # -- tries

    def next_try(self) -> None:
        self.number += 1

    def clear(self) -> None:
        """What a clear in the UI does to the numbers."""
        self.max_tries = self.number + RETRIES

    def step(self, what: str, die: tuple[str, str, int] | None = None, **more: Any) -> Step:
        """Start one step of the present try; it runs until it ends or is killed."""
        self.steps += 1
        document = {
            "what": what,
            "operator": self.operator,
            "kwargs": self.options,
            "context": {
                "dag_id": "faults",
                "task_id": self.name,
                "run_id": "run",
                "map_index": -1,
                "try_number": self.number,
                "max_tries": self.max_tries,
                "retries": RETRIES,
            },
            "env": self.environment,
            "out": str(self.files / f"{self.steps}-{what}.json"),
            "xcoms": str(self.files / "xcoms.json"),
            "die": die,
            "clock_shift": self.clock_shift,
            "limits": self.limits,
            **more,
        }
        self.running.append(Step(document))
        return self.running[-1]

    def begin(self) -> Step:
        """A new try that waits for its job: the task itself (blocking), or its trigger (deferred)."""
        self.next_try()
        first = self.step("execute")
        return first if self.mode == "blocking" else self.wait_deferred(first.outcome())

    def wait_deferred(self, outcome: Outcome) -> Step:
        """The trigger of a deferral, as a triggerer starts it (again): from the serialised arguments."""
        assert outcome.deferred, outcome
        arguments = json.loads(json.dumps(outcome.deferred["kwargs"]))
        step = self.step("trigger", classpath=outcome.deferred["classpath"], arguments=arguments)
        step.origin = outcome
        return step

    def finish(self, waiting: Step, timeout: float = 120) -> Outcome:
        """The end of a try that was waiting."""
        outcome = waiting.outcome(timeout)
        if outcome.deferred:
            return self.finish(self.wait_deferred(outcome), timeout)
        return self.finish_event(waiting, outcome, timeout)

    def finish_event(self, waiting: Step, outcome: Outcome, timeout: float = 120) -> Outcome:
        """What the task makes of the trigger's event; an outcome without one is the end already."""
        if outcome.event is None or waiting.origin is None or waiting.origin.deferred is None:
            return outcome
        method, more = waiting.origin.deferred["method"], waiting.origin.deferred["more"]
        arguments = {**more, "event": outcome.event}
        return self.step("resume", method=method, arguments=arguments).outcome(timeout)

    def run(self, timeout: float = 120) -> Outcome:
        """A whole new try."""
        self.next_try()
        return self.finish(self.step("execute"), timeout)

    def crash(self, when: str, verb: str, number: int = 1) -> None:
        """A new try whose process dies (kill -9) before or after a verb, wherever in the try that is."""
        self.next_try()
        step = self.step("execute", die=(when, verb, number))
        if step.killed():
            return
        waiting = self.wait_deferred(step.outcome())
        arguments = waiting.origin.deferred if waiting.origin and waiting.origin.deferred else {}
        event = waiting.outcome().event
        last = self.step(
            "resume",
            die=(when, verb, number),
            method=arguments["method"],
            arguments={**arguments["more"], "event": event},
        )
        assert last.killed(), last.log

    def close(self) -> None:
        """End whatever the test left running."""
        for step in self.running:
            step.kill()
        self.unmount()
        for name in ("hold", "hang_before", "hang_after", "act"):
            self.unflag(name)
        self.box.as_user(["scancel", f"--name={self.job_name}", f"--user={self.box.user}"])
        wait_until(lambda: not self.box.active_jobs(self.job_name), 30, 0.2)
