# SPDX-License-Identifier: Apache-2.0
"""Judging ``sbatch``: submitted, refused, or in doubt; and what a publication answered."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.slurm import AmbiguousSubmissionError, SubmittedJob, parse_sbatch

_DOUBT = re.compile(
    r"timed? ?out|unable to contact|connect failure|connection (refused|reset|closed)|communication|transmi|"
    r"temporarily|try again|zero bytes|slurm backup controller|not responding|munge|authentication|credential|"
    r"network is unreachable|no route|resolve",
    re.IGNORECASE,
)
"""Words of an error after which a job may have been submitted all the same."""

_REFUSED = re.compile(r"(sbatch: )?error:|Batch job submission failed|invalid|unrecognized|not found", re.IGNORECASE)


@dataclass(frozen=True)
class SubmitAnswer:
    """What ``sbatch`` answered. ``job`` None and ``doubt`` set: a job may be there or not."""

    submitted_at: str
    job: SubmittedJob | None
    doubt: str | None

    @classmethod
    def read(cls, result: RemoteResult) -> SubmitAnswer:
        """Judge the answer of ``submit.sh``; raises InvalidRequestError when Slurm refused the job for good."""
        status, output, errors = (
            result.text("sbatch.rc"),
            result.text("sbatch.out"),
            result.text("sbatch.err"),
        )
        submitted_at = result.text("submitted_at")
        if status == "0":
            try:
                return cls(submitted_at, parse_sbatch(output), None)
            except AmbiguousSubmissionError as err:
                return cls(submitted_at, None, str(err))
        words = " ".join((errors or output).split())[:1000]
        if status == "127":
            raise InvalidRequestError(
                f"sbatch was not found on the login node: {words}",
                remedy="Name the directory of the Slurm commands in the profile's slurm_bin.",
            )
        if status.isdigit() and int(status) < 124 and _REFUSED.search(words) and not _DOUBT.search(words):
            raise InvalidRequestError(
                f"Slurm refused the job: {words}",
                remedy="Correct the named setting (partition, account, qos, memory, time_limit ...) in the profile.",
            )
        return cls(submitted_at, None, words or f"sbatch ended with status {status} and no message")


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
            number=int(result.text("number", "0") or 0),
            moved=result.text("moved", "1") == "1",
            previous=result.text("previous") or None,
        )
