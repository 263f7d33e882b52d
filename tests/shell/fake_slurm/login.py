# SPDX-License-Identifier: Apache-2.0
"""A login node on this machine: the hook's own scripts and parsers, only the SSH channel is replaced."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Connection

from airflow_slurm_images.core import failures, job_script
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.records import CompletionRecord
from airflow_slurm_images.core.requests import ImportRequest, InspectRequest, build_import, build_inspect
from airflow_slurm_images.hooks import ssh_exchange
from airflow_slurm_images.hooks.slurm import SlurmHook

from .controller import FakeSlurm
from .images import image

RUN_KEY = "0123456789abcdef0123456789abcdef"
REFERENCE = "reg.example/acme/tool@sha256:" + "a" * 64
CREDENTIALS = b"machine reg.example login ann password TOP-SECRET\n"


def secrets_in(root: Path) -> list[str]:
    """Files below a directory that hold the password of :data:`CREDENTIALS`."""
    return [str(path) for path in root.rglob("*") if path.is_file() and b"TOP-SECRET" in path.read_bytes()]


class LocalCluster:
    """A hook whose commands run in a local ``bash``, a workspace, and the fake Slurm behind them.

    ``before`` and ``after`` are what login scripts print, ``login_environment`` is what they export, ``cut`` is how
    many bytes of the staged files never arrive, ``wrapper`` is a command that each command runs under.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **profile: Any) -> None:
        self.slurm = FakeSlurm(root / "fake")
        self.workspace = root / "ws"
        self.workspace.mkdir(mode=0o755)
        self.before = self.after = b""
        self.login_environment: dict[str, str] = {"PATH": os.environ["PATH"], "HOME": str(root)}
        self.umask = 0o022
        self.cut = 0
        self.wrapper: tuple[str, ...] = ()
        self.commands: list[str] = []
        self.profile: dict[str, Any] = {
            "workspace_root": str(self.workspace),
            "slurm_bin": str(self.slurm.bin),
            "enroot_bin": str(self.slurm.enroot),
            "scratch_root": str(self.slurm.scratch),
            "min_free": "1M",
            "verify_manifest": False,  # the fake Enroot has no registry behind it; shell/registry/ brings one
            **profile,
        }
        self.hook = self.new_hook()
        monkeypatch.setattr(ssh_exchange, "connect", lambda *_: None)
        monkeypatch.setattr(ssh_exchange, "exchange", self._exchange)

    def new_hook(self, **overrides: Any) -> SlurmHook:
        """Another hook on the same cluster, as another task has it."""
        connection = Connection(
            conn_id="lab", conn_type="slurm_ssh", host="login.example", login="ann", extra=json.dumps(self.profile)
        )
        return SlurmHook("lab", overrides, connection=connection)

    def _exchange(self, _: object, command: str, stdin: bytes, timeout: float, where: str) -> bytes:
        self.commands.append(command)
        done = subprocess.run(
            [*self.wrapper, *command.split()],
            input=stdin[: len(stdin) - self.cut] if b"asi::fence()" in stdin else stdin,
            capture_output=True,
            env=self.login_environment,
            timeout=timeout,
            umask=self.umask,
        )
        return self.before + done.stdout + self.after

    # --- steps of a run

    def _plan(self, request: ImportRequest | InspectRequest, workspace: str, login: str) -> LifecyclePlan:
        return LifecyclePlan.build(
            run_key=RUN_KEY,
            attempt=secrets.token_hex(8),
            token=secrets.token_hex(16),
            generation=1,
            request=request,
            profile=self.hook.profile,
            workspace=workspace,
            login=login,
            package_files=job_script.package_checksums(),
        )

    def stage(
        self, request: ImportRequest | InspectRequest, credentials: bytes | None = None
    ) -> tuple[LifecyclePlan, str]:
        """Prepare and stage a new attempt."""
        state = self.hook.prepare(RUN_KEY)
        plan = self._plan(request, state.workspace, state.login)
        return plan, self.hook.stage(plan, credentials)

    def submit(
        self, request: ImportRequest | InspectRequest, credentials: bytes | None = None
    ) -> tuple[LifecyclePlan, int]:
        """Prepare, stage and submit; returns the plan and the job id."""
        plan, staged = self.stage(request, credentials)
        answer = self.hook.submit(plan, staged)
        assert answer.job is not None
        return plan, answer.job.job_id

    def place(
        self, request: ImportRequest | InspectRequest, credentials: bytes | None = None
    ) -> tuple[LifecyclePlan, int]:
        """A submitted attempt like :meth:`submit` makes it, without the login node: for tests of the job alone."""
        login = pwd.getpwuid(os.geteuid()).pw_name
        plan = self._plan(request, str(self.workspace), login)
        directory = Path(plan.attempt_directory)
        for path in (Path(plan.store_directory), self.workspace / "aliases", directory / "generations"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, data in job_script.staged_files(plan, credentials).items():
            path = directory / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o600)
        (directory / "generations/1").touch()
        return plan, self.slurm.submit(directory / "job.sbatch")

    def run(self, request: ImportRequest | InspectRequest, env: Mapping[str, str] | None = None) -> Outcome:
        """Run the job of a new attempt to its end."""
        plan, job_id = self.place(request)
        return Outcome(plan, job_id, self.slurm.run(job_id, env))


class Outcome:
    """What one job left."""

    def __init__(self, plan: LifecyclePlan, job_id: int, status: int) -> None:
        self.plan = plan
        self.job_id = job_id
        self.status = status
        self.directory = Path(plan.attempt_directory)

    @property
    def output(self) -> str:
        """Everything on the job's output."""
        return (self.directory / "slurm.out").read_text()

    @property
    def record(self) -> CompletionRecord:
        """The completion record."""
        return CompletionRecord.model_validate_json((self.directory / "completion.json").read_bytes())

    @property
    def reason(self) -> str:
        """What the failed job is explained by."""
        logs = {name: self.directory / name for name in ("slurm.out", "enroot.log", "inspect.log")}
        texts = {name: path.read_text(errors="replace")[-8192:] for name, path in logs.items() if path.exists()}
        return failures.explain(self.status, self.record.phase, texts).reason


def import_request(kind: str = "generic", **values: Any) -> ImportRequest:
    """A request for the import of the one reference of these tests."""
    return build_import(image=values.pop("image", REFERENCE), name="tool", kind=kind, **values)


def inspect_request(path: Path, kind: str = "generic", **values: Any) -> InspectRequest:
    """A request for the inspection of ``path``."""
    return build_inspect(path=str(path), name=values.pop("name", None), kind=kind, **values)


def plain_image(cluster: LocalCluster) -> Path:
    """Give the cluster's Enroot a well-formed image to import; returns where it is."""
    place = cluster.slurm.enroot / "image.sqsh"
    place.write_bytes(image("plain").read_bytes())
    return place


def client_facts(cluster: LocalCluster) -> None:
    """What the fake Enroot's start leaves: facts of a client image."""
    inspection = {
        "kind": "client",
        "python_implementation": "CPython",
        "python_version": "3.12.1",
        "python_abi": "cp312",
        "distributions": [{"name": "numpy", "version": "2.0"}],
        "installer_path": "/usr/bin/pip",
        "installer_version": "24.0",
    }
    facts = {
        "facts_version": 1,
        "inspector_version": "1.0.0",
        "kind": "client",
        "inspection": inspection,
        "image": {"python_version": "3.12.1", "warnings": []},
    }
    (cluster.slurm.enroot / "facts.json").write_text(json.dumps(facts))
