# SPDX-License-Identifier: Apache-2.0
"""Waiting for one job, without doing any waiting: observations in, verdict and log lines out.

Blocking operators, sensors and triggers all drive this one machine, so that they cannot differ. The caller
brings the clock and does the sleeping.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace

from airflow_slurm_images.core.decide import Evidence, JobKey, Limits, Memory, Verdict, decide
from airflow_slurm_images.core.logtext import LineStream
from airflow_slurm_images.core.observation import Observation, Watch
from airflow_slurm_images.core.records import CompletionRecord, JobHandle
from airflow_slurm_images.core.slurm import QueueAnswer
from airflow_slurm_images.core.states import StateClass, classify

STREAM_LIMIT = 1024 * 1024
"""Bytes of a job's output that go into one task log."""
CHUNK_LIMIT = 64 * 1024
"""Bytes of output per job and look, so that many waiting jobs still fit into one answer. Of one that has ended, all
that its log takes is asked for at once, as far as its share of the answer goes."""

SIGNAL_GRACE = 45.0
"""Seconds in which Slurm's reason for ending a job (time limit, cancelled) may become visible."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_FIRST_DELAYS = (2.0, 4.0, 8.0, 16.0)
_LONGEST_DELAY = 300.0
_TO_COME = {StateClass.WAITING, StateClass.INTERRUPTED}
_NOT_ENDED = {*_TO_COME, StateClass.RUNNING}


@dataclass(frozen=True)
class Line:
    """One line for the task log, with its ``logging`` level."""

    level: int
    text: str


class JobWatch:
    """State of waiting for one job; ``stream`` names the try whose log it feeds."""

    def __init__(self, handle: JobHandle, limits: Limits, now: float, *, stream: str, resume: bool = False) -> None:
        self.handle = handle
        self._limits = replace(limits, gone_grace=float(handle.record_wait))
        self._memory = Memory(submitted_at=now)
        self._stream = _UNSAFE.sub("_", stream)[:80]  # it becomes part of a file name
        self._lines = LineStream(STREAM_LIMIT)
        self._offset: int | None = None if resume else 0
        self._followed = handle.job_id
        self._polls = 0
        self._draining = False
        self._ending = False
        self._asked = 0
        self._signalled_since: float | None = None
        self._phase: str | None = None
        self.record: CompletionRecord | None = None

    @property
    def job_id(self) -> int:
        """The job that runs the attempt: the one that claimed it, else the one that was submitted."""
        return self._followed

    @property
    def phase(self) -> str | None:
        """Last phase seen."""
        return self._phase

    @property
    def ending(self) -> bool:
        """Whether the job has ended and only the rest of its output is still to come."""
        return self._ending

    def request(self, log_bytes: int = CHUNK_LIMIT) -> Watch:
        """What the next look must ask; ``log_bytes`` is this job's share of the answer."""
        self._asked = 0 if self._lines.full else min(log_bytes, STREAM_LIMIT if self._ending else CHUNK_LIMIT)
        return Watch(
            job_id=self._followed,
            job_name=self.handle.job_name,
            token=self.handle.token,
            directory=self.handle.run_directory,
            submitted_at=self.handle.submitted_at,
            stream=self._stream,
            log_offset=self._offset,
            log_bytes=self._asked,
            log_kept=self._lines.shown,
        )

    def feed(self, observation: Observation, now: float) -> tuple[Verdict, list[Line]]:
        """Judge one look. A verdict other than ``wait`` is final."""
        lines: list[Line] = []
        if observation.claimed_by not in (None, self._followed):
            lines.append(Line(logging.WARNING, f"Job {observation.claimed_by} runs this attempt; following it"))
            self._followed = observation.claimed_by or self._followed
        observation = self._without_former_run(observation)
        self.record = observation.record or self.record
        if self._offset is None and observation.log_offset:
            self._lines.go_on(observation.log_offset)
        self._offset = observation.log_offset + len(observation.log)
        key = JobKey(self._followed, self.handle.job_name)
        before = self._memory
        verdict, self._memory = decide(key, observation.evidence, self._memory, self._limits, now)
        self._polls += 1
        final = verdict.kind != "wait"
        if not final and self._memory.unknown_since is None:
            self._signalled_since = None
        self._draining = 0 < self._asked <= len(observation.log) and not self._lines.full
        self._ending = final and self._draining
        lines += [Line(logging.INFO, text) for text in verdict.notes]
        lines += [
            Line(logging.INFO, text) for text in self._lines.feed(observation.log, last=final and not self._draining)
        ]
        if observation.phase and observation.phase != self._phase:
            self._phase = observation.phase
            if self._lines.full:
                lines.append(Line(logging.INFO, f"asi: phase {self._phase}"))
        lines += [Line(logging.WARNING, text) for text in verdict.warnings]
        if self._memory.unknown_since is None and before.unknown_since is not None:
            lines.append(Line(logging.INFO, "The cluster answers again"))
        if final and (self._draining or self._reason_may_follow(verdict, now)):
            verdict = Verdict("wait", state=verdict.state)  # the next look says the same, with more to it
        return verdict, lines

    def _without_former_run(self, seen: Observation) -> Observation:
        """A record of failure beside a job that waits in the queue is of a run before a requeue: it decides nothing.

        A requeued job takes its former record away, so one that was seen and is gone is of a former run too.
        """
        states = {
            classify(row.state)
            for row in seen.evidence.queue.rows
            if row.job_id == self._followed and row.name == self.handle.job_name
        }
        if seen.record is None:
            if states & _NOT_ENDED and seen.evidence.completion is None:
                self.record = None
            return seen
        if not states & _TO_COME or seen.record.exit_status == 0:
            return seen
        self.record = None
        return replace(seen, record=None, evidence=replace(seen.evidence, completion=None))

    def _reason_may_follow(self, verdict: Verdict, now: float) -> bool:
        """Whether a signal ended the job or its tool and Slurm has not said why yet."""
        if self.record is None or not self.record.signalled:
            return False
        if classify(verdict.state or "") in (StateClass.FAILED, StateClass.INTERRUPTED):
            return False
        if self._signalled_since is None:
            self._signalled_since = now
        return now - self._signalled_since < SIGNAL_GRACE

    def feed_failure(self, detail: str, now: float) -> tuple[Verdict, list[Line]]:
        """Judge a look that failed altogether: unknown, never gone."""
        offset = self._offset
        blind = Observation(Evidence(queue=QueueAnswer("unknown", detail=detail)))
        verdict, lines = self.feed(blind, now)
        self._offset = offset
        return verdict, lines

    def delay(self, interval: float, jitter: float) -> float:
        """Seconds until the next look: soon at first, then ``interval`` and 3 to 13 % more, longer in doubt.

        ``jitter`` is a random number in [0, 1). At 30 s an hour of waiting takes at most 121 looks.
        """
        if self._draining:
            return 0.0
        if self._signalled_since is not None:
            return min(interval, 3.0)
        doubts = self._memory.unknown_count
        if doubts:
            return float(min(_LONGEST_DELAY, interval * 2 ** min(doubts - 1, 10)) * (0.75 + jitter / 2))
        if self._polls <= len(_FIRST_DELAYS):
            return min(interval, _FIRST_DELAYS[max(self._polls - 1, 0)])
        return interval * (1.03 + jitter / 10)
