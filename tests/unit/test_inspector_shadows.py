# SPDX-License-Identifier: Apache-2.0
"""Which metadata describes the code that an import loads: duplicates, shadows, archives, relative directories."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from airflow_slurm_images.cluster import inspect_image
from tests.unit.trees.interpreters import Interpreter
from tests.unit.trees.prefix import Prefix, client_prefix, metadata, record_line


@pytest.fixture
def prefix(tmp_path: Path, interpreter: Interpreter) -> Prefix:
    return client_prefix(tmp_path, interpreter)


def installed_twice(prefix: Prefix, in_place: dict[str, str], old: dict[str, str]) -> None:
    """Leave foo 2.0, whose files were `old`, behind foo 1.0, whose files are in place."""
    for version, files in (("2.0", old), ("1.0", in_place)):
        lines = []
        for name, text in files.items():
            path = prefix.site / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            lines.append(record_line(prefix.site, path))
        info = prefix.site / f"foo-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(metadata("foo", version))
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/METADATA,sha256=x,3", ""]))


SAME = {f"foo/a{number:02}.py": f"x = {number}\n" for number in range(20)}


@pytest.mark.parametrize(
    ("in_place", "old"),
    [
        ({**SAME, "foo/version.py": "1.0"}, {**SAME, "foo/version.py": "2.0"}),
        ({**SAME, "foo/core.so": "native 1.0"}, {**SAME, "foo/core.so": "native 2.0"}),
        # what only the old one had is still there, as a removal that failed leaves it
        ({"foo/version.py": "1.0"}, {**SAME, "foo/version.py": "2.0"}),
        ({**SAME, "foo/old.py": "1.0"}, {"foo/a00.py": "other"}),
    ],
    ids=["after many equal files", "not Python", "more files of the other", "fewer files of the other"],
)
def test_duplicates_are_told_apart_by_the_files_that_differ(
    prefix: Prefix, in_place: dict[str, str], old: dict[str, str]
) -> None:
    installed_twice(prefix, in_place, old)
    outcome = prefix.inspect()
    assert outcome.versions["foo"] == "1.0"
    assert [entry["version"] for entry in outcome.image["shadowed_distributions"]] == ["2.0"]


def test_of_thousands_of_duplicates_only_some_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def recorded_files(info: str, *_rest: object) -> list[tuple[str, str, str]]:
        read.append(info)
        return []

    monkeypatch.setattr(inspect_image, "recorded_files", recorded_files)
    many = [inspect_image.Distribution("foo", str(number), str(number), str(tmp_path)) for number in range(1000)]
    assert inspect_image.by_code_in_place(many)[0].version == "999"
    assert len(read) < 20


def checkout(place: Path, name: str, file: str) -> Path:
    """Put code without metadata into a directory."""
    path = place / name / file
    path.parent.mkdir(parents=True)
    path.write_text("")
    return place / name


def test_code_without_metadata_in_front_is_warned_of(prefix: Prefix, tmp_path: Path) -> None:
    prefix.add("vllm", "0.9.0", scripts=("vllm",))
    code = checkout(tmp_path / "workspace", "vllm", "__init__.py")
    prefix.environment["PYTHONPATH"] = str(code.parent)
    assert prefix.inspect("serving").image["warnings"] == [
        f"an import finds {code}, which is not that distribution's code, before vllm 0.9.0 of {prefix.site}"
    ]


@pytest.mark.parametrize("name", ["foo_bar.py", "foo_bar.cpython-311-x86_64-linux-gnu.so"])
def test_a_module_file_in_front_is_warned_of(prefix: Prefix, tmp_path: Path, name: str) -> None:
    prefix.add("foo-bar", "1.0")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / name).write_text("")
    prefix.environment["PYTHONPATH"] = str(tmp_path / "first")
    assert len(prefix.inspect().image["warnings"]) == 1


def test_what_an_import_does_not_take_is_not_warned_of(prefix: Prefix, tmp_path: Path) -> None:
    """A part of a namespace, a file of that name, the tree of an editable install, a directory behind."""
    for name in ("spaced", "data", "edited"):
        prefix.add(name)
    checkout(tmp_path / "first", "spaced", "part.py")
    (tmp_path / "first" / "data.json").write_text("")
    tree = checkout(tmp_path / "first", "edited", "__init__.py").parent
    url = prefix.site / "edited-1.0.dist-info" / "direct_url.json"
    url.write_text(f'{{"url": "file://{tree}", "dir_info": {{"editable": true}}}}')
    checkout(tmp_path / "behind", "pip", "__init__.py")
    (prefix.site / "behind.pth").write_text(f"{tmp_path / 'behind'}\n")
    prefix.environment["PYTHONPATH"] = str(tmp_path / "first")
    assert prefix.inspect().image["warnings"] == []


def test_broken_metadata_in_front_is_warned_of(prefix: Prefix, tmp_path: Path) -> None:
    prefix.add("foo-bar", "1.0")
    broken = prefix.add("foo-bar", "2.0", base=tmp_path / "first")
    (broken / "METADATA").unlink()
    prefix.environment["PYTHONPATH"] = str(tmp_path / "first")
    outcome = prefix.inspect()
    assert outcome.versions["foo-bar"] == "1.0"
    assert outcome.image["warnings"] == [
        f"{broken} comes before foo-bar 1.0 of {prefix.site} in sys.path, but cannot be read",
        f"an import finds {tmp_path / 'first' / 'foo_bar'}, which is not that distribution's code, "
        f"before foo-bar 1.0 of {prefix.site}",
    ]


def test_a_damaged_member_does_not_hide_the_rest_of_an_archive(prefix: Prefix, tmp_path: Path) -> None:
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for name in ("first", "damaged", "last"):
            target.writestr(f"{name}-1.0.dist-info/METADATA", metadata(name, "1.0"))
    archive.write_bytes(archive.read_bytes().replace(b"Name: damaged", b"Name: DAMAGED", 1))
    prefix.environment["PYTHONPATH"] = str(archive)
    outcome = prefix.inspect()
    assert set(outcome.versions) == {"first", "last", "pip"}
    assert [one["directory"] for one in outcome.image["unreadable_distributions"]] == ["damaged-1.0.dist-info"]


def test_an_archive_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "large.zip"
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("large-1.0.dist-info/METADATA", metadata("large", "1.0"))
        target.writestr("blob", bytes(inspect_image.MIB))
    monkeypatch.setattr(inspect_image, "MAX_ARCHIVE_BYTES", inspect_image.MIB)
    notes = inspect_image.Notes()
    assert list(inspect_image.scan_archive(str(archive), notes)) == []
    assert notes.lists["unreadable_distributions"] == [
        {"directory": "large.zip", "path": str(archive), "reason": "the archive has more than 1 MiB"}
    ]


@pytest.mark.parametrize("value", [".", "lib:/opt", ":/opt", "/opt:"])
def test_relative_entries_of_pythonpath_are_warned_of(prefix: Prefix, value: str) -> None:
    prefix.environment["PYTHONPATH"] = value
    assert prefix.inspect().image["warnings"] == [
        f"PYTHONPATH has relative or empty entries, which were looked for in /: {value}"
    ]


@pytest.mark.parametrize("value", ["", "/opt/a:/opt/b"])
def test_an_absolute_pythonpath_is_not_warned_of(prefix: Prefix, value: str) -> None:
    prefix.environment["PYTHONPATH"] = value
    assert prefix.inspect().image["warnings"] == []


def test_pythons_that_cannot_be_used_are_warned_of(prefix: Prefix) -> None:
    words = "/opt/venv/bin/python3 -> /root/python3.12 which does not exist"
    assert prefix.inspect("client", "--unusable", words).image["warnings"] == [
        f"before {prefix.python} come, and cannot be used: {words}"
    ]
