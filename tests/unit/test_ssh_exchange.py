# SPDX-License-Identifier: Apache-2.0
"""Connecting and one command over a channel, with fake clients: what is tried again, and what never is."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import paramiko
import pytest

from airflow_slurm_images.core.errors import ClusterUnavailableError
from airflow_slurm_images.hooks import ssh_exchange
from airflow_slurm_images.hooks.ssh_exchange import CROWD_ATTEMPTS, ClusterAccessError

WHERE = "ann@login.example:22"


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between tries, not slept."""
    taken: list[float] = []
    monkeypatch.setattr("time.sleep", taken.append)
    return taken


def opener(*answers: Exception | None) -> tuple[Callable[[], Any], list[int]]:
    """A function that fails as told and then gives a client."""
    tries: list[int] = []
    rest = list(answers)

    def open_client() -> Any:
        tries.append(1)
        answer = rest.pop(0) if rest else None
        if answer is not None:
            raise answer
        return "client"

    return open_client, tries


BANNER = paramiko.SSHException("Error reading SSH protocol banner")
PASSING = [
    BANNER,
    ConnectionRefusedError(111, "Connection refused"),
    ConnectionResetError(104, "Connection reset by peer"),
    TimeoutError("timed out"),
    EOFError(),
    socket.gaierror(-3, "Temporary failure in name resolution"),
    paramiko.ssh_exception.NoValidConnectionsError({("10.0.0.1", 22): OSError("no route")}),
    paramiko.AuthenticationException("Authentication failed: transport shut down or saw EOF"),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_two_failures_that_pass_are_no_failure(error: Exception, naps: list[float]) -> None:
    open_client, tries = opener(error, error)
    client: object = ssh_exchange.connect(open_client, WHERE)
    assert client == "client"
    assert len(tries) == 3
    assert len(naps) == 2
    assert all(0 <= nap <= 10 for nap in naps)


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_failure_that_stays_is_unavailable_and_names_the_place(error: Exception) -> None:
    open_client, tries = opener(*[error] * 20)
    with pytest.raises(ClusterUnavailableError) as caught:
        ssh_exchange.connect(open_client, WHERE, attempts=3)
    assert len(tries) == (3 + CROWD_ATTEMPTS if "MaxStartups" in str(caught.value) else 3)
    assert caught.value.retryable
    assert WHERE in caught.value.message
    assert caught.value.__cause__ is error


def test_a_server_that_says_nothing_for_long_is_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    tries: list[int] = []

    def silent() -> Any:
        tries.append(1)
        now[0] += 30
        raise BANNER

    with pytest.raises(ClusterUnavailableError):
        ssh_exchange.connect(silent, WHERE, attempts=4)
    assert len(tries) == 4


def test_one_attempt_stays_one(naps: list[float]) -> None:
    """Of a kill, for which Airflow gives seconds."""
    open_client, tries = opener(*[BANNER] * 9)
    with pytest.raises(ClusterUnavailableError):
        ssh_exchange.connect(open_client, WHERE, attempts=1)
    assert (len(tries), naps) == (1, [])


@pytest.mark.parametrize("error", [BANNER, ConnectionResetError(104, "reset"), EOFError()])
def test_too_many_connections_are_hinted_at(error: Exception) -> None:
    with pytest.raises(ClusterUnavailableError) as caught:
        ssh_exchange.connect(opener(*[error] * 9)[0], WHERE, attempts=1)
    assert "MaxStartups" in (caught.value.remedy or "")
    assert "pool" in (caught.value.remedy or "")


KEY = paramiko.RSAKey.generate(1024)
PERMANENT = [
    (paramiko.AuthenticationException("Authentication failed."), "refused the login"),
    (paramiko.BadHostKeyException("login.example", KEY, KEY), "not the one that is known"),
    (paramiko.SSHException("Server 'login.example' not found in known_hosts"), "not known"),
    (paramiko.PasswordRequiredException("Private key file is encrypted"), "refused the login"),
    (
        paramiko.BadAuthenticationType("Bad authentication type", ["keyboard-interactive", "gssapi"]),
        "keyboard-interactive",
    ),
    (FileNotFoundError(2, "No such file or directory", "/keys/id"), "/keys/id"),
    (PermissionError(13, "Permission denied", "/keys/id"), "'/keys/id'"),
    (paramiko.SSHException("not a valid OPENSSH private key file"), "not a valid OPENSSH private key"),
    (paramiko.SSHException("No authentication methods available"), "No authentication methods"),
    (paramiko.ssh_exception.IncompatiblePeer("no acceptable kex algorithm"), "no acceptable kex"),
]


@pytest.mark.parametrize(("error", "words"), PERMANENT, ids=[words for _, words in PERMANENT])
def test_what_a_retry_cannot_help_is_tried_once(error: Exception, words: str) -> None:
    open_client, tries = opener(*[error] * 9)
    with pytest.raises(ClusterAccessError) as caught:
        ssh_exchange.connect(open_client, WHERE)
    assert len(tries) == 1
    assert not caught.value.retryable
    assert words in str(caught.value)
    assert caught.value.remedy


def test_an_error_of_ours_is_not_made_into_one_of_the_network() -> None:
    open_client, tries = opener(KeyError("bug"))
    with pytest.raises(KeyError):
        ssh_exchange.connect(open_client, WHERE)
    assert len(tries) == 1


# --- one command


class FakeChannel:
    """Gives its chunks one by one; None is a pause, an exception is raised; then the end."""

    def __init__(self, *chunks: bytes | Exception | None) -> None:
        self.chunks = list(chunks)
        self.sent = b""
        self.command = ""
        self.closed = self.shut = False
        self.stderr = 3

    def __enter__(self) -> FakeChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def settimeout(self, _: float) -> None: ...

    def exec_command(self, command: str) -> None:
        self.command = command

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def shutdown_write(self) -> None:
        self.shut = True

    def recv_stderr_ready(self) -> bool:
        return self.stderr > 0

    def recv_stderr(self, _: int) -> bytes:
        self.stderr -= 1
        return b"noise"

    def recv(self, _: int) -> bytes:
        chunk = self.chunks.pop(0) if self.chunks else b""
        if chunk is None:
            raise TimeoutError
        if isinstance(chunk, Exception):
            raise chunk
        return chunk


class FakeClient:
    """A client with one channel, or without a connection."""

    def __init__(self, channel: FakeChannel | Exception | None) -> None:
        self.channel = channel

    def get_transport(self) -> Any:
        return None if self.channel is None else self

    def open_session(self, timeout: float) -> Any:
        if isinstance(self.channel, Exception):
            raise self.channel
        return self.channel


def exchange(channel: FakeChannel | Exception | None, timeout: float = 5) -> bytes:
    client: Any = FakeClient(channel)
    return ssh_exchange.exchange(client, "/bin/bash -p -s", b"script", timeout, WHERE)


def test_standard_input_is_sent_and_closed_and_the_answer_read_to_its_end() -> None:
    channel = FakeChannel(b"one", None, None, b"two")
    assert exchange(channel) == b"onetwo"
    assert (channel.command, channel.sent, channel.shut, channel.closed) == ("/bin/bash -p -s", b"script", True, True)
    assert channel.stderr == 0


@pytest.mark.parametrize(
    "channel",
    [
        None,
        paramiko.SSHException("SSH session not active"),
        FakeChannel(b"half", ConnectionResetError(104, "reset")),
        FakeChannel(b"half", EOFError()),
    ],
)
def test_a_broken_connection_is_unavailable(channel: FakeChannel | Exception | None) -> None:
    with pytest.raises(ClusterUnavailableError) as caught:
        exchange(channel)
    assert caught.value.retryable


def test_a_command_that_never_ends_is_given_up() -> None:
    channel = FakeChannel(*[None] * 10)
    with pytest.raises(ClusterUnavailableError, match="did not answer in time"):
        exchange(channel, timeout=0)
    assert channel.closed


def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_exchange, "ANSWER_LIMIT", 1000)
    with pytest.raises(ClusterUnavailableError, match="larger than"):
        exchange(FakeChannel(*[b"x" * 600] * 10))
