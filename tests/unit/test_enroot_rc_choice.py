# SPDX-License-Identifier: Apache-2.0
"""A Python that is passed over is never passed over silently, and not at all where the image means that one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.trees.interpreters import running
from tests.unit.trees.prefix import INSPECTOR, Prefix, make_executable
from tests.unit.trees.shells import NOBODY, FakeImage, elf

GONE = "/nonexistent/.local/share/uv/python/cpython-3.12/bin/python3.12"


def broken_python(image: FakeImage, how: str) -> Path:
    """Put a Python that cannot be used in front, in opt/venv/bin."""
    program = image.root / "opt" / "venv" / "bin" / "python3"
    if how == "too old":
        return image.python("opt/venv/bin/python3", "3.6")
    if how == "incomplete":
        return image.python("opt/venv/bin/python3", status=94)
    program.parent.mkdir(parents=True)
    if how == "dangling":
        program.symlink_to(GONE)
    elif how == "of another machine":
        program.write_bytes(elf(183))
        program.chmod(0o755)
    (image.root / "tools").mkdir()
    (image.root / "tools" / "readlink").symlink_to(shutil.which("readlink") or "")
    return program


BROKEN = {
    "dangling": f" -> {GONE} which does not exist",
    "of another machine": " cannot be run here: Exec format error",
    "too old": " is Python 3.6, older than 3.8",
    "incomplete": " lacks a part of the standard library",
}


@pytest.mark.parametrize("kind", ["client", "serving"])
@pytest.mark.parametrize("how", BROKEN)
def test_what_was_passed_over_is_told_to_the_inspector(image: FakeImage, how: str, kind: str) -> None:
    program = broken_python(image, how)
    image.python("usr/bin/python3")
    assert image.run("--kind", kind, path="opt/venv/bin:usr/bin:tools").returncode == 0
    assert f" --unusable {program}{BROKEN[how]}" in image.log.read_text().splitlines()[-1]


@pytest.mark.parametrize("sign", ["pyvenv.cfg", "conda-meta", "VIRTUAL_ENV", "CONDA_PREFIX"])
@pytest.mark.parametrize("how", BROKEN)
def test_another_python_is_no_stand_in_for_the_environment_of_a_client(image: FakeImage, how: str, sign: str) -> None:
    program = broken_python(image, how)
    environment = program.parent.parent
    if sign == "pyvenv.cfg":
        (environment / sign).write_text("home = /usr/bin\n")
    elif sign == "conda-meta":
        (environment / sign).mkdir()
    image.python("usr/bin/python3")
    variables = {sign: str(environment)} if sign.isupper() else {}
    done = image.run(path="opt/venv/bin:usr/bin:tools", environment=variables)
    assert done.returncode == 90
    words = f"asi-inspect: error: python_missing: the image's environment {environment} has no usable Python: {program}"
    assert done.stderr.startswith(words + BROKEN[how])
    assert image.run("--kind", "serving", path="opt/venv/bin:usr/bin:tools", environment=variables).returncode == 0


def test_an_environment_behind_the_python_of_path_does_not_matter(sh_image: FakeImage) -> None:
    program = broken_python(sh_image, "dangling")
    (program.parent.parent / "pyvenv.cfg").write_text("")
    sh_image.python("usr/bin/python3")
    assert sh_image.run(path="usr/bin:opt/venv/bin").returncode == 0
    assert "--unusable" not in sh_image.log.read_text()


def test_a_broken_environment_in_a_usual_place_only_is_passed_over(sh_image: FakeImage) -> None:
    program = broken_python(sh_image, "dangling")
    (program.parent.parent / "pyvenv.cfg").write_text("")
    sh_image.python("opt/conda/bin/python3")
    assert sh_image.run(path="usr/bin").returncode == 0


def test_a_closed_directory_in_front_is_told_to_the_inspector(image: FakeImage) -> None:
    image.python("root/venv/bin/python3")
    image.python("usr/bin/python3")
    (image.root / "root").chmod(0o600)
    image.log.touch()
    image.log.chmod(0o666)
    user = NOBODY if Path("/proc/self").stat().st_uid == 0 else None
    done = image.run(path="root/venv/bin:usr/bin", user=user)
    (image.root / "root").chmod(0o700)
    assert done.returncode == 0
    words = f"--unusable {image.root}/root/venv/bin/python3 lies below {image.root}/root, a directory this user may not"
    assert words in image.log.read_text()


def test_no_python_with_vllm_is_said_with_those_that_cannot_be_used(image: FakeImage) -> None:
    broken_python(image, "dangling")
    image.python("usr/bin/python3", status=93)
    image.python("opt/conda/bin/python3", status=93)
    done = image.run("--kind", "serving", path="opt/venv/bin:usr/bin:tools")
    assert done.returncode == 91
    assert done.stderr == (
        "asi-inspect: error: runtime_missing: the distribution vllm is not installed for "
        f"{image.root}/usr/bin/python3, {image.root}/opt/conda/bin/python3; these cannot be used: "
        f"{image.root}/opt/venv/bin/python3{BROKEN['dangling']}\n"
    )


def test_the_facts_name_what_was_passed_over(image: FakeImage, tmp_path: Path) -> None:
    broken = broken_python(image, "dangling")
    prefix = Prefix.make(tmp_path, running())
    prefix.add("pip", "24.0", scripts=("pip",))
    (image.root / "asi").mkdir()
    (image.root / "asi" / "inspect_image.py").write_bytes(INSPECTOR.read_bytes())
    (image.root / "usr").symlink_to(prefix.root)
    done = image.run(path="opt/venv/bin:usr/bin:tools")
    assert (done.returncode, done.stderr) == (0, "")
    warnings = json.loads((image.root / "asi" / "facts").read_text())["image"]["warnings"]
    assert f"before {image.root}/usr/bin/python3 come, and cannot be used: {broken}{BROKEN['dangling']}" in warnings


@pytest.mark.parametrize(
    "place",
    [
        "root/miniconda3",
        "usr/local/miniconda3/envs/prod",
        "opt/micromamba/envs/prod",
        "opt/mamba",
        "root/.venv",
        "root/.local/share/uv/python/cpython-3.12-linux-x86_64-gnu",
        "root/.pyenv/versions/3.12.1",
        "opt/pyenv/versions/3.12.1",
        "app/.pixi/envs/default",
        "opt/python/cp312-cp312",
        "home/app/.venv",
        "root/.local",
        "opt/nvidia/venv",
    ],
)
def test_usual_places(sh_image: FakeImage, place: str) -> None:
    sh_image.python(f"{place}/bin/python3")
    assert sh_image.run().returncode == 0


@pytest.mark.parametrize("place", ["usr/bin/python3.15", "usr/libexec/platform-python"])
def test_unusual_names(sh_image: FakeImage, place: str) -> None:
    sh_image.python(place)
    assert sh_image.run().returncode == 0


@pytest.mark.parametrize(("name", "version"), [("python2", "2.7"), ("python3.6", "3.6")])
def test_an_image_with_an_old_python_only_is_told_so(image: FakeImage, name: str, version: str) -> None:
    image.python(f"usr/bin/{name}", version)
    done = image.run()
    assert done.returncode == 90
    assert f"{image.root}/usr/bin/{name} is Python {version}, older than 3.8" in done.stderr


@pytest.mark.parametrize(
    ("variables", "start_code", "words"),
    [
        ({"PYTHONHOME": "/nonexistent"}, "", "(Fatal Python error: "),
        ({}, "import os; os._exit(3)", "it ended with status 3 without a word"),
        ({}, "import os; os.write(2, b'first\\nnot today\\n'); os._exit(1)", "it ended with status 1 (not today)"),
    ],
)
def test_a_python_that_starts_and_ends_is_none_of_another_machine(
    image: FakeImage, tmp_path: Path, variables: dict[str, str], start_code: str, words: str
) -> None:
    prefix = Prefix.make(tmp_path, running())
    (prefix.site / "at_start.py").write_text(start_code)
    (prefix.site / "at_start.pth").write_text("import at_start\n")
    (image.root / "opt").mkdir()
    (image.root / "opt" / "venv").symlink_to(prefix.root)
    done = image.run(environment=variables)
    assert done.returncode == 90
    assert "does not start a Python; it ended with status " in done.stderr
    assert words in done.stderr
    assert "another architecture" not in done.stderr


def test_a_missing_loader_is_no_python_that_ended(image: FakeImage) -> None:
    make_executable(image.root / "usr" / "bin" / "python3", "")
    program = bytearray(Path("/bin/true").read_bytes())
    loader = b"/lib64/ld-linux-x86-64.so.2"
    program[program.index(loader) : program.index(loader) + 6] = b"/nolib"
    (image.root / "usr" / "bin" / "python3").write_bytes(program)
    done = image.run()
    assert done.returncode == 90
    assert "its loader or libraries are missing" in done.stderr
