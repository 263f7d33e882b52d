# SPDX-License-Identifier: Apache-2.0
"""What the lifecycle needs of the world: a cluster's verbs, and a logger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from airflow_slurm_images.core.observation import Observation, Watch
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.run_state import RunState
from airflow_slurm_images.core.slurm import QueueAnswer
from airflow_slurm_images.core.submission import Publication, SubmitAnswer
from airflow_slurm_images.core.watch import Line


class Log(Protocol):
    """What is needed of a logger; Airflow's task loggers differ between releases."""

    def log(self, level: int, event: str, *args: Any) -> Any: ...
    def info(self, event: str, *args: Any) -> Any: ...
    def warning(self, event: str, *args: Any) -> Any: ...


class Cluster(Protocol):
    """What the lifecycle needs of a cluster; ``SlurmHook`` is the one implementation in the product."""

    @property
    def profile(self) -> ClusterProfile: ...
    def prepare(self, run_key: str, source_digest: str = "", name: str = "", *, begins: bool = False) -> RunState: ...
    def stage(self, plan: LifecyclePlan, credentials: bytes | None = None) -> str: ...
    def submit(self, plan: LifecyclePlan, staged_sha256: str) -> SubmitAnswer: ...
    def adopt(self, attempt_directory: str, generation: int, job_id: int) -> None: ...
    def observe(self, watches: Sequence[Watch], cluster: str | None = None) -> list[Observation]: ...
    def collect(self, attempt_directory: str, *, ended: bool = False) -> RemoteResult: ...
    def cancel(
        self, job_id: int | None, job_name: str, cluster: str | None = None, *, attempt: str = "*"
    ) -> QueueAnswer: ...
    def publish(self, workspace: str, name: str, record: bytes, variables: Mapping[str, str]) -> Publication: ...


def emit(log: Log, lines: Sequence[Line]) -> None:
    """Write lines of a watch to a log."""
    for line in lines:
        log.log(line.level, "%s", line.text)
