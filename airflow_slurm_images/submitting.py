# SPDX-License-Identifier: Apache-2.0
"""Submitting one staged attempt, and what to do when ``sbatch``'s answer is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from airflow_slurm_images.cluster_protocol import Cluster, Log
from airflow_slurm_images.core import run_state
from airflow_slurm_images.core.errors import ClusterUnavailableError, SubmissionRefusedError, SubmissionUnknownError
from airflow_slurm_images.core.plan import LifecyclePlan
from airflow_slurm_images.core.slurm import SubmittedJob

LOOK_UP_SECONDS = 90.0
"""How long a job of a doubtful submission is looked up by name, each time."""


class Submitter:
    """One job of one attempt, whatever happens to the answers."""

    def __init__(
        self,
        cluster: Cluster,
        log: Log,
        *,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
        go_on: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._sleep = sleep
        self._clock = clock
        self._go_on = go_on

    def submit(self, plan: LifecyclePlan, staged: str, before: Collection[int]) -> tuple[SubmittedJob, str | None]:
        """Submit; in doubt look the job up by its name, and submit the same attempt once more if it is absent.

        ``before`` are the jobs of this name that were there already. The second submission is harmless: the job
        claims its attempt, and singleton keeps two of one name apart. ``go_on`` raises when there must be none.
        """
        doubt = ""
        for _ in range(2):
            self._go_on()
            try:
                answer = self._cluster.submit(plan, staged)
                if answer.job is not None:
                    return answer.job, answer.submitted_at
                doubt = answer.doubt or ""
            except SubmissionRefusedError:
                raise
            except ClusterUnavailableError as err:
                doubt = err.message
            self._log.warning("It is not known whether the job was submitted (%s); looking it up by name", doubt)
            found = self._look_up(plan, before)
            if found is not None:
                return found
        raise _unknown_submission(plan, doubt)

    def _look_up(self, plan: LifecyclePlan, before: Collection[int]) -> tuple[SubmittedJob, str] | None:
        """The job of ``plan`` in any state, or None when good answers did not show it for a whole period on end.

        ``before`` are the jobs of this name that were there before the submission. Raises SubmissionUnknownError
        when the cluster does not answer.
        """
        began, good_since = self._clock(), None
        while True:
            good = False
            try:
                state = self._cluster.prepare(plan.run_key)
                good = state.queue.status == "ok"
                found = run_state.find(state, plan.attempt, before)
                if found is not None:
                    return found
            except ClusterUnavailableError as err:
                self._log.warning("Look-up failed: %s", err.message)
            now = self._clock()
            good_since = (now if good_since is None else good_since) if good else None
            if good_since is not None and now - good_since >= LOOK_UP_SECONDS:
                return None
            if good_since is None and now - began >= LOOK_UP_SECONDS:
                raise _unknown_submission(plan, "the cluster does not answer")
            self._sleep(5 + random.random())  # noqa: S311 - jitter


def _unknown_submission(plan: LifecyclePlan, doubt: str) -> SubmissionUnknownError:
    return SubmissionUnknownError(
        f"It is not known whether a job was submitted: {doubt}\nrun directory: {plan.attempt_directory}",
        remedy=f"Look it up on the cluster: squeue --states=all --name={plan.job_name} and "
        f"cat {plan.attempt_directory}/job_id. Clear the task then: an active job is adopted.",
        details={"run_directory": plan.attempt_directory, "reason": "submission_unknown"},
    )
