# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_slurm_images.core import batch
from airflow_slurm_images.core.errors import InvalidRequestError

GOLDEN = Path(__file__).parent / "fixtures" / "slurm" / "golden.sbatch"
REQUIRED: dict[str, Any] = {
    "job_name": "asi-00112233445566778899aabbccddeeff",
    "output": "/ws/users/ann/runs/k/a/slurm.out",
    "chdir": "/ws/users/ann/runs/k/a",
    "cpus_per_task": 4,
    "memory": "16G",
    "time_limit": "02:00:00",
}
OPTIONAL: dict[str, Any] = {
    "account": "proj-1",
    "partition": "cpu,long",
    "qos": "normal",
    "reservation": "maint",
    "constraint": "(ib&rack2)|avx512",
    "exclude": "n[1-3],m7",
}


def refused(**options: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        batch.directives(**{**REQUIRED, **options})
    assert caught.value.message.isprintable()
    assert next(iter(options)) in caught.value.message
    return caught.value


# The script


def test_the_script_is_the_golden_file_byte_for_byte() -> None:
    assignments = {"ASI_NAME": 'it\'s $HOME `id` "x" \\', "ASI_EMPTY": ""}
    body = '#!/usr/bin/env bash\n# a body\nprintf "%s\\n" "${ASI_NAME}"\n'
    script = batch.render_script(batch.directives(**REQUIRED, **OPTIONAL), assignments, body)
    assert script == GOLDEN.read_text(encoding="utf-8")
    assert script.endswith(body)


def test_the_script_runs_and_sees_exactly_the_values() -> None:
    value = 'it\'s $HOME `id` "x" \\ * ü'
    script = batch.render_script(batch.directives(**REQUIRED), {"ASI_NAME": value}, 'printf %s "$ASI_NAME"')
    done = subprocess.run(["/bin/bash", "-p"], input=script.encode(), capture_output=True, check=True)
    assert done.stdout.decode() == value
    assert done.stderr == b""


def test_optional_directives_are_left_out_when_not_given() -> None:
    lines = batch.directives(**REQUIRED)
    assert not [line for line in lines if any(f"--{name}=" in line for name in OPTIONAL)]
    assert "#SBATCH --dependency=singleton" in lines


def test_a_job_has_one_node_one_task_no_requeue_an_empty_environment_and_no_gpu() -> None:
    text = "\n".join(batch.directives(**REQUIRED, **OPTIONAL))
    for option in ("--nodes=1", "--ntasks=1", "--no-requeue", "--export=NIL", "--open-mode=append"):
        assert f"#SBATCH {option}" in text.splitlines()
    assert not re.search(r"gres|gpu|tres", text)


def test_sub_8_resources_are_given_explicitly() -> None:
    lines = batch.directives(**{**REQUIRED, "cpus_per_task": 8, "memory": 512, "time_limit": 90})
    assert {"#SBATCH --cpus-per-task=8", "#SBATCH --mem=512M", "#SBATCH --time=90"} <= set(lines)


# Values that could break out

BREAKOUTS = [
    "",
    " ",
    "a b",
    "a\nb",
    "a\n#SBATCH --gres=gpu:1",
    "a#b",
    "a'b",
    'a"b',
    "a\\b",
    "a\tb",
    "-a",
    "a\x00",
    "ä",
    "a$b",
]


@pytest.mark.parametrize("option", ["job_name", "output", "chdir", *OPTIONAL])
@pytest.mark.parametrize("value", BREAKOUTS)
def test_a_value_that_could_leave_its_directive_is_refused(option: str, value: str) -> None:
    refused(**{option: value})
    if option in ("output", "chdir") and value:
        refused(**{option: f"/x/{value} #"})


@pytest.mark.parametrize("path", ["relative/x", "/a/../b", "/a/x y", "/a/..", "~/x", "%j/x"])
def test_a_path_is_absolute_and_plain(path: str) -> None:
    refused(output=path)
    refused(chdir=path)


def test_a_percent_sign_in_a_path_is_no_pattern() -> None:
    lines = batch.directives(**{**REQUIRED, "output": "/a%j/x", "chdir": "/a%j"})
    assert "#SBATCH --output=/a%%j/x" in lines
    assert "#SBATCH --chdir=/a%j" in lines


@pytest.mark.parametrize("value", ["a,b", "a=b", "a&b"])
def test_an_account_is_one_name(value: str) -> None:
    refused(account=value)


def test_a_node_file_is_not_an_exclude_list() -> None:
    refused(exclude="/etc/passwd")


def test_only_singleton_is_a_dependency() -> None:
    refused(dependency="afterok:1")


@pytest.mark.parametrize("value", [0, -1, 70000, True, 1.5, "4", None])
def test_cpus_are_a_whole_positive_number(value: Any) -> None:
    refused(cpus_per_task=value)


@pytest.mark.parametrize("value", ["0", "0G", 0, -5, "16 G", "16GB", "1.5G", "G", "", "16g;", True, None, "٣G"])
def test_memory_that_is_no_size_is_refused(value: Any) -> None:
    assert refused(memory=value).details["part"] == "memory"


@pytest.mark.parametrize(
    ("value", "mebibytes"),
    [
        ("16G", 16384),
        ("16g", 16384),
        ("512M", 512),
        ("512", 512),
        (512, 512),
        ("1T", 1048576),
        ("1K", 1),
        ("2049K", 3),
    ],
)
def test_memory_is_read_as_slurm_does(value: str | int, mebibytes: int) -> None:
    assert batch.memory_mebibytes(value) == mebibytes


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("90", 5400),
        (90, 5400),
        ("1:30", 90),
        ("90:00", 5400),
        ("02:00:00", 7200),
        ("100:00:00", 360000),
        ("1-0", 86400),
        ("1-12", 129600),
        ("1-00:30", 88200),
        ("1-00:00:00", 86400),
        ("0-00:00:01", 1),
    ],
)
def test_time_limits_of_slurm_are_read_in_seconds(value: str | int, seconds: int) -> None:
    assert batch.time_limit_seconds(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *("", "0", 0, -1, "UNLIMITED", "INFINITE", "2h", "02:60:00", "02:00:61", "1-24:00:00", "1-", "-1"),
        *("1-2-3", "1:2:3:4", "1-1:2:3:4", "1::2", "90 ", "90\n", True, None, "٣", "99999999"),
    ],
)
def test_no_limit_and_malformed_limits_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError):
        batch.time_limit_seconds(value)


# Assignments


@pytest.mark.parametrize(
    "name", ["", "1A", "A-B", "A B", "A=B", "A\n", "Ä", "PATH", "HOME", "BASH_ENV", "UID", "IFS", "_"]
)
def test_a_name_that_is_no_identifier_of_ours_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        batch.assignment_block({name: "x"})


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "\x1b[0m", "\x7f", "\x85", "\u2028", "\ud800"])
def test_an_assigned_value_is_one_line_and_is_not_repeated_when_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        batch.assignment_block({"ASI_PROXY": f"http://u:hunter2@p{value}"})
    assert "hunter2" not in str(caught.value)


def test_assignments_keep_their_order() -> None:
    assert batch.assignment_block({"B": "1", "A": "2"}) == "readonly B='1'\nreadonly A='2'\n"
    assert batch.assignment_block({}) == ""


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
@settings(max_examples=40, deadline=None)
def test_a_quoted_value_reaches_the_shell_unchanged(value: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-s"],
        input=f"printf %s {batch.shell_quote(value)}".encode(),
        capture_output=True,
        check=True,
    )
    assert done.stdout == value.encode()


@given(st.sampled_from(["job_name", "output", *OPTIONAL]), st.text(max_size=30))
def test_any_value_gives_one_clean_line_or_a_documented_refusal(option: str, value: str) -> None:
    try:
        lines = batch.directives(**{**REQUIRED, option: value})
    except InvalidRequestError as error:
        assert error.message.isprintable()
    else:
        assert all(re.fullmatch(r"#SBATCH --[^\s'\"\\#]+", line) for line in lines)


# Joining


@pytest.mark.parametrize("line", ["#SBATCH --a=b\nrm", "rm -rf", "# SBATCH --a", "#SBATCH -N1", "#SBATCH --a\r"])
def test_a_line_that_is_not_one_directive_is_refused(line: str) -> None:
    with pytest.raises(InvalidRequestError):
        batch.render_script([line], {}, "true\n")


@pytest.mark.parametrize("body", ["a\r\n", "a\0", "#SBATCH --gres=gpu:1\n", "true\n#SBATCH -G1\n", "#PBS -l x\n"])
def test_a_body_with_directives_or_dos_line_ends_is_refused(body: str) -> None:
    with pytest.raises(InvalidRequestError):
        batch.render_script([], {}, body)


@given(st.text(max_size=60).filter(lambda body: "\r" not in body and "\0" not in body and "#" not in body))
def test_the_body_follows_byte_for_byte(body: str) -> None:
    assert batch.render_script([], {"A": "1"}, body) == f"#!/bin/bash -p\nreadonly A='1'\n{body}"
