# SPDX-License-Identifier: Apache-2.0
"""What ``sbatch`` answered: a job, a refusal that is sure (for good or for now), or doubt."""

from __future__ import annotations

import pytest

from airflow_slurm_images.core.errors import InvalidRequestError, SubmissionRefusedError
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.submission import SubmitAnswer

FAILED = "sbatch: error: Batch job submission failed: "


def answer(rc: int, errors: str) -> SubmitAnswer:
    fields = {"sbatch.rc": str(rc), "sbatch.out": "", "sbatch.err": errors, "submitted_at": "2024-05-01T10:00:00"}
    return SubmitAnswer.read(RemoteResult(0, {name: (text.encode(),) for name, text in fields.items()}))


@pytest.mark.parametrize(
    "words",
    [
        "Message receive failure",
        "Header lengths are longer than data received",
        "Insane message length",
        "Unexpected message received",
        "Interrupted system call",
        "Broken pipe",
        "Transport endpoint is not connected",
        "Lost connection to the controller",
        "Input/output error",
        "I/O error writing script/environment to file",
        "RPC rate limit exceeded",
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "words of a release to come",
    ],
)
def test_an_error_that_does_not_turn_the_job_down_is_doubt(words: str) -> None:
    found = answer(1, FAILED + words)
    assert found.job is None
    assert words in (found.doubt or "")


@pytest.mark.parametrize(
    "words",
    [
        FAILED + "Invalid partition name specified",
        FAILED + "Invalid account or account/partition combination specified",
        FAILED + "Requested time limit is invalid (missing or exceeds some limit)",
        FAILED + "Requested node configuration is not available",
        FAILED + "Memory required by task is not available",
        FAILED + "More processors requested than permitted",
        FAILED + "User's group not permitted to use this partition",
        FAILED + "Access/permission denied",
        FAILED + "Unspecified error",
        FAILED + "No partition specified or system default partition",
        FAILED + "CPU count per node can not be satisfied",
        FAILED + "Node count specification invalid",
        FAILED + "Incompatible versions of client and server code",
        FAILED + "Pathname of a file, directory or other parameter too long",
        FAILED + "Job dependency problem",
        "sbatch: unrecognized option '--colour'",
        "sbatch: error: cli_filter plugin terminated with error",
        "sbatch: error: Invalid --time specification",
    ],
)
def test_a_job_that_was_turned_down_is_no_doubt(words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        answer(1, words)
    assert words in caught.value.message


BANNERS = [
    "sbatch: Message of the day: the network is slow, lost files are in lost+found",
    "sbatch: info: authentication will change; retry if your credential timed out",
    "sbatch: error: see https://docs.example/retry for limits",
]


@pytest.mark.parametrize("banner", BANNERS)
@pytest.mark.parametrize("after", [False, True])
def test_what_a_site_prints_beside_a_refusal_makes_no_doubt_of_it(banner: str, after: bool) -> None:
    refusal = FAILED + "Invalid partition name specified"
    with pytest.raises(InvalidRequestError, match="Invalid partition name"):
        answer(1, f"{refusal}\n{banner}\n" if after else f"{banner}\n{refusal}\n")


@pytest.mark.parametrize(
    "beside",
    [
        "sbatch: error: Memory specification is invalid, not permitted or not available",
        "sbatch: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: Required partition not available (inactive or drain)",
        "sbatch: error: QOSMaxSubmitJobPerUserLimit",
    ],
)
def test_what_a_site_prints_beside_a_doubt_makes_no_refusal_of_it(beside: str) -> None:
    assert answer(1, f"{beside}\n{FAILED}Socket timed out on send/recv operation\n").doubt


@pytest.mark.parametrize(
    "words",
    [
        "Required partition not available (inactive or drain)",
        "Required node not available (down, drained or reserved)",
        "Requested partition configuration not available now",
        "Requested nodes are busy",
        "Partition in DOWN state",
        "Requested reservation not usable now",
        "Requested reservation is in use",
        "Job can not start due to maintenance reservation.",
        "Job can not start immediately",
        "Immediate execution impossible, insufficient priority",
        "Switch resources currently not available",
        "Requested account has breached requested QOS usage threshold",
        "Requested operation is presently disabled",
        "System submissions disabled",
    ],
)
def test_what_operators_or_time_can_cure_may_be_retried(words: str) -> None:
    with pytest.raises(SubmissionRefusedError) as caught:
        answer(1, FAILED + words)
    assert caught.value.retryable
    assert words in caught.value.message
    assert "retry_delay" in (caught.value.remedy or "")


@pytest.mark.parametrize("rc", [126, 127])
def test_a_command_that_cannot_run_submitted_nothing(rc: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        answer(rc, "timeout: failed to run command 'sbatch'")
    assert "slurm_bin" in (caught.value.remedy or "")
