# SPDX-License-Identifier: Apache-2.0
"""One command over an SSH connection: bytes in, bytes out, within a time and a size, and errors told apart.

Connecting is the SSH provider's business; it retries every failure alike, which locks accounts after a wrong
key. Here only what can pass by itself is retried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import paramiko
from tenacity import (
    RetryCallState,
    Retrying,
    before_sleep_log,
    retry_if_exception,
    wait_random_exponential,
)

from airflow_slurm_images.core.errors import ClusterUnavailableError

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer; more means that something else than our script is talking."""

CROWD_ATTEMPTS = 4
"""Further tries at a door too narrow for all who come at once (sshd's MaxStartups): each try is one of chance."""
CROWD_SECONDS = 60
"""No such try is begun later: a server that says nothing at all looks the same, and costs a timeout each time."""

_log = logging.getLogger(__name__)

_PERMANENT = (
    paramiko.AuthenticationException,
    paramiko.BadHostKeyException,
    paramiko.PasswordRequiredException,
)


class ClusterAccessError(ClusterUnavailableError):
    """The login node refused us (login, host key): trying again without a change cannot help."""

    retryable = False


def unusable_connection(conn_id: str, err: Exception) -> ClusterAccessError:
    """The error of a connection whose fields the SSH provider cannot read."""
    return ClusterAccessError(
        f"The connection {conn_id!r} cannot be used: {' '.join(str(err).split())[:300] or type(err).__name__}",
        remedy="Check its fields: host is the login node; 'host_key' is the last two words of a line of ssh-keyscan "
        "(ssh-ed25519 AAAA..., no host name before them); 'private_key' is a whole key in OpenSSH's or PEM format; "
        "port and timeouts are numbers.",
    )


def connect(open_client: Callable[[], paramiko.SSHClient], where: str, attempts: int = 4) -> paramiko.SSHClient:
    """Open a connection, again after errors that pass (refused, reset, no banner), never after those that do not.

    Where the server drops connections because too many come at once, it is tried more often; but for one attempt, which
    stays one. Raises ClusterAccessError or ClusterUnavailableError, which name ``where`` and the remedy.
    """
    retrying = Retrying(
        retry=retry_if_exception(_may_pass),
        stop=lambda state: state.attempt_number >= attempts + _more(state, attempts),
        wait=wait_random_exponential(multiplier=1, max=10),
        before_sleep=before_sleep_log(_log, logging.WARNING),
        reraise=True,
    )
    try:
        return retrying(open_client)
    except Exception as err:
        raise explain(err, where) from err


def _more(state: RetryCallState, attempts: int) -> int:
    err = state.outcome.exception() if state.outcome else None
    in_time = attempts > 1 and (state.seconds_since_start or 0) < CROWD_SECONDS
    return CROWD_ATTEMPTS if in_time and err is not None and _crowded(err) else 0


def _may_pass(err: BaseException) -> bool:
    if _dropped(err):
        return True
    if isinstance(err, _PERMANENT) or "not found in known_hosts" in str(err) or _unusable(err):
        return False
    return isinstance(err, (paramiko.SSHException, OSError, EOFError))


def _dropped(err: BaseException) -> bool:
    """Whether the connection ended during the login: paramiko calls that a failed authentication too."""
    return isinstance(err, paramiko.AuthenticationException) and "saw EOF" in str(err)


def _crowded(err: BaseException) -> bool:
    """Whether it looks like sshd's MaxStartups: dropped before or during the login."""
    return "banner" in str(err).lower() or _dropped(err) or isinstance(err, ConnectionResetError | EOFError)


def _unusable(err: BaseException) -> str | None:
    """What has to be corrected on our side, where it is no matter of the network."""
    text = str(err)
    if isinstance(err, paramiko.AuthenticationException):
        return None
    if isinstance(err, paramiko.ssh_exception.IncompatiblePeer) or "no acceptable" in text:
        return "It and this client have no key exchange, cipher or key type in common; update the older of the two."
    if isinstance(err, (FileNotFoundError, PermissionError)) and err.filename:
        return "The key file has to exist, readable for Airflow's account, on each worker and triggerer."
    if "private key" in text.lower() or "No authentication methods available" in text or "unpack requires" in text:
        return "Name a private key (key_file or private_key) that fits the account, in OpenSSH's or PEM format."
    return None


def explain(err: Exception, where: str) -> ClusterUnavailableError:
    """The error of a failed connection in our words."""
    if isinstance(err, paramiko.BadAuthenticationType):
        offered = ", ".join(err.allowed_types) or "none"
        return ClusterAccessError(
            f"The login node {where} accepts none of our ways to log in; it offers: {offered}",
            remedy="A key, or a gateway, usable without a person is needed: keyboard-interactive (one-time codes, "
            "passwords typed by hand) cannot be answered by a scheduler.",
        )
    if isinstance(err, paramiko.BadHostKeyException):
        return ClusterAccessError(
            f"The host key of {where} is not the one that is known",
            remedy="Find out why it changed; then correct 'host_key' in the connection or known_hosts.",
        )
    if "not found in known_hosts" in str(err):
        return ClusterAccessError(
            f"The host key of {where} is not known",
            remedy="Put the server's public key into the connection's extra as 'host_key', or into known_hosts.",
        )
    if remedy := _unusable(err):
        return ClusterAccessError(f"The login to {where} cannot be tried: {err}", remedy=remedy)
    if isinstance(err, paramiko.AuthenticationException) and "timeout" in str(err).lower():
        return ClusterUnavailableError(
            f"The login node {where} did not finish the login in time: it is slow, or asked something after the key "
            "(keyboard-interactive)",
            remedy="If it wants a second factor, a key or a gateway usable without a person is needed; else try again.",
        )
    if isinstance(err, paramiko.AuthenticationException) and not _dropped(err):
        return ClusterAccessError(
            f"The login node {where} refused the login: {err}",
            remedy="Check user, key file and passphrase of the connection; retrying would only lock the account.",
        )
    if isinstance(err, (paramiko.SSHException, OSError, EOFError)):
        hint = ""
        if _crowded(err):
            hint = " Many connections at once run into sshd's MaxStartups: use deferrable=True or an Airflow pool."
        return ClusterUnavailableError(
            f"No connection to the login node {where}: {err or type(err).__name__}",
            remedy="Check host, port and network; the task may be retried." + hint,
        )
    raise err


def exchange(client: paramiko.SSHClient, command: str, stdin: bytes, timeout: float, where: str) -> bytes:
    """Run ``command``, send ``stdin``, return its standard output; standard error is read and dropped.

    The exit status is not used: a dropped connection has none, and some libraries call that zero.
    Raises ClusterUnavailableError when ``timeout`` seconds or :data:`ANSWER_LIMIT` are exceeded.
    """
    deadline = time.monotonic() + timeout
    try:
        transport = client.get_transport()
        if transport is None:
            raise EOFError("the connection is closed")
        channel = transport.open_session(timeout=timeout)
        with channel:
            channel.settimeout(timeout)
            channel.exec_command(command)
            channel.sendall(stdin)
            channel.shutdown_write()
            return _read_all(channel, deadline, where)
    except (paramiko.SSHException, OSError, EOFError) as err:
        raise explain(err, where) from err


def _read_all(channel: paramiko.Channel, deadline: float, where: str) -> bytes:
    answer = bytearray()
    while True:
        while channel.recv_stderr_ready():
            channel.recv_stderr(65536)
        left = deadline - time.monotonic()
        if left <= 0:
            raise ClusterUnavailableError(
                f"The login node {where} did not answer in time",
                remedy="Look at its load; the task may be retried.",
            )
        channel.settimeout(min(left, 1.0))
        try:
            chunk = channel.recv(65536)
        except TimeoutError:
            continue
        if not chunk:
            return bytes(answer)
        answer += chunk
        if len(answer) > ANSWER_LIMIT:
            raise ClusterUnavailableError(f"The answer of the login node {where} is larger than {ANSWER_LIMIT} bytes")
