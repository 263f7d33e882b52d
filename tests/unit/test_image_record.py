# SPDX-License-Identifier: Apache-2.0
"""From what an attempt left to the image record: everything of the image is checked before anything is published."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_slurm_images.core import image_record
from airflow_slurm_images.core.errors import IntegrityError, JobFailedError
from airflow_slurm_images.core.image_record import missing_distributions
from airflow_slurm_images.core.records import MAX_RECORD_BYTES, ImageRecord

from . import records

INSTALLED = [("attrs", "24.1.0"), ("numpy", "2.1.0rc1"), ("odd", "weird-version"), ("torch", "2.4.1")]


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + machine.to_bytes(2, "little") + bytes(44)


AMD64, ARM64 = {"elf": elf(62)}, {"elf": elf(183)}


def facts(kind: str = "client", image: dict[str, Any] | None = None, **values: Any) -> bytes:
    inspection: dict[str, Any] = {"kind": kind}
    if kind == "client":
        inspection |= {
            "python_implementation": "CPython",
            "python_version": "3.12.1",
            "python_abi": "cp312",
            "distributions": [{"name": name, "version": version} for name, version in INSTALLED],
            "installer_path": "/usr/bin/pip",
            "installer_version": "24.0",
        }
    else:
        inspection |= {"server_type": "vllm", "runtime_version": "0.33.0", "executable_path": "/opt/venv/bin/vllm"}
    inspection |= values
    document = {
        "facts_version": 1,
        "inspector_version": "1.0.0",
        "kind": kind,
        "inspection": {key: value for key, value in inspection.items() if value is not ...},
        "image": {"python_version": "3.12.1", "machine": "x86_64", "warnings": ["careful"], **(image or {})},
    }
    return json.dumps(document).encode()


def assemble(given: bytes | None = None, static: dict[str, bytes] | None = None, **request: Any) -> ImageRecord:
    plan = records.plan(records.import_request(**request))
    kind = plan.request.kind
    found = given if given is not None or kind == "generic" else facts(kind)
    return image_record.assemble(plan, records.completion(), found, AMD64 if static is None else static)


def refused(reason: str, **values: Any) -> JobFailedError:
    with pytest.raises(JobFailedError) as caught:
        assemble(**values)
    assert caught.value.reason == reason
    assert not caught.value.retryable
    assert caught.value.remedy
    return caught.value


def test_the_record_keeps_both_identities_apart() -> None:
    record = assemble()
    assert record.source is not None
    assert (record.source.oci_digest, record.source.requested_tag) == (records.OCI, "1.2")
    assert record.sqsh.sha256 == record.inspection.sqsh_sha256 == records.SQSH
    assert record.sqsh.alias_path == "/ws/aliases/tool.sqsh"
    assert (record.job.job_id, record.job.run_directory) == (481, records.RUN_DIRECTORY)


def test_the_value_under_inspection_has_exactly_its_keys() -> None:
    for kind, keys in {
        "client": {
            *("kind", "python_implementation", "python_version", "python_abi", "distributions"),
            *("installer_path", "installer_version"),
        },
        "serving": {"kind", "server_type", "runtime_version", "executable_path"},
        "generic": {"kind"},
    }.items():
        record = json.loads(image_record.to_json(assemble(kind=kind)))
        assert set(record["inspection"]["inspection"]) == keys
        assert ImageRecord.model_validate_json(json.dumps(record)) == assemble(kind=kind)


def test_a_generic_record_comes_from_the_file_alone() -> None:
    record = assemble(kind="generic", static={**AMD64, "os-release": b'PRETTY_NAME="Tiny Linux"\n'})
    assert record.image["os"] == "Tiny Linux"
    assert record.image["architecture"] == "amd64"
    assert record.inspection.inspector_version == "static-1"


def test_facts_from_inside_are_ignored_where_the_image_was_not_started() -> None:
    assert assemble(facts("client"), kind="generic").inspection.inspection.kind == "generic"


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"not json",
        b"[]",
        facts("serving"),
        facts(python_version="3.12"),
        facts(python_version=3.12),
        facts(installer_path="pip"),
        facts(added="key"),
        facts(python_abi=...),
        facts(distributions=[{"name": "b", "version": "1"}, {"name": "a", "version": "1"}]),
        facts(distributions=[{"name": "A_b", "version": "1"}]),
        facts(distributions=[{"name": "a", "version": "1", "extra": 1}]),
        facts(distributions=None),
        json.dumps({"facts_version": 1, "error": {"code": "x", "message": "y"}}).encode(),
    ],
)
def test_facts_that_break_a_rule_are_refused(given: bytes) -> None:
    refused("facts_invalid", given=given)


def test_a_job_without_facts_is_refused() -> None:
    plan = records.plan()
    with pytest.raises(JobFailedError, match="no facts"):
        image_record.assemble(plan, records.completion(), None, AMD64)


def test_a_record_over_one_mebibyte_is_refused() -> None:
    many = [{"name": f"package-{number:06}", "version": "1.0"} for number in range(19_000)]
    given = facts(distributions=many)
    assert len(given) < MAX_RECORD_BYTES  # the facts alone would pass
    error = refused("record_too_large", given=given, static={**AMD64, "environment": b"X=" + b"y" * 200_000 + b"\n"})
    assert str(MAX_RECORD_BYTES) in error.message


@pytest.mark.parametrize(
    "values",
    [{"token": "0" * 32}, {"operation": "inspect_sqsh"}, {"sqsh": None, "exit_status": 1}],
    ids=["token", "operation", "no file"],
)
def test_a_record_of_something_else_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        image_record.assemble(records.plan(), records.completion(**values), facts(), AMD64)


# --- architecture


@pytest.mark.parametrize("static", [AMD64, {}], ids=["same", "unknown"])
def test_an_architecture_that_fits_or_is_unknown_passes(static: dict[str, bytes]) -> None:
    assert assemble(static=static).sqsh.sha256 == records.SQSH


def test_another_architecture_than_the_nodes_is_refused() -> None:
    assert "arm64" in refused("architecture_mismatch", static=ARM64).message


@pytest.mark.parametrize("arch", ["arm64", "aarch64"])
def test_an_architecture_asked_for_by_any_name_is_the_one_compared(arch: str) -> None:
    assert assemble(static=ARM64, arch=arch).image["architecture"] == "arm64"
    refused("architecture_mismatch", static=AMD64, arch=arch)


def test_a_verified_configuration_decides_and_a_program_for_another_machine_is_a_warning() -> None:
    verified = records.completion(platform_digest=records.OCI)
    for static, warnings in ((AMD64, 0), ({}, 0), (ARM64, 1)):
        record = image_record.assemble(records.plan(), verified, facts(), static)
        assert record.image["architecture"] == "amd64"
        assert len([text for text in record.image["warnings"] if "is for arm64" in text]) == warnings


# --- required distributions


def test_all_missing_distributions_are_named_with_what_is_there() -> None:
    wanted = ["torch>=2.5", "absent", "attrs", "Numpy>=2"]
    error = refused("distributions_missing", required_distributions=wanted)
    assert error.details["missing"] == ["torch>=2.5 (installed: 2.4.1)", "absent (not installed)"]
    assert "2 of 4" in error.message


@pytest.mark.parametrize(
    ("wanted", "met"),
    [
        ("Torch", True),
        ("torch==2.4.*", True),
        ("torch>2.4.1", False),
        ("numpy>=2", True),  # a pre-release, but it is what is installed
        ("numpy>=2.1.0", False),
        ("odd", True),
        ("odd>=1", False),
        ('absent; python_version < "3.9"', True),
        ('absent; python_version >= "3.9"', False),
        ('absent; sys_platform == "win32"', True),
        ('absent; platform_machine == "aarch64"', True),
        ('absent; platform_python_implementation == "PyPy"', True),
        ('absent; implementation_name == "cpython"', False),
    ],
)
def test_requirements_and_markers_are_judged_by_the_image(wanted: str, met: bool) -> None:
    if met:
        assemble(required_distributions=[wanted])
    else:
        refused("distributions_missing", required_distributions=[wanted])


def test_a_serving_image_lists_its_distributions_beside_the_inspection() -> None:
    rows = [{"name": "vllm", "version": "0.33.0"}]
    given = facts("serving", image={"distributions": rows})
    assert assemble(given, kind="serving", required_distributions=["vllm>=0.30"]).image["distributions"] == rows
    assert refused("distributions_missing", given=given, kind="serving", required_distributions=["torch"])


@pytest.mark.parametrize("rows", [None, "x", [1], [{"name": None}], {"a": 1}])
def test_a_list_of_distributions_that_is_none_is_refused(rows: Any) -> None:
    refused("facts_invalid", given=facts("serving", image={"distributions": rows}), kind="serving")


@pytest.mark.parametrize(("full", "met"), [("3.13.0a1+", True), ("3.12.0", True), ("3.15.0a1+", False)])
def test_a_python_from_a_work_tree_is_judged_by_its_version(full: str, met: bool) -> None:
    wanted = ['absent; python_full_version >= "3.14"']
    given = facts("serving", image={"python_version": full})
    if met:
        assemble(given, kind="serving", required_distributions=wanted)
    else:
        refused("distributions_missing", given=given, kind="serving", required_distributions=wanted)


def test_the_worker_s_own_python_never_stands_in_for_the_image_s() -> None:
    given = facts("serving", image={"python_version": None})
    assemble(given, kind="serving", required_distributions=['absent; python_version >= "3"'])


def test_names_are_compared_in_their_canonical_form() -> None:
    assert missing_distributions(["My_Package.Name>=1"], {"my-package-name": "1.5"}, {}) == ()
