# SPDX-License-Identifier: Apache-2.0
"""A workspace in a temporary directory, driven by the real shell code of ``cluster/``, without SSH and Slurm."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_slurm_images.core import remote
from airflow_slurm_images.core.batch import assignment_block

CLUSTER = Path(remote.__file__).parents[1] / "cluster"
MARK = "asi-0123456789abcdef0123456789abcdef"
DIGEST = "sha256:" + "d" * 64

VERBS = {
    "prepare": ("remote.sh", "records.sh", "prepare.sh"),
    "publish": ("remote.sh", "locks.sh", "publish.sh"),
    "catalog": ("remote.sh", "records.sh", "catalog.sh"),
    "prune": ("remote.sh", "locks.sh", "sweep.sh", "prune.sh"),
    "candidates": ("remote.sh", "records.sh", str(Path(__file__).with_name("candidates.sh"))),
}
CLIENT: Mapping[str, Any] = {
    "python_implementation": "cpython",
    "python_version": "3.12.1",
    "python_abi": "cp312",
    "distributions": [{"name": "torch", "version": "2.4.0"}],
    "installer_path": "/usr/bin/pip",
    "installer_version": "24.0",
}
PRUNE: Mapping[str, str] = {
    "ASI_KEEP_LAST": "",
    "ASI_KEEP_SECONDS": "",
    "ASI_GRACE_SECONDS": "604800",
    "ASI_TRASH_SECONDS": "86400",
    "ASI_PARTIAL_SECONDS": "172800",
    "ASI_RUN_SECONDS": "",
    "ASI_CACHE_BYTES": "",
    "ASI_BUDGET_SECONDS": "60",
    "ASI_DRY_RUN": "0",
}


@dataclass
class Workspace:
    """Directories as ``prepare.sh`` makes them, files as the job makes them, verbs as Airflow runs them."""

    root: Path
    group: str = ""
    mark: str = MARK
    preamble: bytes = b""
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": os.environ["PATH"]})
    command: tuple[str, ...] = ("/bin/bash", "-p", "-s")

    def __post_init__(self) -> None:
        for name in ("store/sha256", "aliases"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    @property
    def store(self) -> Path:
        """Directory of the store files."""
        return self.root / "store/sha256"

    @property
    def aliases(self) -> Path:
        """Directory of the aliases."""
        return self.root / "aliases"

    def files(self) -> list[str]:
        """Names of everything in the store, sorted."""
        return sorted(path.name for path in self.store.iterdir())

    def file_of(self, content: str) -> Path:
        """Where the store holds ``content``, if it does."""
        return self.store / f"{hashlib.sha256(content.encode()).hexdigest()}.sqsh"

    def add(self, content: str) -> Path:
        """A store file holding ``content``, as a job leaves it."""
        path = self.file_of(content)
        if not path.exists():
            path.write_bytes(content.encode())
            path.chmod(0o440 if self.group else 0o400)
        return path

    def record(self, path: Path, name: str = "vllm", *, kind: str = "generic", oci: str | None = DIGEST) -> bytes:
        """An image record for the file ``path``, in the order of keys of the model."""
        sha256 = path.stem if path.parent == self.store else hashlib.sha256(path.read_bytes()).hexdigest()
        stat = path.stat()
        source = oci and {
            "reference": f"reg.example/a/b@{oci}",
            "registry": "reg.example",
            "repository": "a/b",
            "requested_tag": None,
            "oci_digest": oci,
        }
        record: dict[str, Any] = {
            "schema_version": 1,
            "operation": "import_oci" if oci else "inspect_sqsh",
            "name": name,
            "cluster": "lab",
            "source": source,
            "sqsh": {
                "path": str(path),
                "alias_path": f"{self.root}/aliases/{name}.sqsh",
                "sha256": sha256,
                "size_bytes": stat.st_size,
                "managed": path.parent == self.store,
            },
            "inspection": {
                "schema_version": 1,
                "inspector_version": "1.0.0",
                "sqsh_sha256": sha256,
                "inspection": {"kind": kind, **(CLIENT if kind == "client" else {})},
            },
            "image": {"architecture": "amd64"},
            "job": {
                "job_id": 4,
                "cluster": "lab",
                "node": "n1",
                "state": "COMPLETED",
                "elapsed_seconds": 3,
                "run_directory": "/ws/users/ann/runs/a/b",
            },
            "reused": False,
            "store": {
                "squash_options": "-comp zstd",
                "architecture": "amd64",
                "requested_architecture": None,
                "partition": "cpu",
                "kind": kind,
                "size_bytes": stat.st_size,
                "inode": stat.st_ino,
                "mtime": int(stat.st_mtime),
            },
        }
        return json.dumps(record, indent=1).encode() + b"\n"

    def publish(
        self, path: Path, name: str = "vllm", *, record: bytes | None = None, **variables: str
    ) -> remote.RemoteResult:
        """Run publish.sh for ``path``."""
        return remote.parse(self.raw("publish", *self.publication(path, name, record, **variables)), self.mark)

    def publication(
        self, path: Path, name: str, record: bytes | None = None, **variables: str
    ) -> tuple[dict[str, str], bytes]:
        """Constants and payload of a publication."""
        record = record or self.record(path, name)
        stat = path.stat()
        constants = {
            "ASI_ROOT": str(self.root),
            "ASI_NAME": name,
            "ASI_TARGET": str(path),
            "ASI_SHA256": json.loads(record)["sqsh"]["sha256"],
            "ASI_SIZE": str(stat.st_size),
            "ASI_INODE": str(stat.st_ino),
            "ASI_MTIME": str(int(stat.st_mtime)),
            "ASI_MANAGED": "1" if path.parent == self.store else "0",
            "ASI_RECORD_SHA256": hashlib.sha256(record).hexdigest(),
            "ASI_ON_CONFLICT": "replace",
            **variables,
        }
        return constants, record

    def prepare(self) -> remote.RemoteResult:
        """Run prepare.sh as "test connection" does."""
        names = ("ASI_RUN_KEY", "ASI_SOURCE_DIGEST", "ASI_NAME", "ASI_SQUEUE_FORMAT")
        return self.run("prepare", dict.fromkeys(names, ""))

    def prune(self, **variables: str) -> list[tuple[str, str, str]]:
        """Run prune.sh; returns (what, action, path relative to the root)."""
        result = self.run("prune", {**PRUNE, **variables})
        assert "refused" not in result.fields, result.fields
        lines = [line.split("\t") for line in result.text("report").splitlines()]
        return [(line[0], line[1], str(Path(line[3]).relative_to(self.root))) for line in lines]

    def run(self, verb: str, variables: Mapping[str, str], payload: bytes = b"") -> remote.RemoteResult:
        """Run one verb to its end."""
        return remote.parse(self.raw(verb, variables, payload), self.mark)

    def raw(self, verb: str, variables: Mapping[str, str], payload: bytes = b"") -> bytes:
        """Standard output of one verb, which may have been killed."""
        done = subprocess.run(
            self.command, input=self.text(verb, variables, payload), capture_output=True, env=self.environment
        )
        return done.stdout

    def text(self, verb: str, variables: Mapping[str, str], payload: bytes = b"") -> bytes:
        """Standard input of bash, as the hook composes it."""
        constants = {
            "ASI_MARK": self.mark,
            "ASI_WORKSPACE": str(self.root),
            "ASI_SLURM_BIN": "",
            "ASI_SLURM_CONF": "",
            "ASI_CLUSTER": "",
            "ASI_GROUP": self.group,
            **variables,
        }
        scripts = b"".join((CLUSTER / name).read_bytes() for name in VERBS[verb])
        return assignment_block(constants).encode() + self.preamble + scripts + payload

    def current(self, name: str = "vllm") -> str | None:
        """Content that the alias shows, or None; asserts that link and record belong together."""
        link, record = self.aliases / f"{name}.sqsh", self.aliases / f"{name}.json"
        assert link.exists() == record.exists()
        if not link.exists():
            return None
        content = link.read_text()
        assert json.loads(record.read_text())["sqsh"]["sha256"] == hashlib.sha256(content.encode()).hexdigest()
        return content

    def committed(self, name: str = "vllm") -> list[Path]:
        """Versions of the alias up to the current one; a higher number was never committed."""
        current = self.aliases / f"{name}.d/current"
        last = int(current.readlink().name) if current.is_symlink() else 0
        versions = (path for path in self.aliases.glob(f"{name}.d/[0-9]*") if int(path.name) <= last)
        return sorted(versions)

    def leftovers(self) -> list[str]:
        """Everything that is neither a committed version nor one of the fixed names, relative to the root."""
        known = {".locks", ".unnamed", ".trash"}
        found = []
        for path in sorted((*self.aliases.rglob("*"), *self.store.parent.rglob("*"))):
            if path.name.startswith(".") and path.name not in known:
                found.append(str(path.relative_to(self.root)))
            if path.parent.name == ".locks":
                found.append(str(path.relative_to(self.root)))
        return found

    def age(self, path: Path, seconds: float) -> None:
        """Make ``path`` look ``seconds`` old."""
        then = path.lstat().st_mtime - seconds
        os.utime(path, (then, then), follow_symlinks=False)

    def age_locks(self) -> None:
        """Make every lock look as if its owner died a while ago."""
        for lock in (self.aliases / ".locks").glob("*"):
            self.age(lock, 3600)
