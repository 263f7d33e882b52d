# SPDX-License-Identifier: Apache-2.0
"""The test's side of the fake Slurm: make it, script its failures, look at it, run its jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import commands

CODE = Path(commands.__file__)


class FakeSlurm:
    """Commands in ``bin``, their state in ``slurm``, a fake Enroot in ``enroot``, all below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.enroot = root / "enroot"
        self.scratch = root / "scratch"
        self._state = commands.State(root / "slurm")
        for path in (self.bin, self.enroot, self.scratch, root / "slurm/jobs"):
            path.mkdir(parents=True)
        for name in commands.COMMANDS:
            self._executable(self.bin / name, f'exec {sys.executable} -I -S {CODE} {root / "slurm"} {name} "$@"')
        self._executable(self.enroot / "enroot", CODE.with_name("enroot.sh").read_text())
        (self.enroot / "version").write_text("4.1.2\n")
        (self.enroot / "help").write_text(" --pid  --net  --ipc\n")  # as a later Enroot: not every machine unshares

    @staticmethod
    def _executable(path: Path, body: str) -> None:
        path.write_text(f"#!/bin/bash -p\n{body}\n")
        path.chmod(0o755)

    # --- the controller

    def login_tool(self, name: str, body: str) -> None:
        """Put a program before the system's on the login node's PATH."""
        self._executable(self.bin / name, body)

    def next_answer(self, command: str, times: int = 1, **answer: Any) -> None:
        """Script the next answers of a command (``rc``, ``out``, ``err``, ``effect``)."""
        with (self._state.root / f"script-{command}.jsonl").open("a") as file:
            file.write((json.dumps(answer) + "\n") * times)

    def calls(self, command: str) -> list[dict[str, Any]]:
        """All calls of a command: ``args`` and ``env``."""
        path = self._state.root / "calls.jsonl"
        entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [entry for entry in entries if entry["command"] == command]

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs ever submitted, oldest first."""
        return self._state.jobs()

    def job(self, job_id: int) -> dict[str, Any]:
        """One job."""
        return next(job for job in self.jobs() if job["id"] == job_id)

    def change(self, job_id: int, **values: Any) -> None:
        """Change what Slurm says of a job (``state``, ``reason``, ``in_queue``, ``accounted``, ``exit``)."""
        self._state.save({**self.job(job_id), **values})

    def send_to(self, cluster: str) -> None:
        """From now on jobs go to another cluster, which ``sbatch`` names in its answer."""
        (self._state.root / "sent_to").write_text(cluster)

    def add_job(self, job_id: int, name: str, **values: Any) -> None:
        """A job that was not submitted through the fake."""
        job = {"id": job_id, "name": name, "options": {}, "state": "RUNNING", "reason": "None", "exit": "0:0"}
        self._state.save({**job, "in_queue": True, "accounted": False, "submit": "2024-05-01T10:00:00", **values})

    def submit(self, script: Path) -> int:
        """Submit a script by hand, behind the back of Airflow."""
        return int(commands.sbatch(self._state, [str(script)])[1])

    # --- the node

    def tool(self, name: str, body: str) -> None:
        """Put a program before the system's on the job's PATH."""
        self._executable(self.enroot / name, body)

    def start(
        self, job_id: int, env: Mapping[str, str] | None = None, restarts: int = 0, umask: int = 0o022
    ) -> subprocess.Popen[bytes]:
        """Run the job's script as slurmd does: from the spool, own session, output to the directive's file."""
        options = self.job(job_id)["options"]
        script = self._state.root / "spool" / str(job_id) / "slurm_script"
        environment = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_CLUSTER_NAME": "lab",
            "SLURMD_NODENAME": "n1",
            "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
            "SLURM_CPUS_ON_NODE": "96",
            **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
            **(env or {}),
        }
        self.change(job_id, state="RUNNING")
        with Path(options["output"].replace("%%", "%")).open("ab") as output:
            return subprocess.Popen(
                [script],
                cwd=options["chdir"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                umask=umask,
            )

    def run(self, job_id: int, env: Mapping[str, str] | None = None, restarts: int = 0, umask: int = 0o022) -> int:
        """Run the job to its end; returns the script's exit status and lets Slurm know it."""
        status = self.start(job_id, env, restarts, umask).wait(60)
        state = "FAILED" if status else "COMPLETED"
        self.change(job_id, state=state, in_queue=False, accounted=True, exit=f"{max(status, 0)}:0")
        return status

    def enroot_calls(self, verb: str = "") -> list[str]:
        """Command lines that the fake Enroot got."""
        path = self.enroot / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(verb)]

    def enroot_environment(self, verb: str) -> dict[str, str]:
        """Environment of the last call of a verb."""
        text = (self.enroot / f"{verb}.env").read_bytes().decode()
        return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)

    def enroot_does(self, verb: str, script: str) -> None:
        """What the next calls of ``import`` (``$output``), ``start`` (``$out``) or ``create`` do."""
        (self.enroot / f"{verb}.sh").write_text(f"{script}\n")

    def leftovers(self) -> list[str]:
        """What is left in the scratch root."""
        return sorted(os.listdir(self.scratch))

    def processes(self) -> dict[int, str]:
        """Command lines of the processes that mention the test's directory, there or by where they are."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                place = os.readlink(entry / "cwd")
            except OSError:
                continue
            if str(self.root.parent) in line or str(self.root.parent) in place:
                found[int(entry.name)] = line
        return found
