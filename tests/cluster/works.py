# SPDX-License-Identifier: Apache-2.0
"""One task's work on a box, driven as an operator drives it but without Airflow around it."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import Connection

from airflow_slurm_images.core.decide import Limits
from airflow_slurm_images.core.errors import SlurmImagesError
from airflow_slurm_images.core.records import ImageRecord, JobHandle
from airflow_slurm_images.core.requests import ImportRequest, InspectRequest, build_import, build_inspect
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.lifecycle import Lifecycle, Work
from airflow_slurm_images.reuse import IfPresent

from .box import Box
from .polling import wait_until
from .space import CLEAN_ENV

CONN_ID = "box"
INTERVAL = 0.5


def connection(box: Box, login: str | None = None, **changes: Any) -> Connection:
    """The Airflow connection into a box; `changes` replace or add keys of its extra, None takes one away."""
    fields = box.connection
    extra = {key: value for key, value in (fields["extra"] | changes).items() if value is not None}
    return Connection(
        conn_id=CONN_ID,
        conn_type=fields["conn_type"],
        host=fields["host"],
        login=login or fields["login"],
        port=fields["port"],
        extra=json.dumps(extra),
    )


def slurm_hook(box: Box, profile: Mapping[str, Any] | None = None, **options: Any) -> SlurmHook:
    return SlurmHook(CONN_ID, profile, connection=connection(box), **options)


class Lines:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, level: int, event: str, *args: Any) -> None:
        self.lines.append(event % args)

    def info(self, event: str, *args: Any) -> None:
        self.lines.append(event % args)

    def warning(self, event: str, *args: Any) -> None:
        self.lines.append(event % args)


class Task:
    """A request on its way through a box; `profile` overrides the connection's, as a task's does."""

    def __init__(
        self,
        box: Box,
        request: ImportRequest | InspectRequest,
        *,
        hook: SlurmHook | None = None,
        limits: Limits | None = None,
        if_present: IfPresent = "reimport",
        **profile: Any,
    ) -> None:
        self.box = box
        self.hook = hook or slurm_hook(box, profile)
        self.work = Work(request, secrets.token_hex(16), 1, False, CONN_ID, profile, if_present=if_present)
        self.limits = limits or Limits()
        self._log = Lines()
        self.lifecycle = Lifecycle(self.hook, self._log)
        self._handle: JobHandle | None = None

    def begin(self) -> JobHandle:
        begun = self.lifecycle.begin(self.work)
        assert isinstance(begun, JobHandle), "the store has it already, no job was needed"
        self._handle = begun
        return begun

    def wait(self) -> None:
        self.lifecycle.wait(self.handle, self.limits, INTERVAL, "try-1")

    def finish(self) -> ImageRecord:
        finished = self.lifecycle.finish(self.handle)
        self.hook.close()
        return finished.record

    def run(self) -> ImageRecord:
        """From the request to the published record."""
        self.begin()
        self.wait()
        return self.finish()

    # -- what can be seen of it

    @property
    def handle(self) -> JobHandle:
        assert self._handle is not None, "nothing was submitted"
        return self._handle

    @property
    def directory(self) -> Path:
        """The attempt directory."""
        return Path(self.handle.run_directory)

    @property
    def lines(self) -> list[str]:
        """The task log."""
        return self._log.lines

    @property
    def attempts(self) -> list[Path]:
        """The attempt directories of this work, also of one that never got a job."""
        runs = self.box.workspace / "users" / self.box.user / "runs" / self.work.run_key
        return sorted(runs.iterdir()) if runs.exists() else []

    def reaches(self, phase: str, timeout: float = 60) -> bool:
        """Wait until the job is in a phase."""
        file = self.directory / "phase"
        return wait_until(lambda: file.exists() and file.read_text().split(" ")[0] == phase, timeout)

    def completion(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "completion.json").read_text())
        return found


def import_task(box: Box, image: str, name: str, kind: str = "generic", **options: Any) -> Task:
    request: dict[str, Any] = {
        key: options.pop(key) for key in ("arch", "required_distributions", "insecure") if key in options
    }
    return Task(box, build_import(image=image, name=name, kind=kind, **request), **options)


def inspect_task(box: Box, path: Path, kind: str = "client", name: str | None = None, **options: Any) -> Task:
    request: dict[str, Any] = {
        key: options.pop(key) for key in ("copy_to_store", "required_distributions") if key in options
    }
    return Task(box, build_inspect(path=str(path), name=name, kind=kind, **request), **options)


def as_operator(box: Box, *argv: str) -> str:
    """Output of a command with an operator's rights inside the box."""
    return box.as_root(list(argv), check=True).stdout


def cancel(box: Box, task: Task) -> None:
    """`scancel` by the user, behind the back of the task."""
    box.as_user(["scancel", str(task.handle.job_id)], check=True)


def sha256(path: Path) -> str:
    return subprocess.run(["sha256sum", str(path)], check=True, capture_output=True, text=True).stdout[:64]


def wrapped(box: Box, program: str, script: str) -> dict[str, Any]:
    """Profile settings that put a shell script before a program of the job; `{real}` in it is the program."""
    directory = Path(tempfile.mkdtemp(prefix="wrap-", dir=box.root))
    directory.chmod(0o755)
    before = [str(box.enroot_dir)] if box.enroot_dir else []
    real = shutil.which(program, path=":".join([*before, CLEAN_ENV["PATH"]]))
    file = directory / program
    file.write_text(f"#!/bin/bash\n{script.replace('{real}', str(real))}\n")
    file.chmod(0o755)
    return {"path_prepend": [str(directory), *before]}


def outcomes(tasks: Mapping[str, Task]) -> dict[str, SlurmImagesError | None]:
    """Submit them all, then wait for each: its error, or None where it succeeded."""
    for task in tasks.values():
        task.begin()
    return ends(tasks)


def ends(tasks: Mapping[str, Task]) -> dict[str, SlurmImagesError | None]:
    """The same for tasks that are submitted already."""
    found: dict[str, SlurmImagesError | None] = {}
    for name, task in tasks.items():
        try:
            task.wait()
            task.finish()
            found[name] = None
        except SlurmImagesError as err:
            found[name] = err
        task.hook.close()
    return found


def reasons(found: Mapping[str, SlurmImagesError | None]) -> dict[str, tuple[str, str | None]]:
    """Class and reason of each error, to compare at once."""
    return {
        name: (type(err).__name__, err.details.get("reason") or getattr(err, "reason", None)) if err else ("", None)
        for name, err in found.items()
    }
