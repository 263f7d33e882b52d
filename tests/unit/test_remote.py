# SPDX-License-Identifier: Apache-2.0
"""Fields between random markers: what is read of an answer, and what never is."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_slurm_images.core import remote
from airflow_slurm_images.core.errors import (
    ClusterUnavailableError,
    ConflictError,
    IntegrityError,
    InvalidRequestError,
    SlurmImagesError,
)
from airflow_slurm_images.core.remote import RemoteResult, TruncatedAnswerError

MARK = "asi-0123456789abcdef0123456789abcdef"


def answer(*lines: tuple[str, bytes], status: int = 0) -> bytes:
    fields = "".join(f"\n{MARK} {name} {base64.b64encode(value).decode()}\n" for name, value in lines)
    return f"\n{MARK} begin\n{fields}\n{MARK} end {status}\n".encode()


def test_fields_are_read_whatever_stands_around_and_between_them() -> None:
    raw = answer(("a", b"\x00\xff\n"), ("list", b"1"), ("list", b"2"), ("empty", b""), status=3)
    noise = b"Welcome!\nJob 99999 done\nasi-other begin\nasi-other a eHg=\n"
    result = remote.parse(noise + raw.replace(b"\n\n", b"\nnoise\n") + b"bye\n", MARK)
    assert result.status == 3
    assert result.data("a") == b"\x00\xff\n"
    assert result.texts("list") == ("1", "2")
    assert result.data("empty") == b""
    assert result.data("absent") is None
    assert result.text("absent", "default") == "default"


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_terminals_line_ends_do_no_harm(ending: bytes) -> None:
    assert remote.parse(answer(("a", b"x")).replace(b"\n", ending), MARK).text("a") == "x"


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(min_value=0, max_value=len(answer(("a", b"value"), ("b", b"x"))) - 3))
def test_a_cut_answer_is_truncated_wherever_it_is_cut(cut: int) -> None:
    with pytest.raises(TruncatedAnswerError):
        remote.parse(answer(("a", b"value"), ("b", b"x"))[:cut], MARK)


@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_is_never_an_answer(noise: bytes) -> None:
    with pytest.raises(TruncatedAnswerError):
        remote.parse(noise, MARK)


def test_fields_before_the_beginning_or_after_the_end_do_not_count() -> None:
    early = f"{MARK} a {base64.b64encode(b'early').decode()}\n".encode()
    result = remote.parse(early + answer(("b", b"x")) + early, MARK)
    assert set(result.fields) == {"b"}


def test_a_damaged_field_is_truncated_and_not_skipped() -> None:
    with pytest.raises(TruncatedAnswerError):
        remote.parse(answer(("a", b"value")).replace(b"dmFsdWU=", b"dmF*dWU="), MARK)


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("no_workspace", InvalidRequestError),
        ("unsafe_workspace", InvalidRequestError),
        ("unavailable", ClusterUnavailableError),
        ("conflict", ConflictError),
        ("integrity", IntegrityError),
        ("a word of a later release", ClusterUnavailableError),
    ],
)
def test_a_refusal_is_an_error_with_the_scripts_own_words(word: str, error: type[SlurmImagesError]) -> None:
    with pytest.raises(error, match="because") as caught:
        RemoteResult(3, {"refused": (word.encode(),), "message": (b"because",)}).raise_refusal()
    assert type(caught.value) is error


def test_an_answer_without_a_refusal_raises_nothing() -> None:
    RemoteResult(0, {"message": (b"x",)}).raise_refusal()


@pytest.mark.parametrize("verb", remote.SCRIPTS)
def test_every_verb_is_constants_then_whole_files_then_payload(verb: str) -> None:
    composed = remote.compose(verb, MARK, {"ASI_X": "it's"}, b"payload")
    head = f"readonly ASI_MARK='{MARK}'\nreadonly ASI_X='it'\\''s'\n".encode()
    files = b"".join(remote.package_file(name) for name in remote.SCRIPTS[verb])
    assert composed == head + files + b"payload"
    assert files.endswith(b"\nasi::main\n")


@pytest.mark.parametrize("value", ["two\nlines", "\x00", "\x1b[0m"])
def test_a_constant_is_one_line(value: str) -> None:
    with pytest.raises(InvalidRequestError):
        remote.compose("collect", MARK, {"ASI_X": value})


@pytest.mark.parametrize("verb", remote.SCRIPTS)
def test_every_verb_begins_before_it_does_anything(verb: str) -> None:
    text = remote.package_file(remote.SCRIPTS[verb][-1]).decode()
    first = text.partition("\nasi::main() {\n")[2].splitlines()
    assert next(line.strip() for line in first if not line.startswith("    local ")) == "asi::begin" or (
        first[0].strip() == "words=()" and "asi::begin" in first[1]
    )


@pytest.mark.parametrize("body", ["x=$((1 - ))", "return 1", ": ${ASI_UNSET}"])
def test_what_follows_the_script_is_never_run(tmp_path: Path, body: str) -> None:
    """Some errors throw bash back to reading commands, and what it would read next is the payload."""
    constants = {"ASI_MARK": MARK, "ASI_SLURM_CONF": "", "ASI_SLURM_BIN": ""}
    block = "".join(f"readonly {name}='{value}'\n" for name, value in constants.items()).encode()
    main = f"asi::main() {{\n    asi::begin\n    {body}\n}}\n\nasi::main\n".encode()
    payload = f"touch {tmp_path}/ran\n".encode()
    script = block + remote.package_file("remote.sh") + main + payload
    done = subprocess.run(remote.COMMAND.split(), input=script, capture_output=True)
    assert remote.parse(done.stdout, MARK).status != 0
    assert list(tmp_path.iterdir()) == []
