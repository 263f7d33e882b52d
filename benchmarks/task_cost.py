# SPDX-License-Identifier: Apache-2.0
"""What one deferred import costs the Airflow worker and the login node.

    python -m benchmarks.task_cost [--repeats 5] [--quick] [--output NAME]

Each part of the task (execute, the trigger, resume) runs in a process of its own that was forked with Airflow already
imported, as Airflow's task processes are; its processor seconds are those the kernel accounts to it. Connections,
commands and bytes are counted in sshd's log. The image is the tests' small one: none of this grows with its size,
except for the looks while it is waited for, which benchmarks.control_plane counts.
"""

from __future__ import annotations

from tests.airflow import environment  # noqa: F401  # isort: skip  # settles Airflow's configuration, so it comes first

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine, results
from benchmarks.timed_box import TimedBox, timed_box
from tests.cluster import images
from tests.cluster.conftest import enroot_on_this_machine
from tests.cluster.polling import wait_until
from tests.faults import worker

AIRFLOW_ALONE = "import airflow.sdk, airflow.providers.ssh.hooks.ssh"
WITH_OPERATOR = f"{AIRFLOW_ALONE}, airflow_slurm_images.operators.images"
INTERVAL = 5.0
OPENED = "Accepted publickey"
CLOSED = re.compile(r"Transferred: sent ([1-9]\d*), received (\d+) bytes")


class Counter:
    """Counts at sshd's side what happens between two calls."""

    def __init__(self, log: Path) -> None:
        self._log, self._read = log, len(log.read_text(errors="replace"))

    def since(self) -> dict[str, int | None]:
        # The bytes of a connection are told at its end, a moment after the client is gone, and not when it was reset.
        told = wait_until(lambda: self._lines().count(OPENED) == len(CLOSED.findall(self._lines())), 3)
        lines = self._lines()
        self._read += len(lines)
        sent = CLOSED.findall(lines)
        return {
            "connections": lines.count(OPENED),
            "commands": lines.count("Starting session: command"),
            "bytes_to_cluster": sum(int(received) for _, received in sent) if told else None,
            "bytes_from_cluster": sum(int(given) for given, _ in sent) if told else None,
        }

    def _lines(self) -> str:
        return self._log.read_text(errors="replace")[self._read :]


def step(what: str, files: Path, box_environment: Mapping[str, str], **more: Any) -> tuple[dict[str, Any], Any]:
    """One part of the task in a forked process: its outcome, and wall and processor seconds."""
    document = {
        "what": what,
        "out": str(files / what),
        "env": dict(box_environment),
        "clock_shift": 0,
        "die": None,
        "limits": None,
        **more,
    }
    sys.stdout.flush()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            worker.main(document)
        finally:
            os._exit(1)
    _, status, usage = os.wait4(child, 0)
    seconds = {
        "wall": round(time.monotonic() - started, 3),
        "processor": round(usage.ru_utime + usage.ru_stime, 3),
    }
    if status:
        raise RuntimeError((files / what).with_suffix(".log").read_text(errors="replace")[-3000:])
    outcome = json.loads((files / what).read_text())
    if "error" in outcome:
        raise RuntimeError(outcome["message"])
    return outcome, seconds


def one_import(timed: TimedBox, image: str, number: int) -> dict[str, Any]:
    box = timed.box
    files = box.root / "tasks" / str(number)
    files.mkdir(parents=True)
    variables = {"AIRFLOW_CONN_BOX": box.connection_json}
    context = {"dag_id": "cost", "task_id": "task", "run_id": f"run{number}", "map_index": -1}
    options = {
        "image": image,
        "name": "cost",
        "kind": "client",
        "if_present": "reimport",
        "slurm_conn_id": "box",
        "poll_interval": INTERVAL,
        "deferrable": True,
    }
    task = {
        "operator": "import",
        "context": context | {"try_number": 1, "max_tries": 0, "retries": 0},
        "kwargs": options,
        "xcoms": str(files / "xcoms"),
    }
    counter = Counter(box.sshd.daemon.log)
    found: dict[str, Any] = {}
    outcome, found["execute"] = step("execute", files, variables, **task)
    found["execute"] |= counter.since()
    deferred = outcome["deferred"]
    trigger = {"classpath": deferred["classpath"], "arguments": deferred["kwargs"]}
    outcome, found["trigger"] = step("trigger", files, variables, **trigger)
    found["trigger"] |= counter.since()
    arguments = {**deferred["more"], "event": outcome["event"]}
    _, found["resume"] = step("resume", files, variables, method=deferred["method"], arguments=arguments, **task)
    found["resume"] |= counter.since()
    return found


def import_seconds(code: str) -> float:
    """Processor seconds of a fresh Python that imports something."""
    script = f"{code}, resource; u = resource.getrusage(resource.RUSAGE_SELF); print(u.ru_utime + u.ru_stime)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return round(float(done.stdout.split()[-1]), 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repetition")
    parser.add_argument("--output", help="name of the result; nothing is written without")
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    document = machine.describe(enroot_on_this_machine()) | {"poll_interval": INTERVAL}
    parts: list[dict[str, Any]] = []
    start: dict[str, list[float]] = defaultdict(list)
    with timed_box() as timed:
        digest = images.push_image(timed.box.registry, "client", "images/client", "latest")
        image = f"{timed.box.registry}/images/client:latest@{digest}"
        for number in range(repeats):
            parts.append(one_import(timed, image, number) | {"load": machine.load()})
            start["airflow"].append(import_seconds(AIRFLOW_ALONE))
            start["with operator"].append(import_seconds(WITH_OPERATOR))
            print(parts[-1], {name: values[-1] for name, values in start.items()}, file=sys.stderr, flush=True)
    if options.output:
        results.write(options.output, document | {"tasks": parts, "import": start})
    return 0


if __name__ == "__main__":
    sys.exit(main())
