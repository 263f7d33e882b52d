# SPDX-License-Identifier: Apache-2.0
"""The inspector's file is read strictly: an image may have written it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_slurm_images.core.inspector_facts import FACTS_LIMIT, MAX_LISTED, read_inspector_facts


def facts_file(**changes: Any) -> bytes:
    document: dict[str, Any] = {
        "facts_version": 1,
        "inspector_version": "1.0.0",
        "kind": "client",
        "inspection": {"kind": "client"},
        "image": {"python_version": "3.12.1", "warnings": ["one"]},
        **changes,
    }
    return json.dumps({key: value for key, value in document.items() if value is not ...}).encode()


def test_a_facts_file_is_read() -> None:
    facts = read_inspector_facts(facts_file(), "client")
    assert facts.inspection == {"kind": "client"}
    assert facts.image == {"python_version": "3.12.1", "warnings": ["one"]}
    assert facts.inspector_version == "1.0.0"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b" " * (FACTS_LIMIT + 1), "limit"),
        (b"", "Expecting value"),
        (b"\xff", "decode"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "nested|Expecting"),
        (b'{"facts_version": NaN}', "NaN"),
        (b'{"facts_version": 1, "facts_version": 1}', "twice"),
        (b'{"facts_version": 1e999}', "JSON compliant"),
        (b'{"facts_version": ' + b"9" * 5000 + b"}", "limit"),
        (facts_file(facts_version=2), "facts_version"),
        (facts_file(facts_version=True), "facts_version"),
        (facts_file(facts_version="1"), "facts_version"),
        (facts_file(kind="serving"), "kind client"),
        (facts_file(kind=...), "kind"),
        (facts_file(inspection={"kind": "serving"}), "kind client"),
        (facts_file(inspection=None), "inspection"),
        (facts_file(image=[]), "image"),
        (facts_file(image=...), "image"),
        (facts_file(inspector_version=1), "inspector_version"),
        (facts_file(inspector_version="1\n"), "inspector_version"),
        (facts_file(error={"code": "x", "message": "y"}), "error"),
        (facts_file(image={"libc": "\ud800"}), "surrogates"),
        (facts_file(image={"libc": "a\0b"}), "image.libc"),
        (facts_file(image={"libc": "x" * 5000}), "image.libc"),
        (facts_file(image={"libc": 3}), "image.libc"),
        (facts_file(image={"python_version": "three"}), "image.python_version"),
        (facts_file(image={"warnings": ["x"] * (MAX_LISTED + 20)}), "image.warnings"),
        (facts_file(image={"warnings": [{"__type": "a.B", "__var": {}}]}), "image.warnings.0"),
        (facts_file(image={"distributions": [{"name": "a"}]}), "image.distributions.0.version"),
        (facts_file(image={"distributions": {"a": 1}}), "image.distributions"),
    ],
)
def test_another_facts_file_is_refused_with_the_reason(raw: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_inspector_facts(raw, "client")


def test_keys_the_inspector_does_not_write_go_no_further() -> None:
    hidden = {"__classname__": "airflow.sdk.Asset", "__version__": 1, "__data__": {"uri": "x"}}
    rows = [{"name": "a", "version": "1", **hidden}]
    image = {"architecture": "arm64", "x": hidden, **hidden, "distributions": rows}
    assert read_inspector_facts(facts_file(image=image), "client").image == {
        "distributions": [{"name": "a", "version": "1"}]
    }
