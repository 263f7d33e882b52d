# SPDX-License-Identifier: Apache-2.0
"""A hook asks Airflow for all it needs while it is made; later it may be in a thread or signal handler."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Connection
from airflow.providers.ssh.hooks.ssh import SSHHook
from airflow.sdk.execution_time import task_runner

from airflow_slurm_images.core.errors import ClusterUnavailableError, InvalidRequestError
from airflow_slurm_images.core.observation import Watch
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.hooks.ssh_exchange import ClusterAccessError
from tests.shell.fake_slurm.login import RUN_KEY, LocalCluster, import_request
from tests.unit import records


def connection(extra: str | None) -> Connection:
    return Connection(conn_id="lab", conn_type="slurm_ssh", host="login.example", login="ann", extra=extra)


class NoSupervisor:
    """Airflow's channel to its supervisor, out of bounds."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"SUPERVISOR_COMMS.{name} was used")


@pytest.fixture
def forbid_airflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From the call on, everything of Airflow's SDK that a hook could ask for fails."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a verb called Airflow's SDK")

    def forbid() -> None:
        monkeypatch.setattr(Connection, "extra_dejson", property(fail))
        monkeypatch.setattr(Connection, "get", classmethod(fail))
        monkeypatch.setattr("airflow.sdk.log.mask_secret", fail)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", NoSupervisor(), raising=False)

    return forbid


class Client:
    """A connection that is open as long as nobody closes it."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_connection_that_lost_an_answer_is_not_used_again_and_a_refusal_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path, monkeypatch)
    hook, client = cluster.hook, Client()
    hook.client = client  # type: ignore[assignment]
    with pytest.raises(InvalidRequestError):
        hook.get_image("nothing")
    assert not client.closed
    cluster.login_environment["PATH"] = "/nowhere"
    cluster.wrapper = ("/usr/bin/head", "-c", "0")
    with pytest.raises(ClusterUnavailableError, match="truncated"):
        hook.list_images()
    assert [client.closed, hook.client] == [True, None]


def test_no_verb_asks_airflow_for_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forbid_airflow: Any
) -> None:
    cluster = LocalCluster(tmp_path, monkeypatch)
    hook = cluster.new_hook(memory="1G")
    forbid_airflow()

    def use() -> None:
        plan, _ = cluster.submit(import_request())
        name, directory = plan.job_name, plan.attempt_directory
        hook.observe([Watch(1, name, plan.token, directory, "2024-05-01T10:00:00", "try1", 0, 100)])
        hook.collect(directory, ended=True)
        hook.cancel(None, name)
        assert hook.list_images() == ()
        assert hook.prepare(RUN_KEY).attempts
        assert hook.profile.memory == "1G"
        hook.test_connection()
        hook.close()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(use).result()


@pytest.mark.parametrize("extra", ["{", "[]", "3", '"text"', "workspace_root=/ws", "NaN"])
def test_an_extra_that_is_no_json_object_is_an_invalid_request(extra: str) -> None:
    with pytest.raises(InvalidRequestError, match="extra of connection 'lab' is not") as caught:
        SlurmHook("lab", connection=connection(extra))
    assert caught.value.remedy


def test_a_bad_profile_is_told_when_it_is_used_each_time_anew() -> None:
    hook = SlurmHook("lab", {"memory": "none"}, connection=connection(json.dumps(records.PROFILE)))
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="memory"):
            hook.prepare("")
    good, text = hook.test_connection()
    assert not good
    assert "memory" in text


@pytest.mark.parametrize("extra", [None, "", "{}"])
def test_without_an_extra_the_tasks_profile_is_all(extra: str | None) -> None:
    assert SlurmHook("lab", {"workspace_root": "/ws"}, connection=connection(extra)).profile.workspace_root == "/ws"


@pytest.mark.parametrize(
    ("extra", "trusting"),
    [('{"workspace_root": "/ws"}', False), (None, False), ('{"no_host_key_check": true}', True)],
)
def test_an_unknown_host_is_trusted_only_where_the_connection_says_so(
    monkeypatch: pytest.MonkeyPatch, extra: str | None, trusting: bool
) -> None:
    """Also with the SSH provider before its release 7.0, whose default was to trust."""
    made = SSHHook.__init__

    def before_7(hook: SSHHook, *args: Any, **options: Any) -> None:
        made(hook, *args, **options)
        hook.no_host_key_check = True

    monkeypatch.setattr(SSHHook, "__init__", before_7)
    assert SlurmHook("lab", connection=connection(extra)).no_host_key_check is trusting


@pytest.mark.parametrize(
    ("host", "extra"),
    [
        ("login.example", {"host_key": "ssh-ed25519 AAAA..."}),
        ("login.example", {"host_key": "login.example ssh-ed25519 AAAA"}),
        ("login.example", {"host_key": "foo"}),
        ("login.example", {"private_key": "garbage"}),
        ("login.example", {"conn_timeout": "soon"}),
        (None, {}),
    ],
)
def test_a_connection_that_ssh_cannot_use_is_told_with_its_remedy(host: str | None, extra: dict[str, str]) -> None:
    given = Connection(conn_id="lab", conn_type="slurm_ssh", host=host, login="ann", extra=json.dumps(extra))
    with pytest.raises(ClusterAccessError, match="The connection 'lab' cannot be used: ") as caught:
        SlurmHook("lab", connection=given)
    assert not caught.value.retryable
    assert "host_key" in (caught.value.remedy or "")
