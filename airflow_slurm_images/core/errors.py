# SPDX-License-Identifier: Apache-2.0
"""The error tree, grouped by what the caller can do about it.

Every error carries a ``remedy`` (what to do next) and ``details`` (facts for the ``failure`` XCom), and says
with ``retryable`` whether running the same task again can help. Operators turn errors that a retry cannot help
into Airflow's "fail without retries"; the cause is always kept (``raise ... from err``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SlurmImagesError(Exception):
    """Base of every error this package raises on purpose."""

    retryable: bool = False

    def __init__(self, message: str, *, remedy: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details: dict[str, Any] = dict(details or {})

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}\nWhat to do: {self.remedy}"


class InvalidRequestError(SlurmImagesError):
    """The request is wrong; fix it. Raised before anything is submitted."""


class ClusterUnavailableError(SlurmImagesError):
    """The cluster could not be reached or did not answer sensibly; try again later."""

    retryable = True


class NotVisibleError(ClusterUnavailableError):
    """A file that a good job left is not visible on the login node (yet), or gone."""


class LostContactError(ClusterUnavailableError):
    """Too many polls in a row failed. The job was left alone and may still be running."""


class JobStateUnknownError(ClusterUnavailableError):
    """The job is in no queue, no accounting, and left no completion record."""


class SubmissionRefusedError(ClusterUnavailableError):
    """Slurm does not take the job for now (a submit limit, a drained partition). Nothing was submitted."""


class TaskKilledError(ClusterUnavailableError):
    """Airflow killed the task before it had a job; no job was submitted, or it was cancelled."""


class OtherVersionError(ClusterUnavailableError):
    """Another version of this package planned the attempt, in a form that this one cannot read. It was left alone."""


class RegistryError(SlurmImagesError):
    """The registry refused or failed; the subclass says which."""


class RegistryAuthError(RegistryError):
    """401 or 403: wrong or missing login, or no right to this repository."""


class RegistryNotFoundError(RegistryError):
    """404: no such repository, tag, digest or platform."""


class RegistryResponseError(RegistryError):
    """The answer is not a usable image: wrong media type, too large, malformed."""


class RegistryRateLimitedError(RegistryError):
    """429: too many requests; later it works again."""

    retryable = True


class RegistryTlsError(RegistryError):
    """No TLS connection: a certificate that is not trusted, or no TLS at all on the other side."""


class RegistryUnavailableError(RegistryError):
    """The registry is down, unreachable or answers 5xx."""

    retryable = True


class JobFailedError(SlurmImagesError):
    """The Slurm job ended without a usable result.

    ``state`` is Slurm's (``TIMEOUT``, ``OUT_OF_MEMORY`` ...) or ``None`` where only the completion record spoke;
    ``reason`` is our short machine-readable word for the cause (``no_space``, ``architecture_mismatch`` ...).
    """

    def __init__(
        self,
        message: str,
        *,
        state: str | None = None,
        exit_code: int | None = None,
        phase: str | None = None,
        reason: str = "job_failed",
        log_tail: str = "",
        retryable: bool = True,
        remedy: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, details=details)
        self.state = state
        self.exit_code = exit_code
        self.phase = phase
        self.reason = reason
        self.log_tail = log_tail
        self.retryable = retryable


class SubmissionUnknownError(SlurmImagesError):
    """``sbatch`` may or may not have submitted a job. Do not resubmit; look it up by name first."""


class ConflictError(SlurmImagesError):
    """Something of another owner or meaning is already there; nothing was overwritten."""


class IntegrityError(SlurmImagesError):
    """Bytes are not what they should be."""


class UnsafeImageError(SlurmImagesError):
    """The image would act on the host when started; it was not started."""
