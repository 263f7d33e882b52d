# SPDX-License-Identifier: Apache-2.0
"""The login of one import as netrc lines, and what is refused because such lines cannot carry it."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

import pytest

from airflow_slurm_images.core.credentials import LONGEST_LINE, netrc
from airflow_slurm_images.core.errors import InvalidRequestError
from tests.cluster.http_servers import RecordingServer, Reply, Request


def test_the_machine_is_written_without_its_port() -> None:
    assert netrc("reg.example:5000", "robot", "secret") == b"machine reg.example login robot password secret\n"


def test_the_token_service_gets_a_line_of_its_own_where_it_is_another_host() -> None:
    lines = netrc("reg.example", "robot", "secret", "auth.example").decode().splitlines()
    assert [line.split()[1] for line in lines] == ["reg.example", "auth.example"]
    assert netrc("reg.example:443", "robot", "secret", "reg.example").count(b"machine") == 1


@pytest.mark.parametrize(
    ("registry", "told", "hosts"),
    [
        ("nvcr.io", "nvcr.io", ["nvcr.io", "authn.nvidia.com"]),
        ("nvcr.io", None, ["nvcr.io", "authn.nvidia.com"]),
        ("registry-1.docker.io", None, ["registry-1.docker.io", "auth.docker.io"]),
        ("registry-1.docker.io", "auth.docker.io", ["registry-1.docker.io", "auth.docker.io"]),
    ],
)
def test_well_known_token_services_are_there_whatever_the_registry_told(
    registry: str, told: str | None, hosts: list[str]
) -> None:
    lines = netrc(registry, "$oauthtoken", "secret", told).decode().splitlines()
    assert [line.split()[1] for line in lines] == hosts
    assert all(line.endswith(" login $oauthtoken password secret") for line in lines)


@pytest.mark.parametrize(
    ("password", "reason"),
    [
        ("", "is empty"),
        ("$(touch /tmp/x)", "white space"),
        ("$SECRET", "begins with '$'"),
        ("$oauthtoken", "begins with '$'"),
        ('"quoted', "begins with '\"'"),
        ("#comment", "begins with '#'"),
        ("two words", "white space"),
        ("tab\there", "white space"),
        ("line\nmachine evil.example login a password b", "white space"),
        ("no\u00a0break", "white space"),
        ("bell\x07", "control"),
        ("nul\x00", "control"),
        ("hidden\u200bspace", "control"),
    ],
)
def test_a_password_that_would_not_arrive_is_refused_without_being_told(password: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match="password") as caught:
        netrc("reg.example", "robot", password)
    text = str(caught.value)
    assert reason in text and "Enroot" in text
    assert not password.strip("$") or password not in text


@pytest.mark.parametrize("login", ["", "$user", "a b", "#a", '"a', "DOMAIN\\user", "a[b", "a*b", "a\nb"])
def test_a_login_that_enroot_would_not_find_again_is_refused(login: str) -> None:
    with pytest.raises(InvalidRequestError, match="login"):
        netrc("reg.example", login, "secret")


@pytest.mark.parametrize("login", ["AWS", "oauth2accesstoken", "_json_key", "robot$team+ci", "a.b-c_d@e.example"])
def test_the_logins_of_the_big_registries_are_carried(login: str) -> None:
    assert f" login {login} password ".encode() in netrc("reg.example", login, "secret")


def test_a_token_longer_than_curl_reads_is_refused() -> None:
    room = LONGEST_LINE - len(netrc("reg.example", "AWS", "x")) + 1
    assert len(netrc("reg.example", "AWS", "t" * room)) == LONGEST_LINE
    with pytest.raises(InvalidRequestError, match="too long"):
        netrc("reg.example", "AWS", "t" * (room + 1))


class Echo(RecordingServer):
    def reply(self, request: Request) -> Reply:
        return Reply()


@pytest.mark.parametrize(
    "password", ["plain", 'in"ner', "in#ner", "in'ner", "in$ner", "in\\ner", "a:b@c", "ü", "t" * 4040]
)
def test_what_is_carried_arrives_through_curl_as_written(tmp_path: Path, password: str) -> None:
    file = tmp_path / "netrc"
    file.write_bytes(netrc("127.0.0.1:5000", "robot", password))
    with Echo() as server:
        environment = {"PATH": os.environ["PATH"], "NO_PROXY": "*"}
        command = ["curl", "-q", "-sS", "--netrc-file", str(file), f"http://{server.address}/"]
        subprocess.run(command, check=True, env=environment)
        (sent,) = server.authorizations
    pair = base64.b64decode(sent.removeprefix("Basic "))
    assert pair == f"robot:{password}".encode()
