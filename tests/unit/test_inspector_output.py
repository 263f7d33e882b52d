# SPDX-License-Identifier: Apache-2.0
"""How the inspector writes its file, what it refuses, and that hostile trees cost it little."""

from __future__ import annotations

import ast
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from airflow_slurm_images.cluster import inspect_image
from tests.unit.trees.interpreters import Interpreter
from tests.unit.trees.prefix import Prefix, client_prefix, metadata


@pytest.fixture
def prefix(tmp_path: Path, interpreter: Interpreter) -> Prefix:
    return client_prefix(tmp_path, interpreter)


@pytest.fixture
def inspector(monkeypatch: pytest.MonkeyPatch, prefix: Prefix) -> ModuleType:
    """The program as a module that sees the made-up environment."""
    monkeypatch.setattr(inspect_image, "IMPORT_PATH", (str(prefix.site),))
    return inspect_image


def test_the_file_is_private_whatever_the_umask(prefix: Prefix) -> None:
    old = os.umask(0)
    try:
        assert prefix.inspect().status == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE(prefix.output.stat().st_mode) == 0o600


def test_the_facts_go_through_a_pipe_whole(prefix: Prefix) -> None:
    for number in range(2000):  # more than a pipe holds at once
        (prefix.site / f"many{number}.egg-info").write_text(metadata(f"many{number}", "1"))
    os.mkfifo(prefix.output)
    with subprocess.Popen(["cat", str(prefix.output)], stdout=subprocess.PIPE) as reader:
        assert prefix.inspect().status == 0
        facts = json.loads(reader.communicate(timeout=60)[0])
    assert len(facts["inspection"]["distributions"]) == 2001


def test_a_link_at_the_destination_is_not_followed(prefix: Prefix, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    prefix.output.symlink_to(victim)
    outcome = prefix.inspect()
    assert outcome.status == 92
    assert "asi-inspect: error: output_failed:" in outcome.stderr
    assert victim.read_text() == "precious"


def test_a_directory_at_the_destination_is_a_clear_failure(prefix: Prefix) -> None:
    prefix.output.mkdir()
    outcome = prefix.inspect()
    assert (outcome.status, outcome.error_code) == (92, "output_failed")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--kind", "generic", "--output", "/x"],
        ["--kind", "client"],
        ["--kind", "client", "--output", "relative"],
    ],
)
def test_a_wrong_call_is_status_92(prefix: Prefix, arguments: list[str]) -> None:
    done = subprocess.run(
        [str(prefix.python), "-s", "-B", str(prefix.mount / "inspect_image.py"), *arguments],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 92
    assert "asi-inspect: error: usage: " in done.stderr


def test_a_fault_of_ours_is_told_with_its_line(prefix: Prefix) -> None:
    prefix.at_start("import os\ndel os.uname\n")
    outcome = prefix.inspect()
    assert outcome.status == 92
    assert outcome.error_code == "internal"
    assert "AttributeError at line " in outcome.stderr


def test_an_incomplete_standard_library_makes_enroot_rc_ask_the_next_python(prefix: Prefix) -> None:
    prefix.at_start("import sys\nsys.modules['json'] = None\n")
    outcome = prefix.inspect()
    assert outcome.status == 94
    assert "asi-inspect: error: python_incomplete:" in outcome.stderr
    assert outcome.facts == {}


def test_over_a_mebibyte_is_refused(inspector: ModuleType, prefix: Prefix, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(60):
        name = f"{number:03d}" + "n" * 125
        (prefix.site / f"{number}.egg-info").write_text(metadata(name, "1" * 128))
    inspector.MAX_FACTS_BYTES = 16 * 1024  # type: ignore[attr-defined]
    try:
        status = inspector.main(["--kind", "client", "--output", str(prefix.output), "--mount", str(prefix.mount)])
    finally:
        inspector.MAX_FACTS_BYTES = 1024 * 1024  # type: ignore[attr-defined]
    assert status == 91
    assert capsys.readouterr().err.startswith("asi-inspect: error: too_large: ")
    assert not prefix.output.exists()


def test_many_broken_distributions_stay_a_short_list(prefix: Prefix) -> None:
    for number in range(700):
        (prefix.site / f"x{number}.dist-info").mkdir()
    image = prefix.inspect().image
    assert len(image["unreadable_distributions"]) == 500
    assert image["warnings"] == ["200 more unreadable_distributions were left out"]


@pytest.mark.parametrize("limit", ["MAX_DIRECTORY_ENTRIES", "MAX_DISTRIBUTIONS"])
def test_too_many_entries_are_refused(
    inspector: ModuleType, prefix: Prefix, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(inspector, limit, 20)
    for number in range(30):
        (prefix.site / f"many{number}.egg-info").write_text(metadata(f"many{number}", "1"))
    with pytest.raises(inspect_image.Refused) as refused:
        inspector.installed_distributions(str(prefix.mount), inspector.Notes())
    assert refused.value.code == "too_large"


def test_too_many_distributions_over_several_directories_are_refused(
    inspector: ModuleType, prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspector, "MAX_DISTRIBUTIONS", 20)
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
        for number in range(15):
            (place / f"{place.name}{number}.egg-info").write_text(metadata(f"{place.name}{number}", "1"))
    monkeypatch.setattr(inspector, "IMPORT_PATH", tuple(str(place) for place in places))
    with pytest.raises(inspect_image.Refused):
        inspector.installed_distributions(str(prefix.mount), inspector.Notes())


@pytest.mark.slow
def test_a_hundred_thousand_distributions_are_refused(prefix: Prefix) -> None:
    for number in range(100_000):
        (prefix.site / f"d{number}.dist-info").mkdir()
    assert prefix.inspect().error_code == "too_large"


@pytest.mark.parametrize("headers", [b"Name: huge\nVersion: 7\n\n", b"Name: huge\nVersion: 7\n"])
def test_a_gigabyte_of_metadata_is_not_read(prefix: Prefix, headers: bytes) -> None:
    info = prefix.add("huge")
    for name in ("METADATA", "RECORD", "direct_url.json", "entry_points.txt"):
        with (info / name).open("wb") as target:
            target.write(headers)
            target.truncate(1 << 30)  # sparse: zeros from here on
    outcome = prefix.inspect()
    assert outcome.versions.get("huge", "7") == "7"


def test_pipes_and_devices_are_not_waited_for(prefix: Prefix) -> None:
    for name in ("piped-1.0.dist-info", "device-1.0.dist-info"):
        (prefix.site / name).mkdir()
    os.mkfifo(prefix.site / "piped-1.0.dist-info" / "METADATA")
    os.mkfifo(prefix.site / "pipe.egg-info")
    (prefix.site / "device-1.0.dist-info" / "METADATA").symlink_to("/dev/zero")
    outcome = prefix.inspect()
    reasons = {entry["directory"]: entry["reason"] for entry in outcome.image["unreadable_distributions"]}
    assert reasons["piped-1.0.dist-info"] == "METADATA: not a regular file"
    assert reasons["device-1.0.dist-info"] == "METADATA: not a regular file"
    assert "pipe.egg-info" in reasons


def test_names_that_are_no_text_are_reported_readably(prefix: Prefix) -> None:
    (prefix.site / os.fsdecode(b"bad\xff\n-1.0.dist-info")).mkdir()
    outcome = prefix.inspect()
    assert outcome.image["unreadable_distributions"][0]["directory"] == "bad\\udcff\\x0a-1.0.dist-info"
    json.dumps(outcome.facts, ensure_ascii=False).encode("utf-8")


def test_entries_of_sys_path_that_are_no_text_are_passed_over(prefix: Prefix) -> None:
    prefix.at_start("import pathlib, sys\nsys.path += [pathlib.Path('/x'), b'/x', None, 3, '/x\\0y']\n")
    outcome = prefix.inspect()
    assert outcome.versions == {"pip": "24.0"}
    assert outcome.image["warnings"] == []


def test_a_directory_that_may_not_be_listed_is_a_warning(
    inspector: ModuleType, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    notes = inspector.Notes()
    assert inspector.installed_distributions(str(prefix.mount), notes) == {}
    assert notes.lists["warnings"] == [f"cannot list {prefix.site} of sys.path: Permission denied"]


def test_metadata_that_may_not_be_read_is_listed(
    inspector: ModuleType, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, _limit: int) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(inspector, "read_regular", refuse)
    notes = inspector.Notes()
    assert inspector.installed_distributions(str(prefix.mount), notes) == {}
    assert notes.lists["unreadable_distributions"][0]["reason"] == "METADATA: Permission denied"


def test_output_of_the_image_s_own_start_up_code_does_not_matter(prefix: Prefix) -> None:
    prefix.at_start("print('noise')\nimport sys\nsys.stderr.write('more noise\\n')\n")
    assert prefix.inspect().versions == {"pip": "24.0"}


def test_the_program_leaves_no_bytecode_and_no_change_in_the_environment(prefix: Prefix) -> None:
    before = sorted(str(path) for path in prefix.root.rglob("*"))
    prefix.inspect()
    assert sorted(str(path) for path in prefix.root.rglob("*")) == before


def test_importing_the_program_changes_nothing() -> None:
    code = "import sys; before = list(sys.path); import inspect_image; sys.exit(before != sys.path)"
    directory = Path(inspect_image.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=directory, timeout=60)
    assert done.returncode == 0


def test_text_made_to_be_slow_to_search_is_read_in_passing(prefix: Prefix) -> None:
    info = prefix.add("vllm", scripts=("vllm",))
    shutil.rmtree(prefix.site / "pip")
    (info / "RECORD").write_bytes(b"\n" * (40 << 20) + b'"' * (8 << 20))
    (info / "entry_points.txt").write_bytes(b"[console_scripts]\n" + b"vllm = vllm.cli:main\n" + b" \n" * 300_000)
    (prefix.root / "bin" / "vllm").write_bytes(b"#!/bin/sh\n" + b"\n \t" * 100_000)
    assert prefix.inspect("serving").error_code == "script_missing"


def test_the_program_is_valid_python_3_8() -> None:
    ast.parse(Path(inspect_image.__file__).read_text(), feature_version=(3, 8))


def test_only_the_standard_library_is_imported() -> None:
    source = Path(inspect_image.__file__).read_text()
    imported = {
        line.split()[1].partition(".")[0]
        for line in source.splitlines()
        if line.lstrip().startswith(("import ", "from "))
    }
    assert imported - {"__future__"} <= set(sys.stdlib_module_names)
