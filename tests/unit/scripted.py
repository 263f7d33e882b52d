# SPDX-License-Identifier: Apache-2.0
"""A cluster that answers from lists and a clock that only sleeping moves, for tests of the lifecycle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_slurm_images.core.errors import ClusterUnavailableError
from airflow_slurm_images.core.observation import Observation, Watch
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.run_state import Attempt, RunState
from airflow_slurm_images.core.slurm import QueueAnswer, QueueRow, SubmittedJob
from airflow_slurm_images.core.submission import Publication, SubmitAnswer

from . import records

NAME = records.handle().job_name
AT = "2024-05-01T10:00:00"
DOWN = ClusterUnavailableError("no route to host")


def row(job_id: int, state: str = "RUNNING", reason: str = "None") -> QueueRow:
    return QueueRow(job_id, state, reason, 5, "n1", NAME)


@dataclass
class ScriptedCluster:
    """Answers from lists (the last one stays); remembers what it was asked, in order."""

    profile: ClusterProfile = field(default_factory=lambda: ClusterProfile.from_author(records.PROFILE))
    submits: list[SubmitAnswer | Exception] = field(default_factory=list)
    queues: list[QueueAnswer | Exception] = field(default_factory=lambda: [QueueAnswer("ok")])
    cancels: list[QueueAnswer | Exception] = field(default_factory=lambda: [QueueAnswer("ok")])
    observed: list[Observation | Exception] = field(default_factory=list)
    collected: list[RemoteResult | Exception] = field(
        default_factory=lambda: [RemoteResult(0, {"tail.slurm.out": (b"the last words",)})]
    )
    attempts: list[Attempt] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    on_submit: Callable[[LifecyclePlan], None] = lambda _: None

    @staticmethod
    def _next(answers: list[Any]) -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def prepare(self, run_key: str, source_digest: str = "", name: str = "", *, begins: bool = False) -> RunState:
        self.done.append("prepare")
        queue = self._next(self.queues)
        return RunState(workspace="/ws", login="ann", host="login1", attempts=tuple(self.attempts), queue=queue)

    def stage(self, plan: LifecyclePlan, credentials: bytes | None = None) -> str:
        self.done.append("stage")
        self.attempts.append(attempt(plan, job=None))
        return "0" * 64

    def submit(self, plan: LifecyclePlan, staged_sha256: str) -> SubmitAnswer:
        self.done.append("submit")
        self.on_submit(plan)
        answer: SubmitAnswer = self._next(self.submits)
        return answer

    def adopt(self, attempt_directory: str, generation: int, job_id: int) -> None:
        self.done.append(f"adopt {job_id} {generation}")

    def observe(self, watches: Sequence[Watch], cluster: str | None = None) -> list[Observation]:
        self.done.append("observe")
        return [self._next(self.observed)]

    def collect(self, attempt_directory: str, *, ended: bool = False) -> RemoteResult:
        self.done.append(f"collect {ended}")
        answer: RemoteResult = self._next(self.collected)
        return answer

    def cancel(
        self, job_id: int | None, job_name: str, cluster: str | None = None, *, attempt: str = "*"
    ) -> QueueAnswer:
        self.done.append(f"cancel {job_id} {job_name == NAME} {cluster}")
        answer: QueueAnswer = self._next(self.cancels)
        return answer

    def publish(self, workspace: str, name: str, record: bytes, variables: Mapping[str, str]) -> Publication:
        raise AssertionError("nothing may be published here")

    def count(self, verb: str) -> int:
        """How often something was asked."""
        return sum(entry.split()[0] == verb for entry in self.done)


def attempt(plan: LifecyclePlan, job: int | None = 481, **values: Any) -> Attempt:
    given: dict[str, Any] = {
        "name": plan.attempt,
        "plan": plan,
        "submitted": SubmittedJob(job, None) if job else None,
        "submitted_at": AT,
        "claimed_by": None,
        "fenced": False,
        "cancelled": False,
        "generations": frozenset({1}),
        "exit_status": None,
    }
    return Attempt(**{**given, **values})


class Clock:
    """Time passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.1)
