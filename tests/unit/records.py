# SPDX-License-Identifier: Apache-2.0
"""Well-formed records for tests: requests, profile, plan, completion, handle."""

from __future__ import annotations

import json
from typing import Any

from airflow_slurm_images.core.plan import PACKAGE_FILES, LifecyclePlan, canonical_digest
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.records import CompletionRecord, JobHandle
from airflow_slurm_images.core.requests import ImportRequest, InspectRequest, build_import, build_inspect

RUN_KEY = "0123456789abcdef0123456789abcdef"
TOKEN = "f" * 32
ATTEMPT = "a" * 16
OCI = "sha256:" + "d" * 64
SQSH = "e" * 64
WORKSPACE = "/ws"
RUN_DIRECTORY = f"{WORKSPACE}/users/ann/runs/{RUN_KEY}/{ATTEMPT}"

PROFILE: dict[str, Any] = {
    "workspace_root": WORKSPACE,
    "account": "proj",
    "partition": "cpu",
    "environment": {"https_proxy": "http://proxy.example:3128", "TZ": "UTC"},
    "path_prepend": ["/opt/tools/bin"],
    "insecure_registries": ["reg.example:5000"],
}


def import_request(**values: Any) -> ImportRequest:
    """An import of a pinned image, as an author asks for it."""
    given = {"image": f"reg.example/acme/tool:1.2@{OCI}", "name": "tool", "kind": "client", **values}
    return build_import(**given)


def inspect_request(**values: Any) -> InspectRequest:
    """The inspection of a file."""
    return build_inspect(**{"path": "/data/x.sqsh", "name": None, "kind": "generic", **values})


def plan(request: ImportRequest | InspectRequest | None = None, **values: Any) -> LifecyclePlan:
    """A plan of that request."""
    given: dict[str, Any] = {
        "run_key": RUN_KEY,
        "attempt": ATTEMPT,
        "token": TOKEN,
        "generation": 1,
        "request": request or import_request(),
        "profile": ClusterProfile.from_author(PROFILE),
        "workspace": WORKSPACE,
        "login": "ann",
        "package_files": dict.fromkeys(PACKAGE_FILES, "0" * 64),
    }
    return LifecyclePlan.build(**{**given, **values})


def plan_of_version(version: str, **fields: Any) -> bytes:
    """A sound plan as another version of the package writes it; ``fields`` are other or further ones."""
    written = {**json.loads(plan().to_json()), "package_version": version, **fields}
    del written["plan_digest"]
    return json.dumps({**written, "plan_digest": canonical_digest(written)}).encode()


def completion(**values: Any) -> CompletionRecord:
    """The completion record of a good import."""
    sqsh = {
        "path": f"{WORKSPACE}/store/sha256/{SQSH}.sqsh",
        "sha256": SQSH,
        "size_bytes": 4096,
        "inode": 7,
        "mtime": 1_700_000_000,
        "managed": True,
    }
    record = {
        "schema_version": 1,
        "token": TOKEN,
        "operation": "import_oci",
        "exit_status": 0,
        "phase": "done",
        "tool_status": 0,
        "job_id": 481,
        "restart_count": 0,
        "cluster": "lab",
        "node": "n1",
        "elapsed_seconds": 12,
        "hash_tool": "openssl",
        "machine": "x86_64",
        "platform_digest": None,
        "index_digest": None,
        "sqsh": sqsh,
    }
    return CompletionRecord.model_validate_json(json.dumps({**record, **values}))


def failed_completion(exit_status: int, phase: str = "import", **values: Any) -> CompletionRecord:
    """The completion record of a job that failed."""
    return completion(exit_status=exit_status, phase=phase, sqsh=None, **values)


def handle(**values: Any) -> JobHandle:
    """The handle of job 481."""
    given: dict[str, Any] = {
        "slurm_conn_id": "lab",
        "job_id": 481,
        "cluster": None,
        "job_name": f"asi-{RUN_KEY}",
        "run_key": RUN_KEY,
        "attempt": ATTEMPT,
        "token": TOKEN,
        "workspace": WORKSPACE,
        "run_directory": RUN_DIRECTORY,
        "submitted_at": "2024-05-01T10:00:00",
    }
    return JobHandle(**{**given, **values})
