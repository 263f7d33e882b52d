# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a task on its cluster, and the judgement that every fault test ends with."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from airflow_slurm_images.core.plan import job_name
from tests.cluster.box import Box
from tests.cluster.polling import wait_until
from tests.cluster.remains import user_processes
from tests.faults.steps import Outcome, Step


class SlurmJob(NamedTuple):
    """What the controller remembers of a job."""

    job_id: int
    state: str
    reason: str
    restarts: int
    start: datetime | None
    end: datetime | None


class Evidence:
    """The jobs, attempts and calls of the task with run key ``key``; ``tools`` is where its commands note calls."""

    box: Box
    key: str
    tools: Path

    # -- what there is on the cluster

    @property
    def job_name(self) -> str:
        return job_name(self.key)

    @property
    def attempts(self) -> list[Path]:
        runs = self.box.workspace / "users" / self.box.user / "runs" / self.key
        return sorted(runs.iterdir(), key=lambda path: path.stat().st_mtime) if runs.exists() else []

    def jobs(self) -> list[SlurmJob]:
        """All jobs of the task that the controller knows, the oldest first."""
        rows = []
        for job in self.box.squeue(self.job_name):
            text = self.box.as_root(["scontrol", "-o", "show", "job", str(job.job_id)], check=True).stdout
            fields = dict(re.findall(r"(\S+?)=(\S+)", text))
            restarts, start, end = int(fields["Restarts"]), _time(fields["StartTime"]), _time(fields["EndTime"])
            rows.append(SlurmJob(job.job_id, fields["JobState"], fields["Reason"], restarts, start, end))
        return sorted(rows)

    def job_state(self) -> str | None:
        jobs = self.jobs()
        return jobs[-1].state if jobs else None

    def reaches(self, state: str, timeout: float = 60) -> bool:
        """Wait until the newest job is in a state."""
        return wait_until(lambda: self.job_state() == state, timeout, 0.2)

    def start_now(self, job: str) -> bool:
        """Let a requeued job start without its wait; False while Slurm still clears up after its first run."""
        return self.box.as_root(["scontrol", "update", f"JobId={job}", "StartTime=now"]).returncode == 0

    def looked(self, waiting: Step, timeout: float = 60) -> bool:
        """Wait until a try has seen its job running."""
        return wait_until(lambda: "is RUNNING" in waiting.log, timeout, 0.1)

    def importing(self, jobs: int = 1, timeout: float = 60) -> bool:
        """Wait until so many jobs have come to their import."""
        return wait_until(lambda: len(self.imports()) >= jobs, timeout, 0.1)

    def imports(self) -> list[int]:
        """Ids of the jobs that began an import."""
        file = self.tools / "imports"
        return [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []

    def calls(self, command: str) -> list[str]:
        """Calls of a command that ``tools/passing`` notes."""
        file = self.tools / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.split()[0] == command]

    # -- judgement

    def assert_published(self, outcome: Outcome) -> dict[str, Any]:
        """The try ended well: the record is there, of a job that Slurm knows, and its alias leads to its file."""
        record = self.assert_published_by_record(outcome)
        assert record["job"]["job_id"] in {job.job_id for job in self.jobs()}
        return record

    def assert_published_by_record(self, outcome: Outcome) -> dict[str, Any]:
        """The same where Slurm can say nothing about the job."""
        assert outcome.value is not None, outcome
        record = outcome.value
        assert Path(record["sqsh"]["alias_path"]).resolve() == Path(record["sqsh"]["path"])
        return record

    def assert_settled(self, *, jobs: int, imports: int) -> None:
        """So many jobs in all, so many of them imported, never two at once, and nothing is left running."""
        assert wait_until(lambda: not self.box.active_jobs(self.job_name), 30), self.jobs()
        found = self.jobs()
        assert len(found) == jobs, found
        assert len(self.imports()) == imports, self.imports()
        ran = sorted((job for job in found if job.start and job.end), key=lambda job: job.job_id)
        for earlier, later in itertools.pairwise(ran):
            assert earlier.end and later.start and earlier.end <= later.start, found
        assert wait_until(lambda: not self.left(), 20), (self.left(), self.outputs())

    def outputs(self) -> list[str]:
        """What the jobs printed, for a failing test's message."""
        return [(path / "slurm.out").read_text() for path in self.attempts if (path / "slurm.out").exists()]

    def left(self) -> list[str]:
        """Scratch, secrets and processes of the task's jobs that should be gone."""
        tokens = [json.loads((path / "plan.json").read_text())["token"] for path in self.attempts]
        scratch = [str(path) for token in tokens for path in Path(tempfile.gettempdir()).glob(f"asi-{token}.*")]
        secret = [str(path / "enroot-config") for path in self.attempts if (path / "enroot-config").exists()]
        return [*user_processes(self.box), *scratch, *secret]


def _time(text: str) -> datetime | None:
    return None if text in ("Unknown", "None") else datetime.fromisoformat(text)
