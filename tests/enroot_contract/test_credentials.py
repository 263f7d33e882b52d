"""Logins: where they come from, what a refusal looks like, where the secret lies meanwhile."""

from __future__ import annotations

import base64
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import LOGIN
from .images import OCI_MANIFEST, Image
from .registries import DockerRegistry, OddRegistry
from .runner import Enroot, wait_until

USER, PASSWORD = LOGIN


def _line(host: str, user: str = USER, password: str = PASSWORD) -> str:
    return f"machine {host} login {user} password {password}"


def _authorization(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def private(odd: OddRegistry, plain_image: Image) -> OddRegistry:
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    odd.basic = LOGIN
    return odd


@pytest.fixture
def held(private: OddRegistry) -> Iterator[OddRegistry]:
    """Lets no blob go before the test is over."""
    over = threading.Event()
    private.before_blob = lambda: over.wait(30)
    yield private
    over.set()


def test_a_login_in_the_credentials_file_is_enough(enroot: Enroot, closed_registry: DockerRegistry) -> None:
    file = enroot.credentials(_line(closed_registry.host))
    result = enroot.import_(closed_registry.uri("team/tool:1"))
    assert result.status == 0, result.err
    assert result.err.splitlines()[1:4] == [
        f"[INFO] Authenticating with user: {USER}",
        f"[INFO] Using credentials from file: {file}",
        "[INFO] Authentication succeeded",
    ]


def test_without_a_login_the_import_ends_without_an_error_line(enroot: Enroot, closed_registry: DockerRegistry) -> None:
    result = enroot.import_(closed_registry.uri("team/tool:1"))
    assert result.status == 1
    assert result.last_error_line == "[INFO] Authenticating with user: <anonymous>"
    assert "[ERROR]" not in result.err


def test_a_wrong_password_ends_without_an_error_line(enroot: Enroot, closed_registry: DockerRegistry) -> None:
    file = enroot.credentials(_line(closed_registry.host, password="wrong"))
    result = enroot.import_(closed_registry.uri("team/tool:1"))
    assert result.status == 1
    assert result.last_error_line == f"[INFO] Using credentials from file: {file}"
    assert "[ERROR]" not in result.err


def test_the_machine_is_named_without_its_port(enroot: Enroot, closed_registry: DockerRegistry) -> None:
    enroot.credentials(_line(closed_registry.address))
    result = enroot.import_(closed_registry.uri("team/tool:1"))
    assert result.last_error_line == "[INFO] Authenticating with user: <anonymous>"


def test_the_user_in_the_uri_chooses_the_line(enroot: Enroot, private: OddRegistry) -> None:
    enroot.credentials(_line("127.0.0.1", "other", "other"), _line("127.0.0.1"))
    uri = f"docker://{USER}@{private.address}#team/tool:1"
    result = enroot.import_(uri)
    assert f"[INFO] Authenticating with user: {USER}\n" in result.err


def test_no_login_is_sent_where_none_is_wanted(enroot: Enroot, odd: OddRegistry, plain_image: Image) -> None:
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    enroot.credentials(_line("127.0.0.1"))
    result = enroot.import_(odd.uri("team/tool:1"))
    assert result.status == 0
    assert not [request for request in odd.asked if "Authorization" in request.headers]


@pytest.mark.parametrize("password", ["plain", 'in"ner', "in#ner", "in'ner", "in$ner", "in\\ner", "a:b@c"])
def test_passwords_that_arrive_as_written(enroot: Enroot, private: OddRegistry, password: str) -> None:
    private.basic = (USER, password)
    enroot.credentials(_line("127.0.0.1", password=password))
    result = enroot.import_(private.uri("team/tool:1"))
    assert result.status == 0, result.err


@pytest.mark.parametrize("password", ['"quoted', "#hashed"])
def test_passwords_that_arrive_mangled(enroot: Enroot, private: OddRegistry, password: str) -> None:
    private.basic = (USER, password)
    enroot.credentials(_line("127.0.0.1", password=password))
    result = enroot.import_(private.uri("team/tool:1"))
    assert result.status != 0
    sent = {request.headers.get("Authorization") for request in private.asked}
    assert _authorization(USER, password) not in sent


@pytest.mark.parametrize(("password", "meant"), [("$(echo from a command | cut -c1-4)", "from"), ("$SECRET", "word")])
def test_a_password_that_begins_with_a_dollar_is_evaluated_by_a_shell(
    enroot: Enroot, private: OddRegistry, password: str, meant: str
) -> None:
    private.basic = (USER, meant)
    enroot.credentials(_line("127.0.0.1", password=password))
    result = enroot.import_(private.uri("team/tool:1"), env={"SECRET": "word"})
    assert result.status == 0, result.err


def test_a_token_service_needs_a_line_of_its_own(enroot: Enroot, odd: OddRegistry, plain_image: Image) -> None:
    """Without it the login looks fine, and the next request is refused."""
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    odd.bearer = "good"
    enroot.credentials(_line("127.0.0.1"))
    result = enroot.import_(odd.uri("team/tool:1"))
    assert result.status == 1
    assert "[INFO] Authentication succeeded\n" in result.err
    assert result.last_error_line.endswith("/v2/team/tool/manifests/1 returned error code: 401 Unauthorized")


def test_with_both_lines_a_token_service_opens_the_registry(
    enroot: Enroot, odd: OddRegistry, plain_image: Image
) -> None:
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    odd.bearer = "good"
    enroot.credentials(_line("127.0.0.1"), _line("localhost"))
    result = enroot.import_(odd.uri("team/tool:1"))
    assert result.status == 0, result.err


def test_a_token_service_that_refuses_is_named(enroot: Enroot, odd: OddRegistry) -> None:
    odd.bearer = "good"
    odd.token_status = 401
    result = enroot.import_(odd.uri("team/tool:1"))
    assert result.status == 1
    assert result.last_error_line.endswith("/token returned error code: 401 Unauthorized")


def _tokens(enroot: Enroot) -> Path:
    return enroot.paths["cache"] / f".tokens.{enroot.account.uid}"


def test_the_token_file_is_gone_after_the_import(enroot: Enroot, private: OddRegistry) -> None:
    enroot.credentials(_line("127.0.0.1"))
    assert enroot.import_(private.uri("team/tool:1")).status == 0
    assert list(_tokens(enroot).iterdir()) == []


def test_the_token_file_holds_the_login_during_the_import_and_survives_a_kill(
    enroot: Enroot, held: OddRegistry
) -> None:
    enroot.credentials(_line("127.0.0.1"))
    process = enroot.popen("import", "-o", str(enroot.base / "image.sqsh"), held.uri("team/tool:1"))
    token = _tokens(enroot) / f"{held.address}.{process.pid}"
    wait_until("a blob is asked for", lambda: held.busy)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert token.read_text() == f'header "Authorization: {_authorization(*LOGIN)}"'
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name.partition(".")[0] for path in enroot.paths["tmp"].iterdir()] == ["enroot"]


def test_ending_the_import_politely_leaves_neither_token_nor_temporary_files(enroot: Enroot, held: OddRegistry) -> None:
    enroot.credentials(_line("127.0.0.1"))
    process = enroot.popen("import", "-o", str(enroot.base / "image.sqsh"), held.uri("team/tool:1"))
    wait_until("a blob is asked for", lambda: held.busy)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode != 0
    wait_until("the token is gone", lambda: not list(_tokens(enroot).iterdir()))
    wait_until("temporary files are gone", lambda: not list(enroot.paths["tmp"].iterdir()))
    assert not (enroot.base / "image.sqsh").exists()
