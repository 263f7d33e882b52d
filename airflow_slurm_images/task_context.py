# SPDX-License-Identifier: Apache-2.0
"""What Airflow knows, in the lifecycle's terms: run key, tries, and errors as Airflow wants them."""

from __future__ import annotations

import ast
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout, conf

try:
    from airflow.sdk.exceptions import TaskDeferralTimeout
except ImportError:  # Airflow 3.1
    from airflow.exceptions import TaskDeferralTimeout  # type: ignore[no-redef]

from airflow_slurm_images.cluster_protocol import Log
from airflow_slurm_images.core.errors import InvalidRequestError, JobFailedError, SlurmImagesError
from airflow_slurm_images.core.plan import run_key
from airflow_slurm_images.core.records import JobHandle
from airflow_slurm_images.core.reports import failure_record

__all__ = ["TaskDeferralTimeout", "TaskTry", "deployment_id", "listing", "mapping", "overtime", "reported", "seconds"]

FAILURE_KEY = "failure"
"""XCom key of what is known about a failed job."""


@dataclass(frozen=True)
class TaskTry:
    """One try of one task instance. ``generation`` is the first try's number since the run began or was cleared."""

    run_key: str
    number: int
    generation: int

    @property
    def is_retry(self) -> bool:
        """Whether this is an Airflow retry, not the first try of a run or after a clear."""
        return self.number > self.generation

    @property
    def stream(self) -> str:
        """Name of this try's log stream on the cluster."""
        return f"try{self.number}"

    @classmethod
    def read(cls, context: Mapping[str, Any], retries: int) -> TaskTry:
        """Read the running task instance. A clear sets ``max_tries = try_number + retries``."""
        instance = context["ti"]
        number = max(1, int(instance.try_number))
        max_tries = int(instance.max_tries if instance.max_tries is not None else retries)
        map_index = instance.map_index if instance.map_index is not None else -1
        key = run_key(deployment_id(), instance.dag_id, instance.task_id, instance.run_id, int(map_index))
        return cls(key, number, min(number, max(1, max_tries - retries + 1)))


def deployment_id() -> str:
    """``[slurm_images] deployment_id``, else derived from the API base URL."""
    chosen = str(conf.get("slurm_images", "deployment_id", fallback="") or "")
    if chosen:
        return chosen
    base_url = str(conf.get("api", "base_url", fallback="") or "")
    return "url-" + hashlib.sha256(base_url.encode()).hexdigest()[:16]


@contextmanager
def reported(context: Mapping[str, Any]) -> Iterator[None]:
    """Push the ``failure`` XCom, and turn an error that a retry cannot help into "fail without retries"."""
    try:
        yield
    except SlurmImagesError as err:
        context["ti"].xcom_push(key=FAILURE_KEY, value=failure_record(err))
        if err.retryable:
            raise
        raise AirflowFailException(str(err)) from err


def late_job(handle: JobHandle, limit: timedelta | None, fate: str) -> JobFailedError:
    """The error of a job that did not end within ``execution_timeout``; ``fate`` says what becomes of it."""
    return JobFailedError(
        f"execution_timeout: job {handle.job_id} did not end within {limit} and {fate}\n"
        f"run directory: {handle.run_directory}",
        reason="execution_timeout",
        remedy="Raise execution_timeout, or use pending_timeout and run_timeout to tell waiting from running.",
        details={"job_id": handle.job_id, "cluster": handle.cluster, "run_directory": handle.run_directory},
    )


@contextmanager
def overtime(context: Mapping[str, Any], log: Log, failure: Callable[[], SlurmImagesError]) -> Iterator[None]:
    """Say what an ``execution_timeout`` means for the job and push the ``failure`` XCom; Airflow's own error goes on.

    Airflow calls ``on_kill`` after it, and its error says no more than "Timeout".
    """
    try:
        yield
    except AirflowTaskTimeout:
        told = failure()
        log.log(logging.ERROR, "%s", told)
        try:
            context["ti"].xcom_push(key=FAILURE_KEY, value=failure_record(told))
        except Exception as err:  # the alarm may have come in the middle of an exchange with Airflow
            log.warning("The failure XCom could not be pushed: %r", err)
        raise


def mapping(name: str, value: Any) -> dict[str, Any]:
    """A mapping that an author gave, as it is or as the text a template made of it (JSON, or Python's own).

    Nothing, an empty text and "None" are the empty mapping; raises InvalidRequestError.
    """
    if isinstance(value, str):
        value = _literal(value.strip())
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    raise InvalidRequestError(
        f"Invalid request: {name} must be a mapping, got {value!r}",
        remedy=f"Pass {name} as a dict, or as a template that renders one.",
    )


def listing(value: Any) -> Any:
    """The list behind a text that a template made of one (``{{ params.requirements }}``), else the value itself."""
    found = _literal(value.strip()) if isinstance(value, str) and value.strip().startswith(("[", "(")) else value
    return found if isinstance(found, (list, tuple)) else value


def _literal(text: str) -> Any:
    if not text:
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def seconds(name: str, value: Any) -> float | None:
    """Seconds of an author's timeout: a number, a ``timedelta``, or None; raises InvalidRequestError."""
    if value is None:
        return None
    if hasattr(value, "total_seconds"):
        value = value.total_seconds()
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < float("inf"):
        raise InvalidRequestError(
            f"Invalid request: {name} must be a positive number of seconds or a timedelta, got {value!r}",
            remedy=f"Pass {name}=3600 or {name}=timedelta(hours=1).",
        )
    return number
