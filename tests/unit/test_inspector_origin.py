# SPDX-License-Identifier: Apache-2.0
"""Whose a script is: the inspector believes its content, not its place, and tells which Python runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_slurm_images.cluster import inspect_image
from tests.unit.trees.interpreters import Interpreter, running
from tests.unit.trees.prefix import Prefix, client_prefix, make_executable, record_line, script_text

NOT_PROVED = "is listed as a file of vllm, but is not the recorded one nor starts its code"
FOREIGN = "#!/bin/sh\necho 'the vllm of another team'\n"


@pytest.fixture
def prefix(tmp_path: Path, interpreter: Interpreter) -> Prefix:
    return client_prefix(tmp_path, interpreter)


def script(prefix: Prefix, text: str, name: str = "vllm") -> str:
    """Write the environment's script anew; returns its path, free of links."""
    return str(make_executable(prefix.root / "bin" / name, text).resolve())


def other_python(directory: Path) -> Path:
    """A Python that is not the environment's."""
    program = directory / "other" / "bin" / "python3"
    program.parent.mkdir(parents=True)
    shutil.copy(running().executable.resolve(), program)
    return program


@pytest.mark.parametrize("own", [True, False])
def test_a_target_directory_does_not_lead_to_the_program_of_somebody_else(
    prefix: Prefix, tmp_path: Path, own: bool
) -> None:
    target = tmp_path / "local" / "lib" / "site"
    info = prefix.add("vllm", "0.9.0", base=target)
    (info / "entry_points.txt").write_text("[console_scripts]\nvllm = vllm.cli:main\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\n../../bin/vllm,sha256=x,3\n")
    make_executable(tmp_path / "local" / "bin" / "vllm", FOREIGN)
    prefix.environment["PYTHONPATH"] = str(target)
    prefix.environment["PATH"] = f"{tmp_path / 'local' / 'bin'}:{prefix.root / 'bin'}"
    if own:
        script = make_executable(target / "bin" / "vllm", script_text("vllm.cli", str(prefix.python)))
        assert prefix.inspect("serving").inspection["executable_path"] == str(script.resolve())
    else:
        outcome = prefix.inspect("serving")
        assert outcome.error_code == "script_missing"
        assert "local/bin/vllm, which PATH finds, is neither" in outcome.stderr


def test_a_script_that_another_distribution_overwrote_is_not_taken(prefix: Prefix) -> None:
    prefix.add("vllm", "0.9.0", scripts=("vllm",))
    prefix.add("vllm-wrapper", "3.0", scripts=("vllm",))
    assert prefix.inspect("serving").error_code == "script_missing"


def test_a_script_whose_first_line_was_changed_is_still_the_distribution_s(prefix: Prefix) -> None:
    prefix.add("vllm", scripts=("vllm",))
    path = script(prefix, script_text("vllm.cli", f"{prefix.python} -E"))
    assert prefix.inspect("serving").inspection["executable_path"] == path


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("changed", [True, False])
def test_a_listed_program_that_is_not_the_recorded_one_is_taken_with_a_warning(
    prefix: Prefix, changed: bool, declared: bool
) -> None:
    """A wrapper in the script's place, as sites and Nix put there."""
    info = prefix.add("vllm")
    path = make_executable(prefix.root / "bin" / "vllm", "#!/bin/sh\nexec one\n")
    (info / "RECORD").write_text(record_line(prefix.site, path) + "\n")
    if declared:
        (info / "entry_points.txt").write_text("[console_scripts]\nvllm = vllm.cli:main\n")
    if changed:
        make_executable(path, "#!/bin/sh\nexec two\n")
    outcome = prefix.inspect("serving")
    assert outcome.inspection["executable_path"] == str(path.resolve())
    assert outcome.image["warnings"] == ([f"{path.resolve()} {NOT_PROVED}"] if changed else [])


@pytest.mark.parametrize(
    "text",
    [
        "from pathlib import Path\nimport runpy\nrunpy.run_module('vllm.cli')\n",
        "from __future__ import annotations\nfrom importlib.metadata import entry_points\n",
        "from vllm.scripts import main\n",
    ],
)
def test_a_wrapper_that_uses_python_or_the_package_itself_starts_no_other_code(prefix: Prefix, text: str) -> None:
    prefix.add("vllm", scripts=("vllm",))
    path = script(prefix, f"#!{prefix.python}\n{text}")
    outcome = prefix.inspect("serving")
    assert outcome.inspection["executable_path"] == path
    assert outcome.image["warnings"] == [f"{path} {NOT_PROVED}"]


def test_a_script_without_entry_point_is_known_by_the_package_it_starts(prefix: Prefix) -> None:
    info = prefix.add("vllm")
    (info / "RECORD").write_text("../../../bin/vllm,sha256=x,3\n")
    path = script(prefix, script_text("vllm.cli", str(prefix.python)))
    outcome = prefix.inspect("serving")
    assert (outcome.inspection["executable_path"], outcome.image["warnings"]) == (path, [])


@pytest.mark.parametrize(("added", "found"), [(0, "recorded"), (1, "on PATH")])
def test_a_large_program_is_known_by_its_size(prefix: Prefix, tmp_path: Path, added: int, found: str) -> None:
    shutil.rmtree(prefix.site / "pip-24.0.dist-info")
    info = prefix.add("uv", "0.9.1")
    program = prefix.root / "bin" / "uv"
    make_executable(program, "\x7fELF")
    with program.open("r+b") as target:
        target.truncate(60 << 20)
    (info / "RECORD").write_text(f"../../../bin/uv,sha256=x,{(60 << 20) + added}\n")
    other = make_executable(tmp_path / "tools" / "uv", "#!/bin/sh\necho 'uv 0.1.0'\n")
    prefix.environment["PATH"] = str(other.parent)
    expected = {"recorded": (program, "0.9.1"), "on PATH": (other, "0.1.0")}[found]
    inspection = prefix.inspect().inspection
    assert (inspection["installer_path"], inspection["installer_version"]) == (str(expected[0].resolve()), expected[1])


def test_a_program_that_nothing_proves_is_taken_with_a_warning(prefix: Prefix) -> None:
    info = prefix.add("vllm")
    (info / "RECORD").write_text("../../../bin/vllm,,\n")
    path = script(prefix, "#!/bin/sh\nexec something\n")
    outcome = prefix.inspect("serving")
    assert outcome.inspection["executable_path"] == path
    assert outcome.image["warnings"] == [f"{path} {NOT_PROVED}"]


def test_a_list_of_files_cannot_make_many_programs_be_read(prefix: Prefix) -> None:
    info = prefix.add("vllm")
    (info / "RECORD").write_text("../../../bin/vllm,sha256=x,\n" * 2000)
    distribution = inspect_image.Distribution("vllm", "1.0", str(info), str(prefix.site))
    assert len(inspect_image.listed_scripts(distribution, "vllm")) < 510


TRAMPOLINE = (
    "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\nimport sys\nfrom vllm.cli import main\nsys.exit(main())\n"
)


@pytest.mark.parametrize(
    "text",
    [
        TRAMPOLINE.format(python="{python}"),
        TRAMPOLINE.format(python='"{python}"'),
        TRAMPOLINE.format(python="'{python}'"),
        TRAMPOLINE.format(python='"$(dirname -- "$(realpath -- "$0")")"/\'python3\''),
        "#!/usr/bin/env python3\nfrom vllm.cli import main\n",
        "#!/usr/bin/env -S python3 -u\nfrom vllm.cli import main\n",
        "#!{root}/bin/python\nfrom vllm.cli import main\n",
    ],
)
def test_every_way_to_start_this_python_is_known(prefix: Prefix, text: str) -> None:
    prefix.add("vllm", scripts=("vllm",))
    (prefix.root / "bin" / "python").symlink_to("python3")
    script(prefix, text.replace("{python}", str(prefix.python)).replace("{root}", str(prefix.root)))
    assert prefix.inspect("serving").image["warnings"] == []


@pytest.mark.parametrize("how", ["#!{python}\n", "#!/usr/bin/env python3\n", "trampoline"])
@pytest.mark.parametrize("kind", ["client", "serving"])
def test_a_script_of_another_python_is_warned_of(prefix: Prefix, tmp_path: Path, how: str, kind: str) -> None:
    prefix.add("vllm", scripts=("vllm",))
    name, module = {"client": ("pip", "pip.cli"), "serving": ("vllm", "vllm.cli")}[kind]
    other = other_python(tmp_path)
    prefix.environment["PATH"] = f"{other.parent}:{prefix.root / 'bin'}:/usr/bin"
    text = TRAMPOLINE.replace("vllm.cli", module) if how == "trampoline" else f"{how}from {module} import main\n"
    path = script(prefix, text.replace("{python}", str(other)), name)
    warnings = prefix.inspect(kind).image["warnings"]
    assert warnings == [f"{path} is run by {other}, which is not the Python inspected, {prefix.python}"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            TRAMPOLINE.format(python="/build/gone/python3"),
            "'''exec' /build/gone/python3 \"$0\" \"$@\", which cannot be run",
        ),
        ("#!/usr/bin/env python3.99\nfrom vllm.cli import main\n", "but PATH finds no python3.99"),
    ],
)
def test_a_script_whose_python_is_not_there_is_warned_of(prefix: Prefix, text: str, words: str) -> None:
    prefix.add("vllm", scripts=("vllm",))
    script(prefix, text)
    warnings = prefix.inspect("serving").image["warnings"]
    assert len(warnings) == 1
    assert words in warnings[0]


def test_a_script_of_this_python_is_preferred_to_one_of_another(prefix: Prefix, tmp_path: Path) -> None:
    target = tmp_path / "local" / "lib" / "site"
    info = prefix.add("vllm", "0.9.0", base=target)
    (info / "entry_points.txt").write_text("[console_scripts]\nvllm = vllm.cli:main\n")
    (info / "RECORD").write_text("../../bin/vllm,sha256=x,3\n")
    make_executable(tmp_path / "local" / "bin" / "vllm", script_text("vllm.cli", str(other_python(tmp_path))))
    own = script(prefix, script_text("vllm.cli", str(prefix.python)))
    prefix.environment["PYTHONPATH"] = str(target)
    assert prefix.inspect("serving").inspection["executable_path"] == own
