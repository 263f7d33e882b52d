# SPDX-License-Identifier: Apache-2.0
"""The container's start script finds the image's Python as its users would, in any shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.trees.interpreters import running
from tests.unit.trees.prefix import INSPECTOR, Prefix, make_executable
from tests.unit.trees.shells import NOBODY, FakeImage, elf


def test_the_python_on_path_is_used_with_the_arguments_of_the_contract(image: FakeImage) -> None:
    image.python("usr/bin/python3")
    done = image.run("--kind", "serving")
    assert (done.returncode, done.stderr) == (0, "")
    mount = image.root / "asi"
    assert image.log.read_text() == (
        f"{image.root}/usr/bin/python3 -s -B {mount}/inspect_image.py --kind serving --mount {mount} "
        f"--output {mount}/facts\n"
    )


def test_the_output_can_be_named(sh_image: FakeImage) -> None:
    sh_image.python("usr/bin/python3")
    assert sh_image.run("--", "--kind", "client", "--output", "/asi/other").returncode == 0
    assert sh_image.log.read_text().endswith("--output /asi/other\n")


@pytest.mark.parametrize(
    ("present", "used"),
    [
        (["usr/bin/python3", "bin/python3", "opt/venv/bin/python3"], "usr/bin/python3"),
        (["bin/python3", "usr/bin/python"], "bin/python3"),
        (["usr/bin/python", "opt/venv/bin/python3"], "usr/bin/python"),
        (["active/bin/python3", "opt/venv/bin/python3", "usr/bin/python3.11"], "active/bin/python3"),
        (["conda/bin/python", "opt/venv/bin/python3"], "conda/bin/python"),
        (["opt/venv/bin/python3", "app/.venv/bin/python3", "opt/conda/bin/python3"], "opt/venv/bin/python3"),
        (["app/.venv/bin/python3", "opt/conda/bin/python3"], "app/.venv/bin/python3"),
        (["opt/conda/bin/python", "usr/bin/python3.9"], "opt/conda/bin/python"),
        (["opt/miniconda3/bin/python3"], "opt/miniconda3/bin/python3"),
        (["opt/mambaforge/bin/python3"], "opt/mambaforge/bin/python3"),
        (["usr/local/conda/bin/python3"], "usr/local/conda/bin/python3"),
        (["opt/conda/envs/prod/bin/python"], "opt/conda/envs/prod/bin/python"),
        (["usr/bin/python3.9", "usr/bin/python3.13"], "usr/bin/python3.13"),
        (["opt/venv/bin/python3.8"], "opt/venv/bin/python3.8"),
        (["usr/local/bin/python3"], "usr/local/bin/python3"),
    ],
)
def test_the_places_in_their_order(sh_image: FakeImage, present: list[str], used: str) -> None:
    for place in present:
        sh_image.python(place)
    environment = {"VIRTUAL_ENV": f"{sh_image.root}/active", "CONDA_PREFIX": f"{sh_image.root}/conda"}
    assert sh_image.run(path="usr/bin:bin", environment=environment).returncode == 0
    assert sh_image.started() == [used]


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_a_python_that_is_too_old_is_passed_over(sh_image: FakeImage, version: str) -> None:
    sh_image.python("usr/bin/python3", version)
    sh_image.python("opt/venv/bin/python3", "3.14")
    assert sh_image.run().returncode == 0
    assert sh_image.started() == ["opt/venv/bin/python3"]


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.14", "3.20"])
def test_a_python_from_3_8_on_is_used(sh_image: FakeImage, version: str) -> None:
    sh_image.python("usr/bin/python3", version)
    assert sh_image.run().returncode == 0


def test_only_old_pythons_are_listed_with_their_versions(image: FakeImage) -> None:
    image.python("usr/bin/python3", "3.6")
    image.python("usr/bin/python", "2.7")
    done = image.run()
    assert done.returncode == 90
    assert done.stderr == (
        "asi-inspect: error: python_missing: no usable Python 3.8 or newer in this image: "
        f"{image.root}/usr/bin/python3 is Python 3.6, older than 3.8; "
        f"{image.root}/usr/bin/python is Python 2.7, older than 3.8\n"
    )


def test_no_python_at_all_is_said_with_the_path(image: FakeImage) -> None:
    done = image.run()
    assert done.returncode == 90
    assert done.stderr == (
        f"asi-inspect: error: python_missing: no Python in this image, neither on its PATH ({image.root}/usr/bin) "
        "nor in the usual places\n"
    )


@pytest.mark.parametrize("tool", ["readlink", "ls"])
def test_a_dangling_link_is_named_with_its_target(image: FakeImage, tool: str) -> None:
    tools = image.root / "tools"
    tools.mkdir()
    (tools / tool).symlink_to(shutil.which(tool) or "")
    target = "/nonexistent/.local/share/uv/python/cpython-3.12/bin/python3.12"
    python = image.root / "opt" / "venv" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.symlink_to("python")
    (python.parent / "python").symlink_to(target)
    done = image.run(path="opt/venv/bin:tools")
    assert done.returncode == 90
    assert f"{python} -> python -> {target} which does not exist" in done.stderr


def test_without_tools_a_dangling_link_is_still_reported(image: FakeImage) -> None:
    (image.root / "usr" / "bin").mkdir(parents=True)
    (image.root / "usr" / "bin" / "python3").symlink_to("/nonexistent/python3.12")
    done = image.run()
    assert done.returncode == 90
    assert f"{image.root}/usr/bin/python3 -> " in done.stderr
    assert "which does not exist" in done.stderr


def test_a_dangling_link_does_not_stop_the_search(image: FakeImage) -> None:
    (image.root / "usr" / "bin").mkdir(parents=True)
    (image.root / "usr" / "bin" / "python3").symlink_to("/nonexistent/python3.12")
    image.python("opt/venv/bin/python3")
    assert image.run().returncode == 0
    assert image.started() == ["opt/venv/bin/python3"]


def test_links_in_a_circle_end(sh_image: FakeImage) -> None:
    (sh_image.root / "usr" / "bin").mkdir(parents=True)
    (sh_image.root / "usr" / "bin" / "python3").symlink_to("python")
    (sh_image.root / "usr" / "bin" / "python").symlink_to("python3")
    assert sh_image.run().returncode == 90


@pytest.mark.parametrize("machine", [183, 21])
def test_a_program_for_another_machine_is_named_with_its_link_target(image: FakeImage, machine: int) -> None:
    program = image.root / "opt" / "python" / "bin" / "python3.12"
    program.parent.mkdir(parents=True)
    program.write_bytes(elf(machine))
    program.chmod(0o755)
    (image.root / "tools").mkdir()
    (image.root / "tools" / "readlink").symlink_to(shutil.which("readlink") or "")
    (image.root / "usr" / "bin").mkdir(parents=True)
    (image.root / "usr" / "bin" / "python3").symlink_to(program)
    done = image.run(path="usr/bin:tools")
    assert done.returncode == 90
    assert f"{image.root}/usr/bin/python3 -> {program} cannot be run here: Exec format error" in done.stderr


def test_a_python_that_does_not_start_is_told_with_its_own_words(image: FakeImage) -> None:
    (image.root / "usr" / "bin").mkdir(parents=True)
    (image.root / "usr" / "bin" / "python3").symlink_to(Path(os.path.realpath("/usr/bin/python3")))
    done = image.run(environment={"PYTHONHOME": "/nonexistent"})
    assert done.returncode == 90
    assert "(Fatal Python error: " in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("#!/nonexistent/python\n", "is a script that does not start a Python (#!/nonexistent/python)"),
        ("#!/bin/sh\nexit 0\n", "is a script that does not start a Python (#!/bin/sh)"),
        ("", "does not start a Python"),
    ],
)
def test_what_only_looks_like_a_python_is_passed_over(sh_image: FakeImage, content: str, words: str) -> None:
    make_executable(sh_image.root / "usr" / "bin" / "python3", content)
    done = sh_image.run()
    assert done.returncode == 90
    assert f"{sh_image.root}/usr/bin/python3 {words}" in done.stderr


def test_a_directory_or_a_plain_file_is_no_python(image: FakeImage) -> None:
    (image.root / "usr" / "bin" / "python3").mkdir(parents=True)
    (image.root / "usr" / "bin" / "python").write_text("")
    done = image.run()
    assert done.returncode == 90
    assert "/usr/bin/python3 is not a file" in done.stderr
    assert "/usr/bin/python is not executable for this user" in done.stderr


def other_user() -> int | None:
    return NOBODY if os.getuid() == 0 else None


def test_an_interpreter_below_a_closed_directory_is_named(image: FakeImage) -> None:
    (image.root / "usr" / "bin").mkdir(parents=True)
    (image.root / "usr" / "bin" / "readlink").symlink_to(shutil.which("readlink") or "")
    closed = image.root / "root"
    image.python("root/.local/bin/python3.12")
    (image.root / "usr" / "bin" / "python3").symlink_to(closed / ".local" / "bin" / "python3.12")
    closed.chmod(0o600)
    done = image.run(user=other_user())
    closed.chmod(0o700)
    assert done.returncode == 90
    words = f"which lies below {closed}, a directory this user may not enter"
    assert f"/usr/bin/python3 -> {closed}/.local/bin/python3.12 {words}" in done.stderr


@pytest.mark.parametrize("how", ["PATH", "VIRTUAL_ENV"])
def test_a_python_directory_that_may_not_be_entered_is_named(image: FakeImage, how: str) -> None:
    closed = image.root / "root"
    image.python("root/venv/bin/python3")
    closed.chmod(0o600)
    done = image.run(
        path="root/venv/bin" if how == "PATH" else "usr/bin",
        user=other_user(),
        environment={"VIRTUAL_ENV": f"{closed}/venv"},
    )
    closed.chmod(0o700)
    assert done.returncode == 90
    assert f"{closed}/venv/bin/python3 lies below {closed}, a directory this user may not enter" in done.stderr


@pytest.mark.parametrize("status", [0, 1, 91, 92, 137])
def test_the_inspector_s_status_is_handed_on(sh_image: FakeImage, status: int) -> None:
    sh_image.python("usr/bin/python3", status=status)
    sh_image.python("opt/venv/bin/python3")
    assert sh_image.run().returncode == status
    assert sh_image.started() == ["usr/bin/python3"]


def test_a_python_without_vllm_is_followed_by_the_next(image: FakeImage) -> None:
    first = image.python("usr/bin/python3", status=93)
    image.python("opt/venv/bin/python3")
    assert image.run("--kind", "serving").returncode == 0
    assert image.started() == ["usr/bin/python3", "opt/venv/bin/python3"]
    assert image.log.read_text().splitlines()[1].endswith(f" --without {first}")


def test_no_python_with_vllm_is_status_91(image: FakeImage) -> None:
    image.python("usr/bin/python3", status=93)
    image.python("opt/venv/bin/python3", status=93)
    assert image.run("--kind", "serving").returncode == 91


def test_a_python_with_half_a_standard_library_is_followed_by_the_next(image: FakeImage) -> None:
    image.python("usr/bin/python3", status=94)
    image.python("opt/venv/bin/python3")
    assert image.run().returncode == 0


def test_only_half_a_standard_library_is_said(sh_image: FakeImage) -> None:
    sh_image.python("usr/bin/python3", status=94)
    done = sh_image.run()
    assert done.returncode == 90
    assert "/usr/bin/python3 lacks a part of the standard library" in done.stderr


def test_the_same_program_is_asked_once(image: FakeImage) -> None:
    image.python("usr/bin/python3", status=93)
    for name in ("python", "python3.12"):
        (image.root / "usr" / "bin" / name).symlink_to("python3")
    (image.root / "bin").symlink_to("usr/bin")
    image.run("--kind", "serving", path="bin:usr/bin:usr/bin")
    assert len(image.started()) == 1


def test_an_environment_that_shares_its_program_with_another_is_asked_too(image: FakeImage) -> None:
    base = image.python("usr/bin/python3", status=93)
    (image.root / "opt" / "venv" / "bin").mkdir(parents=True)
    (image.root / "opt" / "venv" / "bin" / "python3").symlink_to(base)
    image.run("--kind", "serving")
    assert image.started() == ["usr/bin/python3", "opt/venv/bin/python3"]


def test_relative_and_mounted_directories_are_not_searched(image: FakeImage) -> None:
    image.python("asi/python3")
    image.python("asi/out/python3")
    image.python("asi/bin/python3")
    done = subprocess.run(
        [*image.shell, str(image.rc), "--kind", "client"], cwd=image.root / "asi", capture_output=True, timeout=60,
        env={"PATH": f":.:{image.root}/asi:{image.root}/asi/out/", "VIRTUAL_ENV": f"{image.root}/asi"},
    )  # fmt: skip
    assert done.returncode == 90
    assert image.started() == []


def test_names_with_white_space_and_patterns_are_taken_as_they_are(image: FakeImage) -> None:
    image.python("a b * $HOME/bin/python3")
    assert image.run(path="none:a b * $HOME/bin").returncode == 0
    assert image.log.read_text().startswith(f"{image.root}/a b * $HOME/bin/python3 -s -B ")


@pytest.mark.parametrize(
    "arguments", [["--kind"], ["--kind", "generic"], ["client"], ["--output", "/x"], ["--kind", ""]]
)
def test_a_wrong_call_is_status_92(sh_image: FakeImage, arguments: list[str]) -> None:
    sh_image.python("usr/bin/python3")
    done = sh_image.run(*arguments)
    assert done.returncode == 92
    assert done.stderr.startswith("asi-inspect: error: usage: ")
    assert sh_image.started() == []


def test_variables_of_the_image_do_not_disturb_the_script(image: FakeImage) -> None:
    image.python("usr/bin/python3")
    hostile = {
        name: f"{image.root}/x"
        for name in (
            "ASI_MOUNT",
            "ASI_ROOT",
            "ASI_KIND",
            "ASI_LOOKED",
            "ASI_REJECTED",
            "ASI_WITHOUT",
            "ASI_PATH",
            "IFS",
            "ENV",
            "CDPATH",
        )
    }
    assert image.run(environment=hostile).returncode == 0
    assert image.started() == ["usr/bin/python3"]


def test_a_real_python_is_found_and_the_facts_are_written(image: FakeImage, tmp_path: Path) -> None:
    prefix = Prefix.make(tmp_path, running())
    prefix.add("vllm", "0.33.0", scripts=("vllm",))
    (image.root / "asi").mkdir()
    (image.root / "asi" / "inspect_image.py").write_bytes(INSPECTOR.read_bytes())
    (image.root / "opt").mkdir()
    (image.root / "opt" / "venv").symlink_to(prefix.root)
    done = image.run("--kind", "serving", environment={"PYTHONINSPECT": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads((image.root / "asi" / "facts").read_text())
    assert facts["image"]["python_executable"] == f"{image.root}/opt/venv/bin/python3"
    assert facts["inspection"]["executable_path"] == str((prefix.root / "bin" / "vllm").resolve())
