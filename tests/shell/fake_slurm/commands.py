# SPDX-License-Identifier: Apache-2.0
"""sbatch, squeue, sacct, scancel and scontrol on a directory of JSON files: ``commands.py STATE COMMAND ARGS...``.

Each call is logged (arguments and environment) in ``calls.jsonl``. An entry of ``script-COMMAND.jsonl`` replaces
the next answer: ``{"rc": 1, "err": "...", "out": "...", "effect": true}``; with ``effect`` the command still does
what it is for, as a controller does whose answer was lost.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class State:
    """The controller's memory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, oldest first."""
        paths = sorted((self.root / "jobs").glob("*.json"), key=lambda path: int(path.stem))
        return [json.loads(path.read_text()) for path in paths]

    def save(self, job: dict[str, Any]) -> None:
        """Write one job."""
        (self.root / "jobs" / f"{job['id']}.json").write_text(json.dumps(job))

    def next_answer(self, command: str) -> dict[str, Any] | None:
        """Take the first scripted answer of a command."""
        path = self.root / f"script-{command}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        if not lines:
            return None
        path.write_text("".join(f"{line}\n" for line in lines[1:]))
        answer: dict[str, Any] = json.loads(lines[0])
        return answer

    def log(self, command: str, args: list[str]) -> None:
        """Remember one call."""
        with (self.root / "calls.jsonl").open("a") as file:
            file.write(json.dumps({"command": command, "args": args, "env": dict(os.environ)}) + "\n")


def option(args: list[str], name: str) -> str | None:
    """Value of ``--name=value`` or of ``-X value``."""
    for index, word in enumerate(args):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name and len(name) == 2:
            return args[index + 1]
    return None


def wanted(state: State, args: list[str]) -> list[dict[str, Any]]:
    """Jobs that ``--name`` and ``--jobs`` select, on the cluster of ``-M``; without it on the login node's own."""
    names, ids, cluster = option(args, "--name"), option(args, "--jobs"), option(args, "-M")
    return [
        job
        for job in state.jobs()
        if (names is None or job["name"] in names.split(","))
        and (ids is None or str(job["id"]) in ids.split(","))
        and job.get("cluster") == cluster
    ]


def sbatch(state: State, args: list[str]) -> tuple[int, str, str]:
    """Record a job, with the bytes of its script as Slurm's spool keeps them."""
    script = Path(args[-1])
    lines = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH --")]
    options = dict(line[len("#SBATCH --") :].partition("=")[::2] for line in lines)
    number = max([job["id"] for job in state.jobs()] or [100]) + 1
    spool = state.root / "spool" / str(number)
    spool.mkdir(parents=True)
    (spool / "slurm_script").write_bytes(script.read_bytes())
    (spool / "slurm_script").chmod(0o700)
    elsewhere = state.root / "sent_to"  # a federation, or a site's plugin, that sends jobs to another cluster
    cluster = option(args, "-M") or (elsewhere.read_text() if elsewhere.exists() else None)
    job = {"id": number, "name": options["job-name"], "options": options, "state": "PENDING", "reason": "None"}
    job |= {"in_queue": True, "accounted": False, "exit": "0:0", "submit": "2024-05-01T10:00:00", "cluster": cluster}
    state.save(job)
    return 0, f"{number}{f';{cluster}' if cluster else ''}\n", ""


def squeue(state: State, args: list[str]) -> tuple[int, str, str]:
    """Rows in the format of ``core/slurm.py``."""
    rows = [job for job in wanted(state, args) if job["in_queue"]]
    return 0, "".join(f"{job['id']}|{job['state']}|{job['reason']}|0:05|n1|{job['name']}\n" for job in rows), ""


def sacct(state: State, args: list[str]) -> tuple[int, str, str]:
    """Parsable rows of the jobs that accounting knows already."""
    rows = [job for job in wanted(state, args) if job["accounted"]]
    text = "".join(
        f"{job['id']}|{job['state']}|{job['exit']}|{job['name']}|{job['submit']}|Unknown|Unknown|5|n1|lab\n"
        for job in rows
    )
    return 0, text, ""


def scancel(state: State, args: list[str]) -> tuple[int, str, str]:
    """Cancel jobs by name and id; like the real one silent and successful when there is none."""
    ids = [word for word in args if word.isdigit()]
    for job in wanted(state, args):
        if job["in_queue"] and (not ids or str(job["id"]) in ids):
            state.save({**job, "state": "CANCELLED", "accounted": True})
    return 0, "", ""


def scontrol(state: State, args: list[str]) -> tuple[int, str, str]:
    """``show job ID`` on one line."""
    for job in wanted(state, args):
        if str(job["id"]) == args[-1] and job["in_queue"]:
            return (
                0,
                (
                    f"JobId={job['id']} JobName={job['name']} UserId=u(1) GroupId=u(1) JobState={job['state']} "
                    f"Reason={job['reason']} Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 ExitCode={job['exit']} "
                    "RunTime=00:00:05 NodeList=n1\n"
                ),
                "",
            )
    return 1, "", "slurm_load_jobs error: Invalid job id specified\n"


COMMANDS: dict[str, Callable[[State, list[str]], tuple[int, str, str]]] = {
    "sbatch": sbatch,
    "squeue": squeue,
    "sacct": sacct,
    "scancel": scancel,
    "scontrol": scontrol,
}


def main() -> int:
    """Run one command."""
    state, command, args = State(Path(sys.argv[1])), sys.argv[2], sys.argv[3:]
    state.log(command, args)
    scripted = state.next_answer(command)
    code, output, errors = 0, "", ""
    if scripted is None or scripted.get("effect"):
        code, output, errors = COMMANDS[command](state, args)
    if scripted is not None:
        code, errors = scripted.get("rc", code), scripted.get("err", errors)
        output = scripted.get("out", "" if code else output)
    sys.stdout.write(output)
    sys.stderr.write(errors)
    return code


if __name__ == "__main__":
    sys.exit(main())
