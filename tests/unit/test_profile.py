# SPDX-License-Identifier: Apache-2.0
"""A profile is read leniently from authors, and refused with field, value and rule where it is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.profile import ENVIRONMENT_NAMES, ClusterProfile, parse_size

WS = {"workspace_root": "/ws"}


def profile(**values: Any) -> ClusterProfile:
    return ClusterProfile.from_author({**WS, **values})


@pytest.mark.parametrize(
    ("field", "given", "value"),
    [
        ("cpus_per_task", "8", 8),
        ("cpus_per_task", 8.0, 8),
        ("inspect_timeout", "600", 600),
        ("layer_cache", "false", False),
        ("layer_cache", 1, True),
        ("memory", 2048, "2048M"),
        ("memory", "16G", "16G"),
        ("time_limit", 90, "90"),
        ("time_limit", "1-00:00:00", "1-00:00:00"),
        ("min_free", 1048576, "1048576"),
        ("path_prepend", ["/a", "/b"], ("/a", "/b")),
        ("path_prepend", "/a:/b", ("/a", "/b")),
        ("insecure_registries", "one.example:5000, two.example", ("one.example:5000", "two.example")),
        ("workspace_root", "/ws/", "/ws"),
        ("environment", {"TZ": "UTC"}, {"TZ": "UTC"}),
    ],
)
def test_author_input_is_read_leniently(field: str, given: Any, value: Any) -> None:
    assert getattr(profile(**{field: given}), field) == value


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_form_field_means_not_given(nothing: Any) -> None:
    fields = {name: nothing for name in ClusterProfile.model_fields if name != "workspace_root"}
    assert profile(**fields) == profile()
    assert profile().cpus_per_task == 4


def test_a_tasks_value_wins_over_the_connections() -> None:
    extra = {**WS, "memory": "8G", "account": "a", "key_file": "/home/ann/.ssh/id", "no_host_key_check": False}
    merged = ClusterProfile.from_author(extra, {"memory": "32G"})
    assert (merged.memory, merged.account) == ("32G", "a")


def test_an_empty_override_takes_the_connections_value_away() -> None:
    assert ClusterProfile.from_author({**WS, "account": "a"}, {"account": ""}).account is None


def test_an_unknown_override_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="partitoin"):
        ClusterProfile.from_author(WS, {"partitoin": "cpu"})


@pytest.mark.parametrize("extra", [{}, {"workspace_root": ""}, {"workspace_root": None}])
def test_the_one_required_field_is_asked_for(extra: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="workspace_root") as caught:
        ClusterProfile.from_author(extra)
    assert "workspace_root" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workspace_root", "ws"),
        ("workspace_root", "/ws/../etc"),
        ("workspace_root", "/my ws"),
        ("workspace_root", "/ws:x"),
        ("workspace_root", "/" + "x" * 2000),
        ("workspace_root", "/ws\n"),
        ("account", "a b"),
        ("account", "-x"),
        ("account", "a\n#SBATCH --gres=gpu:1"),
        ("partition", "cpu;id"),
        ("constraint", '"x"'),
        ("exclude", "$(id)"),
        ("cpus_per_task", 0),
        ("cpus_per_task", "many"),
        ("cpus_per_task", 2000),
        ("cpus_per_task", 1.5),
        ("memory", "0"),
        ("memory", "16 G"),
        ("memory", True),
        ("time_limit", "UNLIMITED"),
        ("time_limit", 0),
        ("time_limit", "2 hours"),
        ("min_free", "lots"),
        ("inspect_timeout", 5),
        ("record_wait", 0),
        ("cluster", "a b"),
        ("group", "-g"),
        ("squash_options", "-comp zstd; rm -rf /"),
        ("squash_options", "-p 'x f 644 0 0 id'"),
        ("insecure_registries", ["http://reg.example"]),
        ("insecure_registries", ["reg.example/path"]),
        ("path_prepend", ["bin"]),
        ("slurm_bin", "bin"),
        ("enroot_bin", "/opt/$x"),
        ("environment", "x"),
        ("layer_cache", "perhaps"),
    ],
)
def test_bad_input_names_field_and_rule(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        profile(**{field: value})
    assert field in caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.remedy


@pytest.mark.parametrize(
    "name", ["PATH", "LD_PRELOAD", "ENROOT_CONFIG_PATH", "ENROOT_SQUASH_OPTIONS", "BASH_ENV", "A=B"]
)
def test_variables_that_could_choose_what_is_made_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="environment") as caught:
        profile(environment={name: "x"})
    assert repr(name) in caught.value.message


@pytest.mark.parametrize("url", ["http://ann:secret@proxy.example", "https://token@proxy.example:1", "x://a:b@c"])
def test_a_login_in_a_proxy_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="secret must not enter") as caught:
        profile(environment={"https_proxy": url})
    assert "ann:secret" not in str(caught.value)
    assert url not in str(caught.value)


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize("login", ["ann:hunter2", "http://ann:hun/ter2", "ann@corp:hunter2"])
def test_a_login_of_a_proxy_is_refused_with_and_without_a_scheme(name: str, login: str) -> None:
    with pytest.raises(InvalidRequestError, match="secret must not enter") as caught:
        profile(environment={name: f"{login}@proxy.example:3128"})
    assert login.rpartition(":")[2] not in str(caught.value)


def test_a_certificate_may_lie_anywhere() -> None:
    assert profile(environment={"SSL_CERT_FILE": "/etc/pki@site/ca.pem"}).environment


def test_an_environment_value_is_one_line() -> None:
    with pytest.raises(InvalidRequestError, match="control character"):
        profile(environment={"TZ": "UTC\nexport X=1"})


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        profile(cpus_per_task=0, account="a b", min_free="x")
    for field in ("cpus_per_task", "account", "min_free"):
        assert field in caught.value.message


@pytest.mark.parametrize(
    ("text", "size"), [("512M", 512 * 2**20), ("10g", 10 * 2**30), ("1", 1), ("2TiB", 2 * 2**40), ("3KB", 3072)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_no_variable_that_may_be_set_leads_enroot_to_other_bytes() -> None:
    dangerous = ("PATH", "CONFIG", "SYSCONF", "SQUASH", "LOGIN", "ALLOW", "MOUNT", "ROOTFS", "PRELOAD")
    assert [name for name in ENVIRONMENT_NAMES if any(word in name for word in dangerous)] == []


@pytest.mark.parametrize(
    ("named", "registry", "plain"),
    [
        ("Reg.Example:5000", "reg.example:5000", True),
        ("reg.example", "reg.example:80", True),
        ("reg.example:80", "reg.example", True),
        ("reg.example", "reg.example:5000", False),
        ("reg.example:5000", "other.example:5000", False),
    ],
)
def test_an_insecure_registry_is_known_however_it_is_written(named: str, registry: str, plain: bool) -> None:
    profile = ClusterProfile.from_author({"workspace_root": "/ws", "insecure_registries": [named]})
    assert profile.speaks_plain_http(registry) is plain


def test_a_number_in_the_environment_is_its_text() -> None:
    profile = ClusterProfile.from_author({"workspace_root": "/ws", "environment": {"ENROOT_MAX_CONNECTIONS": 5}})
    assert profile.environment == {"ENROOT_MAX_CONNECTIONS": "5"}
