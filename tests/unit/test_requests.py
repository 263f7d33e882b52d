# SPDX-License-Identifier: Apache-2.0
"""What authors may ask for, and how they learn what was wrong: field, value, rule, remedy."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_slurm_images.core.errors import InvalidRequestError

from . import records


def test_rendered_templates_are_read_leniently() -> None:
    request = records.import_request(
        name=" tool ", kind="client ", arch="", required_distributions="torch >= 2\n\n numpy \n"
    )
    assert (request.name, request.kind, request.arch) == ("tool", "client", None)
    assert request.required_distributions == ("torch>=2", "numpy")
    assert records.import_request(required_distributions=["a", "b==1"]).required_distributions == ("a", "b==1")
    assert records.import_request(name=7).name == "7"


@pytest.mark.parametrize("nothing", [None, "", (), []])
def test_no_required_distributions_in_any_spelling(nothing: Any) -> None:
    assert records.import_request(required_distributions=nothing).required_distributions == ()


@pytest.mark.parametrize(("given", "node"), [("amd64", "x86_64"), ("arm64", "aarch64"), ("x86_64", "x86_64")])
def test_architectures_are_given_to_enroot_by_its_own_names(given: str, node: str) -> None:
    assert records.import_request(arch=given).arch == node


@pytest.mark.parametrize(("given", "value"), [("true", True), ("1", True), ("no", False), ("", False), (True, True)])
def test_flags_may_be_rendered_text(given: Any, value: bool) -> None:
    assert records.inspect_request(name="x", copy_to_store=given).copy_to_store is value


def test_the_image_is_kept_in_its_canonical_form() -> None:
    request = records.import_request(image=f"index.docker.io/ubuntu:24.04@{records.OCI}")
    assert request.reference.enroot_uri == "docker://registry-1.docker.io#library/ubuntu:" + records.OCI
    assert request.reference.tag == "24.04"


BAD_IMPORTS: list[tuple[str, Any]] = [
    ("image", "reg.example/a/b:1"),
    ("image", f"https://reg.example/a@{records.OCI}"),
    ("image", f"ann:pw@reg.example/a@{records.OCI}"),
    ("image", f" reg.example/a@{records.OCI}"),
    ("image", None),
    ("image", {"a": 1}),
    ("name", ""),
    ("name", "../x"),
    ("name", "a/b"),
    ("name", ".hidden"),
    ("name", "x" * 129),
    ("name", "a\nb"),
    ("name", None),
    ("name", True),
    ("kind", "python"),
    ("kind", None),
    ("arch", "x86-64; id"),
    ("arch", 5.5),
    ("required_distributions", ["not a requirement!"]),
    ("required_distributions", ["pkg @ https://evil.example/x.whl"]),
    ("required_distributions", ["pkg[extra]"]),
    ("required_distributions", {"a": 1}),
    ("required_distributions", [None]),
    ("required_distributions", 7),
]


@pytest.mark.parametrize(("field", "value"), BAD_IMPORTS)
def test_a_bad_import_names_the_field_and_what_to_do(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        records.import_request(**{field: value})
    words = {"image": ("image", "reference", "digest")}.get(field, (field,))
    assert any(word in caught.value.message.lower() for word in words)
    assert caught.value.remedy
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", "x.sqsh"),
        ("path", "./x.sqsh"),
        ("path", "/data/../etc/x"),
        ("path", "/data/my file.sqsh"),
        ("path", "/data/$(id)"),
        ("path", ""),
        ("path", None),
        ("name", "a b"),
        ("copy_to_store", "maybe"),
        ("copy_to_store", 2),
        ("kind", "Client"),
    ],
)
def test_a_bad_inspection_names_the_field_and_what_to_do(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        records.inspect_request(**{field: value})
    assert field in caught.value.message
    assert caught.value.remedy


def test_a_secret_in_a_reference_is_not_repeated() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        records.import_request(image=f"ann:hunter2@reg.example/a@{records.OCI}")
    assert "hunter2" not in str(caught.value)


def test_distributions_cannot_be_required_where_nothing_lists_them() -> None:
    with pytest.raises(InvalidRequestError, match="generic"):
        records.import_request(kind="generic", required_distributions=["torch"])


def test_a_copy_needs_a_name_that_keeps_it() -> None:
    with pytest.raises(InvalidRequestError, match="needs a name"):
        records.inspect_request(copy_to_store=True)
