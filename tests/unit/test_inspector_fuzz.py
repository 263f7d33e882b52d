# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in the files of an image: the inspector answers with facts or a reason."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from airflow_slurm_images.cluster import inspect_image as inspector
from airflow_slurm_images.core.inspector_facts import read_inspector_facts
from tests.unit.trees.interpreters import running
from tests.unit.trees.prefix import client_prefix

from .fuzzing import twice

HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["Name", "Version", "name", "VERSION", "Metadata-Version", "", " Name", "Näme"]),
        st.sampled_from([":", ": ", "", "::", ":\t"]),
        st.one_of(st.text(max_size=20), st.sampled_from(["torch", "1.0", "Zope.Interface", "None", "-", "a" * 200])),
        st.sampled_from(["\n", "\r\n", "\n\n", "\r"]),
    ).map("".join),
    max_size=8,
).map(lambda lines: "".join(lines).encode("utf-8", "surrogatepass"))


@contextmanager
def a_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@twice(60, st.one_of(st.binary(max_size=300), HEADERS))
def test_metadata_is_a_valid_distribution_or_unreadable(raw: bytes) -> None:
    try:
        found = inspector.parse_metadata(raw, "/info", "/base")
    except inspector.Unreadable as error:
        assert str(error).isprintable()
        return
    assert inspector.NAME_PATTERN.fullmatch(found.name)
    assert 1 <= len(found.name) <= 128
    assert 1 <= len(found.version) <= 128
    json.dumps(found.as_json(), ensure_ascii=False).encode("utf-8")


@twice(
    60,
    st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,30}[A-Za-z0-9])?", fullmatch=True),
    st.from_regex(r"[0-9][0-9a-z.+!]{0,20}", fullmatch=True),
)
def test_valid_names_come_out_canonical(name: str, version: str) -> None:
    found = inspector.parse_metadata(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n".encode(), "/i", "/b"
    )
    assert found.name == inspector.canonical(found.name)
    assert found.version == version


@twice(60, st.one_of(st.binary(max_size=300), st.text('",\n/.vllmbin=', max_size=80).map(str.encode)))
def test_any_record_and_entry_points_end_in_a_path_or_nothing(raw: bytes) -> None:
    with a_directory() as base:
        info = base / "vllm-1.0.dist-info"
        info.mkdir()
        for name in ("RECORD", "installed-files.txt", "entry_points.txt", "direct_url.json"):
            (info / name).write_bytes(raw)
        distribution = inspector.Distribution("vllm", "1.0", str(info), str(base))
        for fields in inspector.recorded_files(str(info), "RECORD"):
            assert [type(field) for field in fields] == [str, str, str]
        inspector.own_script(distribution, "vllm", "/nonexistent", inspector.Notes())
        assert inspector.by_code_in_place([distribution, distribution]) == [distribution, distribution]
        inspector.note_editable(distribution, inspector.Notes())


@twice(60, st.lists(st.tuples(st.text('abc/," ', min_size=1, max_size=12), st.text("abc=", max_size=8))))
def test_record_lines_are_read_as_csv_wrote_them(rows: list[tuple[str, str]]) -> None:
    import csv

    with a_directory() as info:
        with (info / "RECORD").open("w", newline="") as target:
            csv.writer(target, lineterminator="\n").writerows([*((path, digest, "1") for path, digest in rows)])
        assert list(inspector.recorded_files(str(info), "RECORD")) == [(path, digest, "1") for path, digest in rows]


@twice(60, st.lists(st.text("0123456789.abrcdevpost+-", max_size=12)))
def test_any_versions_can_be_ordered(versions: list[str]) -> None:
    keys = [inspector.version_key(version) for version in versions]
    assert sorted(keys) == sorted(keys, reverse=True)[::-1]


@twice(60, st.text(st.characters(exclude_categories=())))
def test_clipped_text_is_one_short_line_of_valid_unicode(text: str) -> None:
    clipped = inspector.clip(text, 40)
    clipped.encode("utf-8")
    assert clipped.isprintable()
    assert len(clipped) <= 43


LINES = st.sampled_from(
    [
        *("home = /usr/bin", "home = /nonexistent", "home=", "home", "= x", "HOME = /x", "home = /usr/bin\0"),
        *("include-system-site-packages = true", "include-system-site-packages = \udcff", "version = 3.99", "x" * 3000),
        *("executable = /bin/false", "base-prefix = /", "\x1b[2J", "[section]", "# comment"),
    ]
)


@twice(4, st.lists(LINES, max_size=4))
def test_whatever_stands_in_pyvenv_cfg_gives_facts_or_a_reason(lines: list[str]) -> None:
    with a_directory() as place:
        prefix = client_prefix(place, running())
        (prefix.root / "pyvenv.cfg").write_text("\n".join(lines), errors="surrogateescape")
        outcome = prefix.inspect()
        if outcome.status == 0:
            read_inspector_facts(prefix.output.read_bytes(), "client")
        else:  # without a home it is another environment; the interpreter itself may refuse the file
            assert outcome.facts == {}
            assert outcome.stderr
