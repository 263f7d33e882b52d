# SPDX-License-Identifier: Apache-2.0
"""The inspector on made-up environments: the interpreter's facts and which distributions count."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from airflow_slurm_images.core.inspector_facts import read_inspector_facts
from airflow_slurm_images.core.records import Inspection
from tests.unit.trees.interpreters import Interpreter
from tests.unit.trees.prefix import Prefix, client_prefix, metadata


@pytest.fixture
def prefix(tmp_path: Path, interpreter: Interpreter) -> Prefix:
    return client_prefix(tmp_path, interpreter)


def break_distributions(site: Path) -> dict[str, str]:
    """Leave one of each kind of broken metadata; returns directory name -> a word of the expected reason."""
    contents: dict[str, tuple[bytes | None, str]] = {
        "no_metadata-1.0.dist-info": (None, "no METADATA"),
        "no_name-1.0.dist-info": (b"Metadata-Version: 2.1\nVersion: 1.0\n\n", "no Name"),
        "empty_name-1.0.dist-info": (b"Name: \nVersion: 1.0\n\n", "no Name"),
        "none_name-1.0.dist-info": (b"Name: None\nVersion: 1.0\n\n", "no Name"),
        "no_version-1.0.dist-info": (b"Metadata-Version: 2.1\nName: no-version\n\n", "no Version"),
        "empty-1.0.dist-info": (b"", "no Name"),
        "latin-1.0.dist-info": (b"Name: caf\xe9\nVersion: 1.0\n\n", "not UTF-8"),
        "binary-1.0.dist-info": (b"\xff\xfe\x00\x01" * 64, "not UTF-8"),
        "bad_name-1.0.dist-info": (b"Name: ../etc/passwd\nVersion: 1.0\n\n", "not a distribution name"),
        "bad_version-1.0.dist-info": (b"Name: bad-version\nVersion: 1\x1b[2J\n\n", "Version"),
        "long_version-1.0.dist-info": (b"Name: long-version\nVersion: " + b"1" * 129 + b"\n\n", "Version"),
        "~alf-1.0.dist-info": (b"Name: half\nVersion: 1.0\n\n", "interrupted pip"),
    }
    for name, (raw, _reason) in contents.items():
        (site / name).mkdir()
        if raw is not None:
            (site / name / "METADATA").write_bytes(raw)
    (site / "loop-1.0.dist-info").symlink_to("loop-1.0.dist-info")
    (site / "nowhere-1.0.dist-info").symlink_to("/nonexistent/place")
    (site / "loop_inside-1.0.dist-info").mkdir()
    (site / "loop_inside-1.0.dist-info" / "METADATA").symlink_to("METADATA")
    (site / "directory-1.0.dist-info" / "METADATA").mkdir(parents=True)
    reasons = {name: reason for name, (_raw, reason) in contents.items()}
    return reasons | {
        "loop-1.0.dist-info": "loop",
        "nowhere-1.0.dist-info": "link to nowhere",
        "loop_inside-1.0.dist-info": "loop",
        "directory-1.0.dist-info": "METADATA:",
    }


def test_every_kind_of_metadata(tmp_path: Path, interpreter: Interpreter) -> None:
    prefix = client_prefix(tmp_path, interpreter)
    prefix.add("Zope.Interface_thing", "6.0", base=prefix.site)
    prefix.add("torch", "2.4.0+cu121")
    (prefix.site / "old-0.1.egg-info").write_text(metadata("old", "0.1"))
    (prefix.site / "older-0.2.egg-info").mkdir()
    (prefix.site / "older-0.2.egg-info" / "PKG-INFO").write_text(metadata("older", "0.2"))
    broken = break_distributions(prefix.site)
    outcome = prefix.inspect()
    assert outcome.versions == {
        "old": "0.1",
        "older": "0.2",
        "pip": "24.0",
        "torch": "2.4.0+cu121",
        "zope-interface-thing": "6.0",
    }
    unreadable = {entry["directory"]: entry for entry in outcome.image["unreadable_distributions"]}
    assert set(unreadable) == set(broken)
    for name, reason in broken.items():
        assert reason in unreadable[name]["reason"], name
        assert unreadable[name]["path"] == str(prefix.site / name)


def test_interpreter_facts(tmp_path: Path, interpreter: Interpreter) -> None:
    prefix = client_prefix(tmp_path, interpreter)
    outcome = prefix.inspect()
    inspection = outcome.inspection
    assert list(inspection) == sorted(inspection)
    assert inspection["python_implementation"] == "cpython"
    assert inspection["python_version"].startswith(interpreter.name + ".")
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", inspection["python_version"])
    assert inspection["python_abi"] == "cp3" + interpreter.name.partition(".")[2]
    assert inspection["installer_path"] == str((prefix.root / "bin" / "pip").resolve())
    assert inspection["installer_version"] == "24.0"
    assert outcome.image["python_executable"] == str(prefix.python)
    assert outcome.image["python_prefix"] == str(prefix.root)
    assert outcome.image["python_version"] == interpreter.full_version
    assert outcome.image["python_path_env"] is None
    assert outcome.image["warnings"] == []


@pytest.mark.parametrize("kind", ["client", "serving"])
def test_the_value_is_read_strictly_by_the_records(tmp_path: Path, interpreter: Interpreter, kind: str) -> None:
    prefix = client_prefix(tmp_path, interpreter)
    prefix.add("vllm", "0.33.0", scripts=("vllm",))
    outcome = prefix.inspect(kind)
    facts = read_inspector_facts(prefix.output.read_bytes(), kind)
    assert facts.inspection == outcome.inspection
    adapter: TypeAdapter[object] = TypeAdapter(Inspection)
    value = adapter.validate_json(json.dumps(outcome.inspection), strict=True)
    assert json.loads(adapter.dump_json(value)) == outcome.inspection


def test_a_pre_release_is_split_between_inspection_and_image(prefix: Prefix) -> None:
    prefix.at_start(
        "import sys\n"
        "class V(tuple):\n    major, minor, micro = 3, 14, 0\n"
        "sys.version_info = V((3, 14, 0, 'candidate', 1))\n"
        "sys.version = '3.14.0rc1 (main, Jan  1 2030) [GCC]'\n"
    )
    outcome = prefix.inspect()
    assert outcome.inspection["python_version"] == "3.14.0"
    assert outcome.image["python_version"] == "3.14.0rc1"


def test_the_first_directory_of_sys_path_wins(prefix: Prefix, tmp_path: Path) -> None:
    first = tmp_path / "first"
    prefix.add("torch", "1.0")
    prefix.add("torch", "2.0", base=first)
    prefix.environment["PYTHONPATH"] = str(first)
    outcome = prefix.inspect()
    assert outcome.versions["torch"] == "2.0"
    assert outcome.image["shadowed_distributions"] == [
        {"name": "torch", "version": "1.0", "path": str(prefix.site / "torch-1.0.dist-info")}
    ]
    assert outcome.image["python_path_env"] == str(first)


@pytest.mark.parametrize("in_place", ["1.0", "2.0"])
def test_of_two_in_one_directory_the_code_in_place_decides(prefix: Prefix, in_place: str) -> None:
    for version in sorted(["1.0", "2.0"], key=lambda one: one == in_place):
        prefix.add("torch", version)
    assert prefix.inspect().versions["torch"] == in_place


def test_of_two_in_one_directory_without_record_the_newer_version_counts(prefix: Prefix) -> None:
    for version in ("9.0", "10.0", "10.0rc1"):
        (prefix.add("torch", version) / "RECORD").unlink()
    outcome = prefix.inspect()
    assert outcome.versions["torch"] == "10.0"
    assert {entry["version"] for entry in outcome.image["shadowed_distributions"]} == {"9.0", "10.0rc1"}


def test_one_directory_under_two_names_shadows_nothing(prefix: Prefix, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(prefix.site)
    prefix.environment["PYTHONPATH"] = str(tmp_path / "alias")
    outcome = prefix.inspect()
    assert list(outcome.versions) == ["pip"]
    assert outcome.image["shadowed_distributions"] == []


def test_home_and_host_values_never_leak_in(prefix: Prefix, tmp_path: Path) -> None:
    user_site = tmp_path / "home" / ".local" / "lib" / f"python{prefix.interpreter.name}" / "site-packages"
    prefix.add("vllm", "0.0.1", base=user_site)
    prefix.environment["HOME"] = str(tmp_path / "home")
    assert "vllm" not in prefix.inspect().versions


@pytest.mark.parametrize("safe_path", [False, True])
def test_the_mounted_directory_is_no_part_of_the_image(prefix: Prefix, safe_path: bool) -> None:
    prefix.add("planted", base=prefix.mount)
    prefix.add("planted-too", base=prefix.mount / "out")
    prefix.environment["PYTHONPATH"] = f"{prefix.mount / 'out'}:{prefix.mount}"
    if safe_path:
        prefix.environment["PYTHONSAFEPATH"] = "1"
    assert list(prefix.inspect().versions) == ["pip"]


def test_modules_of_the_image_do_not_replace_the_standard_library(prefix: Prefix, tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    for module in ("json", "getopt", "zipfile", "select"):
        (shadow / f"{module}.py").write_text("raise SystemExit('from the image')\n")
    prefix.environment["PYTHONPATH"] = str(shadow)
    assert prefix.inspect().versions == {"pip": "24.0"}


def test_directories_of_sys_path_that_cannot_be_used_are_no_failure(prefix: Prefix, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("no directory")
    paths = [tmp_path / "missing", tmp_path / "loop", tmp_path / "file"]
    prefix.environment["PYTHONPATH"] = ":".join(str(path) for path in paths)
    outcome = prefix.inspect()
    assert outcome.versions == {"pip": "24.0"}
    assert outcome.image["warnings"] == [
        f"cannot look into {tmp_path / 'loop'} of sys.path: symbolic links form a loop"
    ]


def test_a_wheel_or_egg_file_on_sys_path_is_read(prefix: Prefix, tmp_path: Path) -> None:
    for archive, member in (("w.whl", "zipped-1.0.dist-info/METADATA"), ("e.egg", "EGG-INFO/PKG-INFO")):
        with zipfile.ZipFile(tmp_path / archive, "w") as target:
            target.writestr(member, metadata(f"zipped-{archive[0]}", "1.0"))
    with zipfile.ZipFile(tmp_path / "mixed.whl", "w") as target:
        target.writestr("a_nameless-1.0.dist-info/METADATA", "Version: 1.0\n\n")
        target.writestr("b_named-1.0.dist-info/METADATA", metadata("b-named", "1.0"))
    (tmp_path / "bad.egg").write_bytes(b"PK\x05\x06" + b"\xff" * 18)
    archives = ("w.whl", "e.egg", "bad.egg", "mixed.whl")
    prefix.environment["PYTHONPATH"] = ":".join(str(tmp_path / name) for name in archives)
    outcome = prefix.inspect()
    assert outcome.versions == {"b-named": "1.0", "pip": "24.0", "zipped-e": "1.0", "zipped-w": "1.0"}
    unreadable = [entry["directory"] for entry in outcome.image["unreadable_distributions"]]
    assert set(unreadable) - {"bad.egg"} == {"a_nameless-1.0.dist-info"}


def test_an_unpacked_egg_is_read(prefix: Prefix) -> None:
    egg = prefix.site / "unpacked-1.0.egg"
    (egg / "EGG-INFO").mkdir(parents=True)
    (egg / "EGG-INFO" / "PKG-INFO").write_text(metadata("unpacked", "1.0"))
    (prefix.site / "easy-install.pth").write_text("./unpacked-1.0.egg\n")
    assert prefix.inspect().versions["unpacked"] == "1.0"


def test_editable_installs_are_found_and_reported(prefix: Prefix, tmp_path: Path) -> None:
    info = prefix.add("modern", "1.0")
    (info / "direct_url.json").write_text('{"url": "file:///src/modern", "dir_info": {"editable": true}}')
    (prefix.site / "__editable__.modern-1.0.pth").write_text("/src/modern\n")
    source = tmp_path / "source"
    (source / "develop.egg-info").mkdir(parents=True)
    (source / "develop.egg-info" / "PKG-INFO").write_text(metadata("develop", "2.0"))
    (prefix.site / "develop.egg-link").write_text(f"{source}\n.")
    (prefix.site / "easy-install.pth").write_text(f"{source}\n")
    (prefix.site / "stray.egg-link").write_text("/nonexistent/source\n.")
    outcome = prefix.inspect()
    assert outcome.versions == {"develop": "2.0", "modern": "1.0", "pip": "24.0"}
    assert outcome.image["editable_distributions"] == [{"name": "modern", "source": "file:///src/modern"}]
    assert [entry["directory"] for entry in outcome.image["unreadable_distributions"]] == ["stray.egg-link"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"x"', '{"dir_info": 3}', '{"dir_info": {"editable": true}}', "[" * 9000]
)
def test_a_broken_direct_url_is_ignored(prefix: Prefix, text: str) -> None:
    (prefix.add("modern") / "direct_url.json").write_text(text)
    outcome = prefix.inspect()
    assert outcome.versions["modern"] == "1.0"
    assert outcome.image["editable_distributions"] == []


def test_a_byte_order_mark_and_windows_line_ends_are_read(prefix: Prefix) -> None:
    info = prefix.add("windows")
    (info / "METADATA").write_bytes(b"\xef\xbb\xbfName: Windows\r\nVersion: 3.0\r\n\r\nName: other\r\n")
    assert prefix.inspect().versions["windows"] == "3.0"


def test_the_description_may_hold_any_bytes_and_headers_repeat(prefix: Prefix) -> None:
    info = prefix.add("odd")
    (info / "METADATA").write_bytes(b"Name: odd\nName: other\nVersion: 1\n continued\n\n\xff\xfe caf\xe9\n")
    assert prefix.inspect().versions["odd"] == "1"
