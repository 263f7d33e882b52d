# SPDX-License-Identifier: Apache-2.0
"""From what a failed job left behind to the one error that says what to do.

``EXIT_CODES`` is the table for ``cluster/job.sh``'s exit codes (a test compares the two). Enroot's own failures
all end with status 1, so its output is read for the few sentences that tell them apart (``NODE_PATTERNS``,
``REGISTRY_PATTERNS``); curl's statuses 6 and 7 speak for themselves. Where a byte of the image runs, its output is read
for nothing that concerns the node: there the job looks itself (``explain_disk`` in ``cluster/store.sh``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_slurm_images.core.errors import (
    IntegrityError,
    JobFailedError,
    RegistryAuthError,
    RegistryNotFoundError,
    RegistryRateLimitedError,
    RegistryResponseError,
    RegistryTlsError,
    RegistryUnavailableError,
    SlurmImagesError,
    UnsafeImageError,
)
from airflow_slurm_images.core.logtext import clean


@dataclass(frozen=True)
class Failure:
    """One way a job can fail: machine-readable word, sentence, remedy, error class, can a retry help."""

    reason: str
    message: str
    remedy: str
    error: type[SlurmImagesError] = JobFailedError
    retryable: bool = False


_RETRY = "Retry the task; the run directory keeps the logs."
_CREDENTIALS_HINT = (
    "Check login and password of the registry connection (or the cluster user's own Enroot credentials) and the "
    "right to pull this repository. Enroot's 'Authentication succeeded' does not prove the password was right."
)

EXIT_CODES: Mapping[int, Failure] = {
    70: Failure("internal", "the job script failed unexpectedly", _RETRY, retryable=True),
    71: Failure(
        "tampered",
        "a staged file was changed after it was written",
        "Find out who can write to the run directory; then clear the task.",
        IntegrityError,
    ),
    72: Failure("superseded", "another job already runs this attempt", "Nothing: the other job goes on."),
    73: Failure(
        "no_space",
        "not enough free space",
        "Free space in the named directory, point scratch_root elsewhere, or lower min_free.",
        retryable=True,
    ),
    74: Failure(
        "tool_missing",
        "a tool the job needs is not there",
        "Install it on the compute nodes, or name its directory in enroot_bin or path_prepend.",
    ),
    75: Failure(
        "enroot_too_old",
        "the node's Enroot is too old for this repository",
        "Use Enroot 4, or a repository with a namespace.",
    ),
    76: Failure(
        "source_not_visible",
        "the file is not visible on the compute node",
        "Put it on a file system that the compute nodes mount, or choose another partition.",
    ),
    77: Failure(
        "source_refused",
        "the path does not name a readable regular file",
        "Give the absolute path of the .sqsh file itself, readable for the cluster account.",
    ),
    78: Failure("import_failed", "Enroot could not import the image", _RETRY, retryable=True),
    79: Failure(
        "architecture_mismatch",
        "the image is for another architecture",
        "Pin the digest of the image (or platform) for this architecture, or pass the right arch.",
    ),
    80: Failure(
        "broken_squashfs",
        "the SquashFS file is not whole",
        "Import or copy the file again; it was not published.",
        IntegrityError,
    ),
    81: Failure(
        "changed_during_inspection",
        "the file changed during inspection",
        "Inspect it again when nobody writes to it.",
        IntegrityError,
    ),
    82: Failure(
        "unsafe_image",
        "the image was not started: it would act on the host",
        "Use kind 'generic', which reads the file without starting it, or repair the image.",
        UnsafeImageError,
    ),
    83: Failure("start_failed", "the image could not be started", _RETRY, retryable=True),
    84: Failure("no_python", "the image has no usable Python", "Use kind 'generic' for images without Python."),
    85: Failure(
        "inspection_failed",
        "the inspector could not make the record",
        "Read its message; kind 'generic' works for any image.",
    ),
    86: Failure(
        "inspection_timeout",
        "the inspection took too long",
        "Raise inspect_timeout in the profile, if the image is to be trusted.",
    ),
    87: Failure(
        "store_corrupt",
        "the store holds a file whose bytes are not its name",
        "Nothing was overwritten: look at the named file, move it away by hand, then import again.",
        IntegrityError,
    ),
    88: Failure("store_write", "the store could not be written", "Check space, quota and rights.", retryable=True),
    89: Failure("no_scratch", "no scratch directory could be made", "Set scratch_root in the profile.", retryable=True),
    90: Failure(
        "manifest_mismatch",
        "the registry serves other bytes than the pinned digest names",
        "Do not use them: a proxy, mirror or damaged registry changed the image. Only for a registry that rewrites "
        "manifests on purpose, set verify_manifest to false in the profile.",
        IntegrityError,
    ),
    91: Failure(
        "no_image",
        "the digest names no container image",
        "Pin the digest of the image itself, not of its chart, signature or attestation; an image in Docker's "
        "schema 1 has to be pushed again.",
        RegistryResponseError,
    ),
    92: Failure(
        "login_used_up",
        "the job was started again, and the login staged for it went with its first run",
        "Retry the task: that stages the login again. (A job that Slurm starts over cannot keep it.)",
        retryable=True,
    ),
    93: Failure(
        "quota",
        "disk quota exceeded",
        "Free space below the named directory or ask for a larger quota.",
        retryable=True,
    ),
    94: Failure(
        "no_user_namespaces",
        "user namespaces are unavailable on the node",
        "Ask for user.max_user_namespaces > 0 and kernel.unprivileged_userns_clone = 1 on the nodes (importing "
        "may work without), or use 'exclude' to avoid this node.",
    ),
    95: Failure(
        "unsupported_squashfs",
        "the node's squashfs-tools cannot handle such a SquashFS file",
        "Install squashfs-tools that can on the nodes, use 'exclude' to avoid this node, or have the file made "
        "otherwise: by other squash_options in the profile, or with mksquashfs 4 where it is of an older version.",
    ),
    96: Failure(
        "source_unreadable",
        "the SquashFS file could not be read to the end, so nothing is known about it",
        "Retry the task; if that does not help, ask for the file system and the memory of the named node.",
        retryable=True,
    ),
}
"""Exit code of ``job.sh`` -> what it means."""


@dataclass(frozen=True)
class Pattern:
    """A sentence in a tool's output that tells more than its exit status."""

    expression: re.Pattern[str]
    failure: Failure


def _pattern(expression: str, failure: Failure) -> Pattern:
    return Pattern(re.compile(expression, re.IGNORECASE), failure)


_NO_SPACE = Failure("no_space", "no space left on device", EXIT_CODES[73].remedy, retryable=True)
_NGC = Failure(
    "registry_auth",
    "NVIDIA's registry refused the login",
    "NGC needs two credentials lines, for nvcr.io and for authn.nvidia.com, with login $oauthtoken.",
    RegistryAuthError,
)
_AUTH = Failure("registry_auth", "the registry refused the login", _CREDENTIALS_HINT, RegistryAuthError)

DISK_PATTERNS: tuple[Pattern, ...] = (
    # Before the disk: a limit on namespaces is 'No space left on device' to the kernel.
    _pattern(
        r"failed to create user namespace|\bunshare\b.*(Operation not permitted|No space left|quota exceeded)",
        EXIT_CODES[94],
    ),
    # GNU parallel, by which Enroot downloads and unpacks layers, has its own words.
    _pattern(r"No space left on device|parallel: Error: Is the disk full\?", _NO_SPACE),
    _pattern(r"Disk quota exceeded", EXIT_CODES[93]),
)
"""What the kernel says when the job cannot write. First match decides; the more specific stand first."""

NODE_PATTERNS: tuple[Pattern, ...] = (
    *DISK_PATTERNS,
    _pattern(r"Could not create destination file|Stale file handle", EXIT_CODES[88]),
)
"""What the node is to blame for, where the tools write to the store or for it."""

IMAGE_PATTERNS: tuple[Pattern, ...] = (
    _pattern(
        r"failed to execute: /\S*sh: (No such file|Not a directory|Too many levels)",
        Failure(
            "no_shell",
            "the image has no shell at /bin/sh (or not the loader that it needs), so it cannot be started",
            "Use kind 'generic', which reads the image without starting it, or give the image a /bin/sh.",
        ),
    ),
    _pattern(
        r"failed to execute: /\S*sh: Argument list too long",
        Failure(
            "environment_too_large",
            "the image's environment is too large for any program to be started with it",
            "Make its variables shorter (one may have 128 KiB), or use kind 'generic', which does not start the image.",
        ),
    ),
    _pattern(r"failed to execute: /\S*sh: Exec format error", EXIT_CODES[79]),
)
"""What may be believed of the output of a start: it concerns the image alone."""

_CUT_OFF = (
    "reset|timed? ?out|syscall|eof|end of file|closed|broken pipe|terminated|pull function|"
    "unknown ssl|not connected|temporarily"
)
"""Handshakes that the network or a busy server ended, in the words of OpenSSL, GnuTLS and NSS."""

REGISTRY_PATTERNS: tuple[Pattern, ...] = (
    _pattern(r"(nvcr\.io|authn\.nvidia\.com|proxy_auth)\S* returned error( code)?: 40[13]", _NGC),
    _pattern(r"returned error( code)?: 40[13]|token service \S+ refused the login", _AUTH),
    _pattern(
        r"returned error( code)?: 404",
        Failure(
            "registry_not_found",
            "the registry has no such repository or digest",
            "Check repository and digest; an old registry needs the image as Docker schema 2.",
            RegistryNotFoundError,
        ),
    ),
    _pattern(
        r"returned error( code)?: 429",
        Failure(
            "rate_limited",
            "the registry limits the rate",
            "Log in, or retry later.",
            RegistryRateLimitedError,
        ),
    ),
    _pattern(
        rf"curl: \(35\)(?!.*({_CUT_OFF}))",
        Failure(
            "registry_tls",
            "no TLS connection with the registry",
            "If it speaks plain HTTP, name it in the profile's insecure_registries, or set insecure in its connection; "
            "else look for a proxy in between, and for TLS versions that both sides know.",
            RegistryTlsError,
        ),
    ),
    _pattern(
        r"returned error( code)?: 5\d\d|curl: \((5|6|7|16|18|28|35|52|55|56|92)\)|Could not resolve host",
        Failure(
            "registry_unavailable",
            "the registry could not be reached from the compute node",
            "Check registry host, proxy and network of the compute nodes; retry later.",
            RegistryUnavailableError,
        ),
    ),
    _pattern(
        r"curl: \((51|53|54|58|59|60|77|83)\)",
        Failure(
            "registry_tls",
            "the registry's certificate was not accepted",
            "Name the CA bundle in the profile's environment (CURL_CA_BUNDLE), or correct the host name.",
            RegistryTlsError,
        ),
    ),
    _pattern(
        r"Checksum mismatch|checksum did NOT match|digest mismatch",
        Failure(
            "layer_mismatch",
            "a layer's bytes are not its digest",
            "The registry serves wrong bytes.",
            IntegrityError,
        ),
    ),
)
"""What a registry or its manifest is to blame for; asked only where no byte of the image runs."""

_LAST_LINE_LOGIN = re.compile(r"\[INFO\] (Authenticating with user|Using credentials from file)")
_PATTERNS: Mapping[str, tuple[Pattern, ...]] = {
    "manifest": NODE_PATTERNS + REGISTRY_PATTERNS,
    "import": NODE_PATTERNS + REGISTRY_PATTERNS,
    "hash": NODE_PATTERNS,
    "store": NODE_PATTERNS,
    "inspect": IMAGE_PATTERNS,
}
"""Phase -> what its output is read for; in every other one it is the disk."""
_TOOL_LOGS: Mapping[str, str] = {"import": "enroot.log", "inspect": "inspect.log"}
_REFINED = frozenset({"import_failed", "start_failed", "store_write", "internal", "no_scratch"})
_ENDED = re.compile(r"^asi: ended in phase (\w+) with status \d+ after \d+ s\s*\Z", re.MULTILINE)
_INSPECTOR = re.compile(r"asi-inspect: error: [a-z_]+: (.+)")


def explain(exit_status: int, phase: str, logs: Mapping[str, str]) -> Failure:
    """The failure behind an exit status of ``job.sh``, refined by what the tools printed.

    ``logs`` maps file name to the end of each log; ``phase`` is empty where there is no record. A login that a registry
    refuses leaves no error line in Enroot's output: it just ends after saying whom it authenticates.
    """
    failure = EXIT_CODES.get(exit_status) or _signal_failure(exit_status)
    said = _INSPECTOR.findall(logs.get("inspect.log", ""))
    if said and failure.reason in {"no_python", "inspection_failed"}:
        return replace(failure, message=f"{failure.message}: {clean(said[-1])[:500]}")
    if failure.reason not in _REFINED:
        return failure
    output = logs.get("slurm.out", "")
    ended = _ENDED.search(output)
    phase = phase or (ended[1] if ended else "")
    text = logs.get(_TOOL_LOGS.get(phase, ""), "") + "\n" + _output_of(phase, output)
    for pattern in _PATTERNS.get(phase, DISK_PATTERNS):
        if pattern.expression.search(text):
            return pattern.failure
    lines = [line for line in logs.get("enroot.log", "").splitlines() if line.strip()]
    if phase == "import" and lines and _LAST_LINE_LOGIN.search(lines[-1]):
        return _AUTH
    return failure


def _output_of(phase: str, output: str) -> str:
    """What the job said in its last phase: before that an image may have spoken, also in words like the job's own."""
    return output.rpartition(f"\nasi: phase {phase} (")[2]


def _signal_failure(exit_status: int) -> Failure:
    if exit_status > 128:
        return Failure("signalled", f"the job was ended by signal {exit_status - 128}", _RETRY, retryable=True)
    return Failure("job_failed", f"the job ended with exit status {exit_status}", _RETRY, retryable=True)
