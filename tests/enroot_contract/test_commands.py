"""The command line: what every call answers before it does anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .runner import Enroot


def test_version_is_one_line_on_standard_output(enroot: Enroot) -> None:
    result = enroot("version")
    assert (result.status, result.err) == (0, "")
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", result.out)
    assert tuple(map(int, result.out.strip().split("."))) >= (3, 5)


@pytest.mark.parametrize(
    "arguments",
    [[], ["frobnicate"], ["import"], ["import", "--no-such"], ["import", "-o"], ["create"], ["start"], ["remove"]],
    ids=" ".join,
)
def test_a_wrong_call_prints_the_usage_and_fails(enroot: Enroot, arguments: list[str]) -> None:
    result = enroot(*arguments)
    assert (result.status, result.err) == (1, "")
    assert result.out.startswith("Usage: enroot ")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("import", ["-a,", "--arch", "-o,", "--output"]),
        ("create", ["-n,", "--name", "-f,", "--force"]),
        ("remove", ["-f,", "--force"]),
        ("start", ["-c,", "--conf", "-e,", "--env", "--rc", "-r,", "--root", "-w,", "--rw", "-m,", "--mount"]),
    ],
)
def test_help_lists_the_options(enroot: Enroot, command: str, options: list[str]) -> None:
    result = enroot(command, "--help")
    assert result.status == 0
    assert set(options) <= set(result.out.split())


def test_an_option_s_value_may_follow_an_equals_sign(enroot: Enroot, sqsh: Path) -> None:
    assert enroot("create", "--name=box", str(sqsh)).status == 0
    assert enroot("list").lines == ["box"]


def test_a_double_dash_ends_the_options(enroot: Enroot) -> None:
    result = enroot("import", "--", "--no-such")
    assert (result.status, result.err) == (1, "[ERROR] Invalid argument: --no-such\n")


@pytest.mark.parametrize("name", ["cache", "data", "runtime"])
def test_even_version_fails_where_a_directory_cannot_be_made(enroot: Enroot, name: str) -> None:
    result = enroot("version", env={f"ENROOT_{name.upper()}_PATH": "/proc/no-such/enroot"})
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("mkdir: cannot create directory")


def test_the_runtime_directory_is_looked_for_below_run_without_xdg_runtime_dir(enroot: Enroot) -> None:
    """Seen with an empty, read-only /run: on some machines somebody has made the directory already."""
    unset = {"ENROOT_RUNTIME_PATH": None, "XDG_RUNTIME_DIR": None}
    result = enroot("version", env=unset, before=["unshare", "-r", "-m", enroot.helper("with_empty_run.sh")])
    assert (result.status, result.out) == (1, "")
    assert result.err == "mkdir: cannot create directory '/run/enroot': Read-only file system\n"


def test_the_runtime_directory_follows_xdg_runtime_dir(enroot: Enroot) -> None:
    where = enroot.paths["tmp"]
    assert enroot("version", env={"ENROOT_RUNTIME_PATH": None, "XDG_RUNTIME_DIR": str(where)}).status == 0
    assert (where / "enroot").stat().st_mode & 0o777 == 0o700


def test_other_directories_follow_home(enroot: Enroot) -> None:
    unset = {f"ENROOT_{name}_PATH": None for name in ("CACHE", "DATA")}
    assert enroot("version", env=unset).status == 0
    assert (enroot.paths["home"] / ".cache/enroot").is_dir()
    assert (enroot.paths["home"] / ".local/share/enroot").is_dir()
