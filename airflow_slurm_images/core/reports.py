# SPDX-License-Identifier: Apache-2.0
"""Words for people: the error of a failed job with all that helps, and the summary of a good one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_slurm_images.core import failures
from airflow_slurm_images.core.decide import Verdict
from airflow_slurm_images.core.errors import (
    JobFailedError,
    JobStateUnknownError,
    LostContactError,
    SlurmImagesError,
)
from airflow_slurm_images.core.failures import Failure
from airflow_slurm_images.core.logtext import tail
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.records import (
    ClientInspection,
    CompletionRecord,
    ImageRecord,
    JobHandle,
    ServingInspection,
)
from airflow_slurm_images.core.states import STATE_ADVICE, JobState, parse_state

_LOGS = ("slurm.out", "enroot.log", "inspect.log")
_OVER_MEMORY = re.compile(r"^slurmstepd\S*: error: .*(exceeded .*memory limit|oom.kill)", re.IGNORECASE | re.MULTILINE)
"""Without control groups this line is all that tells; with them a tool may be killed and the job end by itself."""


def job_error(
    handle: JobHandle, verdict: Verdict, record: CompletionRecord | None, logs: Mapping[str, str]
) -> SlurmImagesError:
    """The one error of a job that did not end well.

    The completion record explains most; without one Slurm's state does. ``logs`` maps file name to the end of
    the log.
    """
    if verdict.kind == "lost":
        return LostContactError(_where(verdict.message, handle), remedy=verdict.remedy, details=_facts(handle, verdict))
    if verdict.kind == "unknown":
        return JobStateUnknownError(
            _where(verdict.message, handle),
            remedy=verdict.remedy or "Look into the run directory; a retry starts a new attempt.",
            details=_facts(handle, verdict),
        )
    failure = _failure(verdict, record, logs)
    phase = record.phase if record else None
    text = tail(_text(logs), 15)
    parts = [f"Job {handle.job_id} failed: {failure.message}"]
    parts.append(
        f"phase {phase or 'unknown'}, Slurm state {verdict.state or 'unknown'}, exit code "
        f"{verdict.exit_code if verdict.exit_code is not None else 'unknown'}"
        + (f", node {record.node}" if record and record.node else "")
    )
    if record is None and verdict.message not in failure.message:
        parts.append(verdict.message)
    if text:
        parts.append("last lines of its output:\n  " + text.replace("\n", "\n  "))
    parts.append(f"run directory: {handle.run_directory}")
    details = {**_facts(handle, verdict), "phase": phase, "reason": failure.reason}
    message = "\n".join(parts)
    if issubclass(failure.error, JobFailedError):
        return failure.error(
            message,
            state=verdict.state,
            exit_code=verdict.exit_code,
            phase=phase,
            reason=failure.reason,
            log_tail=text,
            retryable=failure.retryable,
            remedy=failure.remedy,
            details=details,
        )
    return failure.error(message, remedy=failure.remedy, details=details)


def _failure(verdict: Verdict, record: CompletionRecord | None, logs: Mapping[str, str]) -> Failure:
    state = parse_state(verdict.state) if verdict.state else None
    advice = STATE_ADVICE.get(state) if state is not None else None
    if verdict.kind == "failed" and (state is JobState.OUT_OF_MEMORY or _OVER_MEMORY.search(logs.get("slurm.out", ""))):
        return _advised(JobState.OUT_OF_MEMORY)
    if verdict.kind == "failed" and record is not None and (record.phase, record.tool_status) == ("import", 124):
        return _advised(JobState.TIMEOUT)
    by_state = advice is not None and verdict.state not in ("FAILED", "COMPLETED", "RUNNING", "COMPLETING")
    if verdict.kind == "failed" and record is not None and not (by_state and record.signalled):
        return failures.explain(record.exit_status, record.phase, logs)
    if verdict.kind == "failed" and record is None and verdict.exit_code in failures.EXIT_CODES and not by_state:
        return failures.explain(verdict.exit_code or 0, "", logs)
    if verdict.kind == "failed" and record is not None and state is not None:
        return _advised(state)  # the record knows the signal, Slurm why it was sent
    return Failure(
        reason=verdict.kind
        if verdict.kind.endswith("timeout")
        else (verdict.reason or verdict.state or verdict.kind).lower(),
        message=verdict.message,
        remedy=verdict.remedy or (advice.remedy if advice else "Look into the run directory."),
        retryable=verdict.retryable,
    )


def _advised(state: JobState) -> Failure:
    advice = STATE_ADVICE[state]
    return Failure(state.value.lower(), f"{advice.message} ({state.value})", advice.remedy, retryable=advice.retryable)


def _text(logs: Mapping[str, str]) -> str:
    return logs.get("slurm.out", "") or "\n".join(logs.get(name, "") for name in _LOGS)


def _where(message: str, handle: JobHandle) -> str:
    return f"Job {handle.job_id}: {message}\nrun directory: {handle.run_directory}"


def _facts(handle: JobHandle, verdict: Verdict) -> dict[str, Any]:
    return {
        "job_id": handle.job_id,
        "cluster": handle.cluster,
        "state": verdict.state,
        "exit_code": verdict.exit_code,
        "reason": verdict.kind,
        "run_directory": handle.run_directory,
        "log_paths": [f"{handle.run_directory}/{name}" for name in _LOGS],
    }


def failure_record(error: SlurmImagesError) -> dict[str, Any]:
    """Plain JSON for the ``failure`` XCom: fixed keys, None where nothing is known."""
    keys = ("job_id", "cluster", "state", "exit_code", "phase", "reason", "run_directory", "log_paths")
    known = {key: error.details.get(key, getattr(error, key, None)) for key in keys}
    return {
        "schema_version": 1,
        "error": type(error).__name__,
        "message": error.message,
        "remedy": error.remedy,
        "retryable": error.retryable,
        **known,
    }


def plan_lines(plan: LifecyclePlan) -> list[str]:
    """The plan for the task log."""
    request, profile = plan.request, plan.profile
    source = getattr(request, "image", None) or getattr(request, "path", "")
    return [
        f"Plan: {request.operation} {source}",
        f"  kind {request.kind}, alias {request.name or '(none)'}, workspace {plan.workspace}",
        f"  partition {profile.partition or '(default)'}, {profile.cpus_per_task} CPUs, {profile.memory}, "
        f"time limit {profile.time_limit}",
        f"  run key {plan.run_key}, run directory {plan.attempt_directory}",
    ]


def summary_lines(record: ImageRecord) -> list[str]:
    """A readable summary of a good end."""
    inspection = record.inspection.inspection
    lines = [
        f"Image: {record.sqsh.path}",
        f"  {record.sqsh.size_bytes / 2**20:.1f} MiB, SHA-256 {record.sqsh.sha256}",
        f"  {inspection.kind}: {_facts_line(record)}",
        f"  job {record.job.job_id} on {record.job.node or '?'}: {record.job.elapsed_seconds} s",
    ]
    if record.source is not None:
        lines.insert(1, f"  from {record.source.reference}")
    if record.sqsh.alias_path:
        lines.append(f"  alias {record.sqsh.alias_path}")
    lines += [f"  warning: {text}" for text in record.image.get("warnings", [])[:10]]
    return lines


def _facts_line(record: ImageRecord) -> str:
    found = record.inspection.inspection
    if isinstance(found, ClientInspection):
        packages = f"{len(found.distributions)} distributions"
        installer = f"installer {found.installer_path} {found.installer_version}"
        return f"Python {found.python_version}, {packages}, {installer}"
    if isinstance(found, ServingInspection):
        return f"{found.server_type} {found.runtime_version} at {found.executable_path}"
    return f"{record.image.get('os', 'unknown system')}, {record.image.get('architecture', 'unknown architecture')}"
