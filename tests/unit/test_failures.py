# SPDX-License-Identifier: Apache-2.0
"""From exit code, phase and output of a failed job to the one error that says what to do."""

from __future__ import annotations

import json
import re

import pytest

from airflow_slurm_images.core import failures, reports
from airflow_slurm_images.core.decide import Verdict
from airflow_slurm_images.core.errors import (
    ClusterUnavailableError,
    IntegrityError,
    JobFailedError,
    JobStateUnknownError,
    LostContactError,
    RegistryAuthError,
    RegistryNotFoundError,
    RegistryRateLimitedError,
    RegistryTlsError,
    RegistryUnavailableError,
    UnsafeImageError,
)
from airflow_slurm_images.core.remote import package_file

from . import records


def test_the_table_is_that_of_the_job() -> None:
    codes = re.findall(r"^readonly (E_\w+)=(\d+)$", package_file("job.sh").decode(), re.MULTILINE)
    assert len(codes) == len({code for _, code in codes})
    assert {int(code) for _, code in codes} == set(failures.EXIT_CODES)
    assert len({failure.reason for failure in failures.EXIT_CODES.values()}) == len(codes)
    # Not to be taken for a signal, a shell's own status, or timeout's.
    assert all(64 <= code < 124 for code in failures.EXIT_CODES)


def test_every_exit_of_the_scripts_is_in_the_table() -> None:
    names = set(re.findall(r"^readonly (E_\w+)=", package_file("job.sh").decode(), re.MULTILINE))
    used = set()
    for name in (
        "job.sh",
        "process.sh",
        "squashfs.sh",
        "store.sh",
        "guards.sh",
        "enroot.sh",
        "inspect.sh",
        "login.sh",
        "registry.sh",
        "manifest.sh",
    ):
        used |= set(re.findall(r"\$\{(E_\w+)\}", package_file(name).decode()))
    assert used == names


@pytest.mark.parametrize("code", failures.EXIT_CODES)
def test_every_failure_says_what_to_do(code: int) -> None:
    failure = failures.EXIT_CODES[code]
    assert failure.message
    assert failure.remedy
    assert failures.explain(code, "claim", {}) == failure


IMPORT_LOGS = [
    ("[ERROR] URL https://reg.example/v2/a/manifests/x returned error code: 429", RegistryRateLimitedError, True),
    ("[ERROR] URL https://reg.example/v2/a/manifests/x returned error code: 503", RegistryUnavailableError, True),
    ("curl: (6) Could not resolve host: reg.example", RegistryUnavailableError, True),
    ("curl: (7) Failed to connect to reg.example port 443", RegistryUnavailableError, True),
    (
        "[ERROR] URL https://reg.example/v2/a/manifests/x returned error code: 404 Not Found",
        RegistryNotFoundError,
        False,
    ),
    ("[ERROR] URL https://reg.example/token returned error code: 401 Unauthorized", RegistryAuthError, False),
    ("[ERROR] URL https://reg.example/token returned error code: 403 Forbidden", RegistryAuthError, False),
    ("curl: (35) OpenSSL/3.0.19: error:0A00010B:SSL routines::wrong version number", RegistryTlsError, False),
    ("curl: (35) error:1408F10B:SSL routines:ssl3_get_record:wrong version number", RegistryTlsError, False),
    ("curl: (35) error:0A000410:SSL routines::sslv3 alert handshake failure", RegistryTlsError, False),
    ("curl: (35) gnutls_handshake() failed: An unexpected TLS packet was received.", RegistryTlsError, False),
    ("curl: (35) SSL received a record that exceeded the maximum permissible length.", RegistryTlsError, False),
    ("curl: (35) Recv failure: Connection reset by peer", RegistryUnavailableError, True),
    ("curl: (35) OpenSSL SSL_connect: SSL_ERROR_SYSCALL in connection to reg", RegistryUnavailableError, True),
    ("curl: (35) error:0A000126:SSL routines::unexpected eof while reading", RegistryUnavailableError, True),
    ("curl: (35) TCP connection reset by peer", RegistryUnavailableError, True),
    ("curl: (35) gnutls_handshake() failed: Error in the pull function.", RegistryUnavailableError, True),
    ("curl: (28) SSL connection timeout", RegistryUnavailableError, True),
    ("curl: (60) SSL certificate problem: self-signed certificate", RegistryTlsError, False),
    ("curl: (22) The requested URL returned error: 401", RegistryAuthError, False),
    ("curl: (22) The requested URL returned error: 403 Forbidden", RegistryAuthError, False),
    ("curl: (22) The requested URL returned error: 404", RegistryNotFoundError, False),
    ("curl: (22) The requested URL returned error: 429", RegistryRateLimitedError, True),
    ("curl: (22) The requested URL returned error: 502", RegistryUnavailableError, True),
    ("[INFO] Authenticating with user: ann", RegistryAuthError, False),
    ("mksquashfs: No space left on device", JobFailedError, True),
    ("Disk quota exceeded", JobFailedError, True),
    ("[ERROR] Checksum mismatch for layer", IntegrityError, False),
    ("FATAL ERROR: Could not create destination file: Permission denied", JobFailedError, True),
    ("something nobody saw before", JobFailedError, True),
]


@pytest.mark.parametrize(("line", "error", "retryable"), IMPORT_LOGS, ids=[line[-40:] for line, _, _ in IMPORT_LOGS])
def test_what_enroot_printed_decides_class_and_retry(line: str, error: type[Exception], retryable: bool) -> None:
    raised = failed(78, "import", {"enroot.log": f"[INFO] Querying registry\n{line}\n"})
    assert type(raised) is error
    assert raised.retryable is retryable
    assert raised.remedy


def test_a_registry_without_tls_may_be_one_of_plain_http() -> None:
    line = "curl: (35) OpenSSL/3.0.19: error:0A00010B:SSL routines::wrong version number"
    raised = failed(78, "import", {"enroot.log": f"[INFO] Querying registry\n{line}\n"})
    assert "no TLS connection" in raised.message and "insecure_registries" in (raised.remedy or "")


def test_a_refused_login_at_ngc_names_both_machines() -> None:
    for url in ("https://nvcr.io/proxy_auth", "https://authn.nvidia.com/token"):
        raised = failed(78, "import", {"enroot.log": f"[ERROR] URL {url} returned error code: 401"})
        assert "nvcr.io" in (raised.remedy or "")
        assert "authn.nvidia.com" in (raised.remedy or "")


def test_authentication_succeeded_does_not_prove_the_password() -> None:
    log = "[INFO] Authentication succeeded\n[ERROR] URL https://x/v2/a returned error code: 401\n"
    raised = failed(78, "import", {"enroot.log": log})
    assert "does not prove" in (raised.remedy or "")


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        ("No such file or directory", "no_shell", "no shell at /bin/sh"),
        ("Too many levels of symbolic links", "no_shell", "no shell at /bin/sh"),
        ("Not a directory", "no_shell", "no shell at /bin/sh"),
        ("Argument list too long", "environment_too_large", "environment is too large"),
        ("Exec format error", "architecture_mismatch", "another architecture"),
    ],
)
def test_an_image_that_can_never_be_started_is_told_apart_from_a_broken_node(
    error: str, reason: str, words: str
) -> None:
    raised = failed(83, "inspect", {"inspect.log": f"enroot-switchroot: failed to execute: /bin/sh: {error}\n"})
    assert isinstance(raised, JobFailedError)
    assert (raised.reason, raised.retryable) == (reason, False)
    assert words in raised.message
    assert raised.remedy


def test_missing_user_namespaces_name_the_node_and_both_settings() -> None:
    raised = failed(94, "inspect", {})
    assert "node n1" in raised.message
    assert "user.max_user_namespaces" in (raised.remedy or "")
    assert "unprivileged_userns_clone" in (raised.remedy or "")


def test_a_full_disk_in_gnu_parallels_words_is_a_full_disk() -> None:
    said = "parallel: Error: Cannot append to buffer file in /scratch/tmp.\nparallel: Error: Is the disk full?\n"
    assert (
        failures.explain(78, "import", {"enroot.log": f"[INFO] Extracting image layers...\n{said}"}).reason
        == "no_space"
    )


def test_what_a_tool_printed_in_another_phase_decides_nothing() -> None:
    logs = {"enroot.log": "No space left on device", "slurm.out": "returned error code: 429"}
    assert failures.explain(71, "verify", logs).reason == "tampered"
    assert failures.explain(80, "check", logs).reason == "broken_squashfs"


# --- the error


def failed(
    status: int, phase: str, logs: dict[str, str], *, state: str | None = None
) -> JobFailedError | IntegrityError | RegistryAuthError:
    record = records.failed_completion(status, phase)
    verdict = Verdict("failed", state, exit_code=status, message=f"the job ended with exit status {status}")
    error = reports.job_error(records.handle(), verdict, record, logs)
    assert isinstance(error, Exception)
    return error  # type: ignore[return-value]


def test_an_error_tells_phase_state_code_output_and_place() -> None:
    output = "\n".join(f"line {number}" for number in range(50)) + "\nAuthorization: Bearer abc123def\n"
    error = failed(78, "import", {"slurm.out": output}, state="FAILED")
    for words in ("phase import", "state FAILED", "exit code 78", "node n1", "line 49", records.RUN_DIRECTORY):
        assert words in error.message
    assert "line 30" not in error.message
    assert "abc123def" not in error.message


def test_an_unsafe_image_and_a_changed_file_have_their_own_classes() -> None:
    assert isinstance(failed(82, "examine", {}), UnsafeImageError)
    assert isinstance(failed(71, "verify", {}), IntegrityError)
    assert isinstance(failed(81, "hash", {}), IntegrityError)


@pytest.mark.parametrize(
    ("state", "words"), [("TIMEOUT", "time_limit"), ("OUT_OF_MEMORY", "memory"), ("CANCELLED", "CANCELLED")]
)
def test_slurms_reason_beats_the_signal_it_sent(state: str, words: str) -> None:
    error = failed(143, "import", {}, state=state)
    assert words in str(error)
    assert "signal 15" not in error.message


def test_a_signal_without_a_reason_is_named() -> None:
    error = failed(143, "import", {}, state="RUNNING")
    assert "signal 15" in error.message
    assert error.retryable


def test_a_job_without_a_record_is_explained_by_its_exit_code_or_state() -> None:
    verdict = Verdict("failed", "FAILED", exit_code=72, message="FAILED")
    assert reports.job_error(records.handle(), verdict, None, {}).details["reason"] == "superseded"
    verdict = Verdict("failed", "OUT_OF_MEMORY", exit_code=72, message="killed", remedy="raise `memory`")
    error = reports.job_error(records.handle(), verdict, None, {})
    assert error.details["reason"] == "out_of_memory"
    assert "memory" in (error.remedy or "")


@pytest.mark.parametrize(
    ("kind", "error"),
    [("lost", LostContactError), ("unknown", JobStateUnknownError), ("stuck", JobFailedError)],
)
def test_doubt_has_its_own_classes(kind: str, error: type[Exception]) -> None:
    verdict = Verdict(kind, "PENDING", "BadConstraints", message="so it is", retryable=False)  # type: ignore[arg-type]
    raised = reports.job_error(records.handle(), verdict, None, {})
    assert type(raised) is error
    assert "so it is" in raised.message
    assert records.RUN_DIRECTORY in raised.message
    assert raised.retryable is isinstance(raised, ClusterUnavailableError)


def test_the_failure_record_is_plain_json_with_all_its_keys() -> None:
    record = reports.failure_record(failed(78, "import", {"enroot.log": "returned error code: 429"}, state="FAILED"))
    assert json.loads(json.dumps(record)) == record
    assert record["job_id"] == 481
    assert record["phase"] == "import"
    assert record["reason"] == "rate_limited"
    assert record["exit_code"] == 78
    assert record["state"] == "FAILED"
    assert record["retryable"] is True
    assert record["log_paths"][0] == f"{records.RUN_DIRECTORY}/slurm.out"


@pytest.mark.parametrize("end", ["No space left on device", "Disk quota exceeded"])
@pytest.mark.parametrize(
    "start", ["enroot-nsenter: failed to create user namespace", "unshare failed", "unshare: unshare failed"]
)
def test_a_limit_on_namespaces_is_not_a_full_disk(start: str, end: str) -> None:
    assert failures.explain(78, "import", {"enroot.log": f"{start}: {end}"}).reason == "no_user_namespaces"
    assert failures.explain(70, "space", {"slurm.out": f"{start}: {end}"}).reason == "no_user_namespaces"


FULL = {"No space left on device": "no_space", "Disk quota exceeded": "quota"}
OWN = [(89, "space"), (70, "claim"), (70, "space"), (70, "check"), (70, "examine"), (88, "hash"), (88, "store")]


@pytest.mark.parametrize("line", FULL)
@pytest.mark.parametrize(("status", "phase"), OWN)
def test_a_full_disk_or_quota_is_told_in_every_phase_of_the_jobs_own(status: int, phase: str, line: str) -> None:
    output = f"asi: phase verify (0 s)\nasi: phase {phase} (2 s)\nmkdir: /scratch/x: {line}\n"
    ended = f"asi: ended in phase {phase} with status {status} after 3 s\n"
    for known, text in ((phase, output), ("", output + ended), ("", output)):
        failure = failures.explain(status, known, {"slurm.out": text})
        assert (failure.reason, failure.retryable) == (FULL[line], True)


@pytest.mark.parametrize("line", FULL)
@pytest.mark.parametrize(("status", "phase"), [(70, "store"), (88, "store"), (83, "inspect"), (85, "inspect")])
def test_what_an_image_printed_is_no_full_disk(status: int, phase: str, line: str) -> None:
    image = f"{line}\nasi: phase store (3 s)\n{line}\nasi: ended in phase store with status 70 after 3 s\n"
    later = "" if phase == "inspect" else "asi: phase store (4 s)\nmv: cannot move\n"
    logs = {"slurm.out": f"asi: phase inspect (2 s)\n{image}{later}", "inspect.log": image}
    ended = f"asi: ended in phase {phase} with status {status} after 5 s\n"
    for known, end in ((phase, ""), ("", ended)):
        found = failures.explain(status, known, {**logs, "slurm.out": logs["slurm.out"] + end})
        assert found == failures.EXIT_CODES[status]
