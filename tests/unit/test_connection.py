# SPDX-License-Identifier: Apache-2.0
"""The connection's form, and what "test connection" says."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.run_state import RunState
from airflow_slurm_images.core.slurm import QueueAnswer
from airflow_slurm_images.hooks import connection_form, connection_report

FIELDS = connection_form.connection_fields()


@pytest.mark.parametrize("name", ClusterProfile.model_fields)
def test_every_profile_field_is_in_the_form_with_its_description(name: str) -> None:
    assert FIELDS[name]["description"] == ClusterProfile.model_fields[name].description
    assert len(FIELDS[name]["description"]) > 20
    assert FIELDS[name]["label"]
    assert "null" in FIELDS[name]["schema"]["type"]  # empty means not given


def test_types_and_defaults_of_the_form_are_those_of_the_profile() -> None:
    assert FIELDS["cpus_per_task"]["schema"] == {"type": ["integer", "null"], "default": 4}
    assert FIELDS["layer_cache"]["schema"] == {"type": ["boolean", "null"], "default": True}
    assert FIELDS["memory"]["schema"] == {"type": ["string", "null"], "default": "16G"}
    assert FIELDS["path_prepend"]["schema"] == {"type": ["array", "null"], "items": {"type": "string"}}
    assert FIELDS["environment"]["schema"]["type"] == ["object", "null"]
    assert "default" not in FIELDS["workspace_root"]["schema"]


def test_the_forms_defaults_are_accepted_as_they_are() -> None:
    given = {name: field["schema"].get("default") for name, field in FIELDS.items()}
    assert ClusterProfile.from_author({**given, "workspace_root": "/ws"}) == ClusterProfile(workspace_root="/ws")


def test_secrets_of_the_form_are_hidden() -> None:
    for name in ("private_key", "private_key_passphrase"):
        assert FIELDS[name]["schema"]["format"] == "password"


def test_the_form_loads_no_hook_and_no_airflow() -> None:
    code = (
        "import sys; from airflow_slurm_images.get_provider_info import get_provider_info; get_provider_info(); "
        "heavy = ('airflow.', 'paramiko', 'airflow_slurm_images.hooks.slurm'); "
        "bad = [m for m in sys.modules if m == 'airflow' or m.startswith(heavy)]; "
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- test connection


class FakeHook:
    """Answers like a cluster where all is well, but for what a test changes."""

    def __init__(self, profile: dict[str, Any] | None = None, **fields: str) -> None:
        self.profile = ClusterProfile.from_author({"workspace_root": "/ws", **(profile or {})})
        self.asked: dict[str, str] = {}
        self.refusal: Exception | None = None
        self.closed: tuple[str, ...] = ()
        good = {
            "login": "ann",
            "host": "login1",
            "slurm": "slurm 22.05.8\n",
            "sinfo.rc": "0",
            "sinfo.out": "cpu up 3 idle\ngpu up 1 mix\nold down 2 down\n",
            "sinfo.err": "",
            "enroot.rc": "0",
            "enroot.out": "4.1.2\n",
            "enroot.err": "",
        }
        self.fields = {name: (value.encode(),) for name, value in {**good, **fields}.items()}

    def prepare(self, run_key: str) -> RunState:
        if self.refusal is not None:
            raise self.refusal
        return RunState("/real/ws", "ann", "login1", attempts=(), queue=QueueAnswer("ok"), closed=self.closed)

    def run(self, verb: str, variables: dict[str, str]) -> RemoteResult:
        self.asked = variables
        return RemoteResult(0, self.fields)


def report(profile: dict[str, Any], fields: dict[str, str]) -> tuple[bool, list[str]]:
    hook: Any = FakeHook(profile, **fields)
    good, text = connection_report.report(hook)
    return good, text.splitlines()


def test_a_good_cluster_is_told_line_by_line() -> None:
    good, lines = report({"partition": "cpu"}, {})
    assert good
    assert lines == [
        "ok - login: ann on login1",
        "ok - workspace: /real/ws is usable",
        "ok - Slurm: slurm 22.05.8",
        "ok - partition: cpu is up",
        "ok - Enroot on a compute node: 4.1.2",
    ]


@pytest.mark.parametrize(
    ("profile", "fields", "start", "remedy"),
    [
        ({}, {"slurm": ""}, "FAILED - Slurm", "slurm_bin"),
        ({}, {"sinfo.rc": "1", "sinfo.err": "down"}, "FAILED - partition: sinfo failed (down)", "slurm_conf"),
        ({"partition": "gone"}, {}, "FAILED - partition: 'gone' does not exist", "cpu, gpu, old"),
        ({"partition": "old"}, {}, "FAILED - partition: 'old' is not up", "another one"),
        ({}, {"enroot.rc": "2", "enroot.err": "env: 'enroot': No such file or directory"}, "FAILED", "enroot_bin"),
    ],
)  # fmt: skip
def test_each_failed_check_has_its_remedy(
    profile: dict[str, Any], fields: dict[str, str], start: str, remedy: str
) -> None:
    good, lines = report(profile, fields)
    assert not good
    (line,) = [line for line in lines if line.startswith("FAILED")]
    assert line.startswith(start)
    assert remedy in line


@pytest.mark.parametrize(
    ("rc", "errors"),
    [
        ("1", "srun: error: Unable to allocate resources: Requested nodes are busy"),
        ("1", "srun: error: Unable to allocate resources: Connection timed out"),
        ("1", "srun: job 7 has been revoked"),
        ("1", "srun: error: QOSMaxSubmitJobPerUserLimit"),
        ("124", ""),
    ],
)
def test_a_busy_cluster_is_no_failure(rc: str, errors: str) -> None:
    good, lines = report({}, {"enroot.rc": rc, "enroot.out": "", "enroot.err": errors})
    assert good
    assert "not checked" in lines[-1]


@pytest.mark.parametrize(
    "errors",
    [
        "Invalid account or account/partition combination specified",
        "invalid partition specified: gone",
        "Invalid qos specification",
        "User's group not permitted to use this partition",
        "Requested node configuration is not available",
        "",
    ],
)
def test_a_quick_job_that_slurm_refuses_is_a_failure_with_a_remedy(errors: str) -> None:
    good, lines = report({}, {"enroot.rc": "1", "enroot.out": "", "enroot.err": f"srun: error: {errors}"})
    assert not good
    assert lines[-1].startswith("FAILED - Enroot: a quick job could not run")
    assert errors in lines[-1]
    assert "account, partition or qos" in lines[-1]


def test_a_workspace_that_cannot_be_used_hides_no_other_check() -> None:
    hook: Any = FakeHook({"partition": "gone"})
    hook.refusal = InvalidRequestError("/ws is world-writable", remedy="Correct the mode.")
    good, text = connection_report.report(hook)
    assert not good
    assert [line.split(":")[0] for line in text.splitlines()] == [
        "ok - login",
        "FAILED - workspace",
        "ok - Slurm",
        "FAILED - partition",
        "ok - Enroot on a compute node",
    ]
    assert "/ws is world-writable. Correct the mode." in text


def test_a_workspace_that_the_group_cannot_enter_fails_with_the_command_that_helps() -> None:
    hook: Any = FakeHook({"group": "images"})
    hook.closed = ("/real/ws (mode 700) is closed. Let its owner run: chgrp images /real/ws", "/real (mode 700) too")
    good, text = connection_report.report(hook)
    assert not good
    assert (
        "FAILED - workspace: /real/ws (mode 700) is closed. Let its owner run: chgrp images /real/ws; /real (mode"
        in text
    )


def test_the_quick_job_looks_for_enroot_where_the_real_job_does() -> None:
    hook: Any = FakeHook({"path_prepend": ["/opt/a"], "enroot_bin": "/opt/b", "partition": "cpu", "qos": "fast"})
    connection_report.report(hook)
    assert hook.asked["ASI_NODE_PATH"].startswith("/opt/a:/opt/b:/usr/local/sbin:")
    assert (hook.asked["ASI_PARTITION"], hook.asked["ASI_QOS"], hook.asked["ASI_ACCOUNT"]) == ("cpu", "fast", "")
    assert (hook.asked["ASI_RESERVATION"], hook.asked["ASI_CONSTRAINT"], hook.asked["ASI_EXCLUDE"]) == ("", "", "")
