# SPDX-License-Identifier: Apache-2.0
"""What a verified manifest and config say about an image, read from the job's reduced form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_slurm_images.core.image_description import parse_description
from airflow_slurm_images.core.image_facts import static_facts

LAYER = {"digest": "sha256:" + "a" * 64, "size_bytes": 3, "media_type": "application/vnd.oci.image.layer.v1.tar+gzip"}


def test_all_facts_are_read() -> None:
    text = {"created": "2024-01-01T00:00:00Z", "user": "1000:1000", "labels": {"a": "b"}, "layers": [LAYER]}
    facts = parse_description(json.dumps(text | {"volumes": ["/data"], "exposed_ports": ["80/tcp"]}).encode())
    assert facts == {**text, "volumes": ["/data"], "exposed_ports": ["80/tcp"]}


def test_an_image_that_says_nothing_has_no_facts() -> None:
    facts = parse_description(b'{"created": null, "user": null, "labels": {}, "layers": []}')
    assert facts["labels"] == {} and facts["layers"] == [] and facts["user"] is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"labels": {"a": 1}}',
        json.dumps({"user": "u" * 5000}).encode(),
        json.dumps({"layers": [LAYER] * 257}).encode(),
        json.dumps({"layers": [{**LAYER, "digest": "sha256:../x"}]}).encode(),
    ],
)
def test_what_is_no_description_is_a_warning_not_a_failure(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_description(raw)
    warnings: list[Any] = static_facts({"oci-config": raw})["warnings"]
    assert bool(raw) == any(text.startswith("oci-config: ") for text in warnings)


def test_the_labels_of_the_config_stand_before_those_of_the_start_script() -> None:
    rc = b'# label from comment\n\nmkdir -p "/" 2> /dev/null\n'
    facts = static_facts({"rc": rc, "oci-config": b'{"labels": {"label": "as it is"}}'})
    assert facts["labels"] == {"label": "as it is"}
