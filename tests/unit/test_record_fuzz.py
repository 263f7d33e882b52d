# SPDX-License-Identifier: Apache-2.0
"""Whatever an image puts into its facts and its files: a sound record, or a refusal that says why."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from airflow_slurm_images.core import image_record
from airflow_slurm_images.core.errors import JobFailedError
from airflow_slurm_images.core.fields import plain_json
from airflow_slurm_images.core.records import ClientInspection, ImageRecord

from . import records
from .fuzzing import twice

CLIENT: dict[str, Any] = {
    "facts_version": 1,
    "inspector_version": "1.0.0",
    "kind": "client",
    "inspection": {
        "kind": "client",
        "python_implementation": "cpython",
        "python_version": "3.12.1",
        "python_abi": "cp312",
        "distributions": [{"name": "a", "version": "1"}, {"name": "torch", "version": "2.4"}],
        "installer_path": "/usr/bin/pip",
        "installer_version": "24.0",
    },
    "image": {
        "python_executable": "/usr/bin/python3",
        "python_version": "3.12.1",
        "machine": "x86_64",
        "libc": None,
        "shadowed_distributions": [{"name": "a", "version": "0", "path": "/x"}],
        "unreadable_distributions": [{"directory": "b", "path": "/b", "reason": "why"}],
        "editable_distributions": [{"name": "a", "source": "file:///x"}],
        "warnings": ["careful"],
    },
}
ODD_TEXT = st.sampled_from(
    [
        *("", "\0", "a\nb", "\x1b[2J", "x" * 5000, "../..", "/a/../b", "//a", "é", "\u2028", "A_b", "None", "3.13.0+"),
        *("__classname__", "__type", "kind", "serving", "9" * 400 + ".0.0", "1.0.0\n", "٣.١.٠", "-", "a-", "1e999"),
    ]
)
LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), ODD_TEXT, st.integers(10**30, 10**40)
)
VALUE = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT | st.sampled_from(sorted(CLIENT)), inner, max_size=3)
    ),
    max_leaves=5,
)
PLACES = [
    *((key,) for key in CLIENT),
    *(("inspection", key) for key in CLIENT["inspection"]),
    *(("image", key) for key in CLIENT["image"]),
    *(("inspection", "distributions", index, key) for index in (0, 1) for key in ("name", "version")),
    *(("image", key, 0) for key in CLIENT["image"] if isinstance(CLIENT["image"][key], list)),
    *((part, "added") for part in ("inspection", "image")),
    ("added",),
    ("image", "distributions"),
]
STATIC = st.dictionaries(
    st.sampled_from(["superblock", "elf", "os-release", "environment", "rc", "oci-config", "dpkg-count"]),
    st.one_of(
        st.binary(max_size=100),
        st.builds("{}={}\n".format, ODD_TEXT, ODD_TEXT).map(str.encode),
        st.builds("# {} {}\n".format, ODD_TEXT, ODD_TEXT).map(str.encode),
        st.builds(
            lambda key, value: json.dumps({"labels": {key: value}, "user": value, "created": key}).encode(),
            ODD_TEXT,
            ODD_TEXT,
        ),
    ),
    max_size=4,
)


@twice(100, st.lists(st.tuples(st.sampled_from(PLACES), VALUE), min_size=1, max_size=3), STATIC)
def test_changed_facts_make_a_sound_record_or_are_refused(
    changes: list[tuple[tuple[Any, ...], Any]], static: dict[str, bytes]
) -> None:
    facts = copy.deepcopy(CLIENT)
    for place, value in changes:
        holder: Any = facts
        try:
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = value
        except (TypeError, LookupError):
            continue
    check(json.dumps(facts).encode(), static)


@twice(100, st.binary(max_size=200) | VALUE.map(lambda value: json.dumps(value).encode()), STATIC)
def test_any_facts_are_refused_with_a_reason(raw: bytes, static: dict[str, bytes]) -> None:
    check(raw, static)


def check(raw: bytes, static: dict[str, bytes]) -> None:
    plan = records.plan(records.import_request(required_distributions=['torch; python_full_version >= "3"']))
    try:
        record = image_record.assemble(plan, records.completion(), raw, static)
    except JobFailedError as error:
        assert error.reason in ("facts_invalid", "distributions_missing", "architecture_mismatch")
        return
    found = record.inspection.inspection
    assert isinstance(found, ClientInspection)
    names = [item.name for item in found.distributions]
    assert names == sorted(set(names))
    assert record.inspection.sqsh_sha256 == records.SQSH
    written = image_record.to_json(record)
    assert plain_json(json.loads(written)) == json.loads(written)
    assert b"Infinity" not in written and b"NaN" not in written
    assert ImageRecord.model_validate_json(written) == record
    json.dumps(json.loads(written), ensure_ascii=False).encode("utf-8")
