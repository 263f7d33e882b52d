# SPDX-License-Identifier: Apache-2.0
"""Judging ``sbatch``: submitted, refused, or in doubt; and what a publication answered."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_slurm_images.core.errors import InvalidRequestError, SubmissionRefusedError
from airflow_slurm_images.core.fields import slurm_time, whole_number
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.slurm import AmbiguousSubmissionError, SubmittedJob, parse_sbatch

_DOUBT = re.compile(
    r"timed? ?out|unable to contact|connect failure|connection (refused|reset|closed)|communication|transmi|"
    r"temporarily|try again|zero bytes|slurm backup controller|not responding|munge|authentication|credential|"
    r"network is unreachable|no route|resolve|receive|message|header|interrupted|broken pipe|endpoint|lost|"
    r"input/output|i/o error|rate limit|retry",
    re.IGNORECASE,
)
"""Words of an error after which a job may have been submitted all the same: they win over those of a refusal."""

_FULL = re.compile(
    r"(?:QOS|Assoc)\w*Submit\w*|temporarily unable to accept job|job queue full|job creation temporarily disabled",
    re.IGNORECASE,
)
"""Words of a limit on the number of jobs, which passes: ``sbatch`` itself waits and tries again while the queue is
full (``MaxJobCount``), so what it says then is no doubt either."""
_LIMIT = "job submit limit"
"""Part of Slurm's one sentence for all limits; which one it is, older releases do not say."""
_LIMIT_NAME = re.compile(r"\b(?:QOS|Assoc)[A-Z]\w+")

_PASSES = re.compile(
    r"required (?:partition|node) not available|not (?:available|usable) now|currently not available|nodes are busy|"
    r"partition in down state|reservation is in use|maintenance reservation|start immediately|immediate execution|"
    r"usage threshold|presently disabled|submissions disabled",
    re.IGNORECASE,
)
"""Words of what a site's operators or time change, and no request can: a drained or inactive partition, a reservation
that has not begun. Nothing was submitted."""

_REFUSED = re.compile(
    r"invalid|unrecognized|unknown|ambiguous|not (found|available|permitted|allowed|valid|supported|configured)|"
    r"(can ?not|can't) be satisfied|denied|disabled|exceed|violat|more \w+ requested|"
    r"required|requested|specification|no partition specified|unspecified error|plugin terminated|"
    r"incompatible versions|unable to open|batch script (is empty|contains)|permission|too long|dependency problem",
    re.IGNORECASE,
)
"""Words with which the controller, a site's plugin or ``sbatch`` itself turns a job down ("Invalid partition name
specified", "Requested time limit is invalid", "Unspecified error" of a submit plugin). Anything else is doubt."""

_LAST_WORD = re.compile(r"Batch job submission failed: *(\S.*)")
"""The controller's own answer, or what became of asking it. What stands beside it (a message of the day, a plugin's
advice) is for people."""


@dataclass(frozen=True)
class SubmitAnswer:
    """What ``sbatch`` answered. ``job`` None and ``doubt`` set: a job may be there or not."""

    submitted_at: str | None
    job: SubmittedJob | None
    doubt: str | None

    @classmethod
    def read(cls, result: RemoteResult) -> SubmitAnswer:
        """Judge the answer of ``submit.sh``.

        Raises InvalidRequestError when Slurm refused the job for good, SubmissionRefusedError when it does not take it
        for now.
        """
        status, output, errors = (
            result.text("sbatch.rc"),
            result.text("sbatch.out"),
            result.text("sbatch.err"),
        )
        submitted_at = slurm_time(result.text("submitted_at"))
        if status == "0":
            try:
                return cls(submitted_at, parse_sbatch(output), None)
            except AmbiguousSubmissionError as err:
                return cls(submitted_at, None, str(err))
        words = " ".join((errors or output).split())[:1000]
        answers = _LAST_WORD.findall(errors or output)
        judged = answers[-1] if answers else words
        by_itself = (whole_number(status) or 124) < 124
        if status in ("126", "127"):
            raise InvalidRequestError(
                f"sbatch was not found on the login node, or cannot be run: {words}",
                remedy="Name the directory of the Slurm commands in the profile's slurm_bin.",
            )
        if _FULL.search(judged) or (_LIMIT in judged and _of_number(words)):
            raise SubmissionRefusedError(
                f"Slurm takes no more jobs of this account for now, nothing was submitted: {words}",
                remedy="The task may be retried when other jobs have ended. Give these tasks an Airflow pool with no "
                "more slots than the limit (sacctmgr show qos, show assoc) allows.",
            )
        if by_itself and _PASSES.search(judged):
            raise SubmissionRefusedError(
                f"Slurm does not take the job for now, nothing was submitted: {words}",
                remedy="The task may be retried when the partition, its nodes or the reservation are there again "
                "(sinfo, scontrol show partition), with `retries` and `retry_delay`; or name another in the profile.",
            )
        if by_itself and _REFUSED.search(judged) and not _DOUBT.search(judged):
            raise InvalidRequestError(
                f"Slurm refused the job: {words}",
                remedy="Correct the named setting (partition, account, qos, memory, time_limit ...) in the profile.",
            )
        return cls(submitted_at, None, words or f"sbatch ended with status {status} and no message")


def _of_number(words: str) -> bool:
    """Whether the limit is one on the number of jobs; the line before the last word names it, or nothing does."""
    names = _LIMIT_NAME.findall(words)
    return not names or any("Submit" in name for name in names)


@dataclass(frozen=True)
class Publication:
    """The alias after a publication; ``previous`` is the record it meant before, as text."""

    alias_path: str
    number: int
    moved: bool
    previous: str | None

    @classmethod
    def read(cls, result: RemoteResult) -> Publication:
        """Read the answer of ``publish.sh``."""
        return cls(
            alias_path=result.text("alias_path"),
            number=whole_number(result.text("number")) or 0,
            moved=result.text("moved", "1") == "1",
            previous=result.text("previous") or None,
        )
