# SPDX-License-Identifier: Apache-2.0
"""A job's output in a task log: no secrets, no control characters, whole lines, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_slurm_images.core.logtext import LONGEST_LINE, LineStream, clean, tail

SECRET = "hunter2.SECRET-x9"


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization: Basic {SECRET}",
        f"Proxy-Authorization: {SECRET}",
        f'curl -H "Authorization: Bearer {SECRET}" https://reg.example',
        f'{{"Authorization": "Bearer {SECRET}"}}',
        f"www: bearer {SECRET}",
        f'{{"token": "{SECRET}", "expires_in": 300}}',
        f'{{"access_token":"{SECRET}"}}',
        f"{{'password': '{SECRET}'}}",
        f'refreshToken = "{SECRET} and more"',
        f"password={SECRET}",
        f"PASSWORD: {SECRET}",
        f"MY_API_KEY={SECRET}",
        f"machine reg.example login ann password {SECRET}",
        f"token: {SECRET}",
        f"https://ann:{SECRET}@reg.example/v2/",
        f"https://ann:{SECRET}p@ss@reg.example/v2/",
        f"http://:{SECRET}@proxy.example:3128",
        f"x?client_secret={SECRET}&scope=pull",
        f"passphrase = '{SECRET}'",
        f"Authorization: Token {SECRET}",
        f"Authorization: ApiKey {SECRET}",
        f"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/eu, SignedHeaders=host, Signature={SECRET}",
        f'{{\\"password\\":\\"{SECRET}\\"}}',
        f'{{"auths": {{"reg.example": {{"auth":"{SECRET}"}}}}}}',
        f"https://ann:p/{SECRET}@reg.example/v2/",
    ],
)
def test_secrets_are_masked(line: str) -> None:
    cleaned = clean(line)
    assert SECRET not in cleaned
    assert "p@ss" not in cleaned
    assert "***" in cleaned


@pytest.mark.parametrize(
    "line",
    [
        "[INFO] Fetching image manifest from https://reg.example/v2/acme/tool/manifests/x",
        "asi: phase import (12 s)",
        "user@host.example: https://reg.example:5000/a",
        "100% 31.2M 0:00:01",
        "Tokenizer loaded: 12 files",
        "GET https://reg.example:5000/v2/acme/tool@sha256:0123",
        "[ERROR] URL https://reg.example/v2/a returned error code: 401 Unauthorized",
    ],
)
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert clean(line) == line


def test_what_stands_beside_a_secret_stays() -> None:
    assert clean('{"token": "abc", "expires_in": 300}') == '{"token": ***, "expires_in": 300}'
    assert clean("https://ann:pw@reg.example/v2/ and https://bob:pw@two.example/") == (
        "https://***@reg.example/v2/ and https://***@two.example/"
    )


def test_terminal_sequences_and_control_characters_are_dropped() -> None:
    text = "\x1b[31mred\x1b[0m \x1b]0;title\x07bell\x07 \u202eback\x00 \x9b1m tab\there"
    assert clean(text) == "red bell back 1m tab\there"
    assert clean("one\r\ntwo\rthree") == "one\ntwo\nthree"


def test_a_tail_is_the_last_lines_and_short() -> None:
    text = "\n".join(f"line {number}" for number in range(100)) + "\n\n" + "x" * 1000
    lines = tail(text, 5).splitlines()
    assert lines[:4] == ["line 96", "line 97", "line 98", "line 99"]
    assert len(lines[4]) == 500


@pytest.mark.parametrize(
    "unit", ["a.", "token=", 'secret: "', "://a:", "basic ", "authorization:", "\x1b]", "password "]
)
@pytest.mark.timeout(60)
def test_no_output_makes_masking_slow(unit: str) -> None:
    # A hostile image chooses this text; an expression that backtracks took minutes for it, this takes a moment.
    text = unit * (65536 // len(unit))
    assert len(clean(text)) <= 2 * len(text) + 10


# --- streams


@settings(max_examples=50, deadline=None)
@given(text=st.lists(st.text(alphabet="abc é\t", max_size=30), max_size=20), cuts=st.lists(st.integers(1, 40)))
def test_lines_are_the_same_however_the_chunks_are_cut(text: list[str], cuts: list[int]) -> None:
    data = "".join(f"{line}\n" for line in text).encode()
    stream, lines, rest = LineStream(10_000), [], data
    for cut in cuts:
        lines += stream.feed(rest[:cut])
        rest = rest[cut:]
    lines += stream.feed(rest, last=True)
    assert lines == [line for line in text if line.strip()]


def test_an_unfinished_line_waits_and_comes_with_the_end() -> None:
    stream = LineStream(1000)
    assert stream.feed(b"one\ntw") == ["one"]
    assert stream.feed(b"o\n") == ["two"]
    assert stream.feed(b"three") == []
    assert stream.feed(b"", last=True) == ["three"]


def test_a_progress_bar_is_many_lines() -> None:
    assert LineStream(1000).feed(b"10%\r20%\r30%") == ["10%", "20%"]


def test_a_secret_cut_by_a_chunk_is_masked() -> None:
    data = b"Authorization: Bearer " + SECRET.encode() + b"\n"
    for cut in range(len(data)):
        stream = LineStream(1000)
        text = "\n".join(stream.feed(data[:cut]) + stream.feed(data[cut:], last=True))
        assert SECRET[-6:] not in text


def test_a_secret_in_a_line_of_any_length_is_masked() -> None:
    # The end of a very long line would be shown without what tells that it is a secret.
    data = b"x" * (LONGEST_LINE - 10) + b" token=" + SECRET.encode() * 3 + b"\nnext\n"
    stream = LineStream(100_000)
    lines: list[str] = []
    for start in range(0, len(data), 500):
        lines += stream.feed(data[start : start + 500])
    assert lines[-1] == "next"
    assert all(SECRET[-6:] not in line for line in lines)


@settings(max_examples=100, deadline=None)
@given(
    text=st.lists(st.text(alphabet="abc é\r", max_size=30) | st.just("z" * (LONGEST_LINE + 9)), max_size=12),
    cuts=st.lists(st.integers(1, 4000), max_size=30),
    restarts=st.sets(st.integers(0, 30)),
)
def test_restarts_repeat_no_line_lose_none_and_show_no_half(
    text: list[str], cuts: list[int], restarts: set[int]
) -> None:
    data = "".join(f"{number} {line}\n" for number, line in enumerate(text)).encode()
    stream, lines, at = LineStream(10**6), [], 0
    for number, cut in enumerate(cuts):
        if number in restarts:
            stream, at = _restarted(stream, 10**6)
        lines += stream.feed(data[at : at + cut])
        at += len(data[at : at + cut])
    stream, at = _restarted(stream, 10**6)
    lines += stream.feed(data[at:], last=True)
    assert lines == LineStream(10**6).feed(data, last=True) or any(len(line) > LONGEST_LINE for line in text)
    assert [line.split()[0] for line in lines if line[0].isdigit()] == [str(number) for number in range(len(text))]


def _restarted(stream: LineStream, limit: int) -> tuple[LineStream, int]:
    again = LineStream(limit)
    again.go_on(stream.shown)
    return again, stream.shown


def test_a_secret_whose_line_a_restart_cuts_is_masked() -> None:
    data = (
        b"first\nAuthorization: Bearer " + SECRET.encode() + b"\n" + b"x" * LONGEST_LINE + b" token=" + SECRET.encode()
    )
    data += b"\nlast\n"
    for cut in (*range(70), *range(70, len(data) - 70, 211), *range(len(data) - 70, len(data))):
        before = LineStream(100_000)
        lines = before.feed(data[:cut])
        after, at = _restarted(before, 100_000)
        lines += after.feed(data[at:])
        assert all(SECRET[-6:] not in line for line in lines)
        assert (lines[0], lines[-1]) == ("first", "last")


def test_restarts_do_not_raise_the_limit_nor_repeat_its_note() -> None:
    before = LineStream(20)
    shown = before.feed(b"0123456789\n")
    after, at = _restarted(before, 20)
    shown += after.feed(b"0123456789\nabcdefghijk\n"[at:])
    assert len(shown) == 3 and "longer than 20 bytes" in shown[2]
    again, _ = _restarted(after, 20)
    assert again.full
    assert again.feed(b"anything\n", last=True) == []


def test_after_the_limit_there_is_one_note_and_then_silence() -> None:
    stream = LineStream(20)
    assert stream.feed(b"0123456789\n") == ["0123456789"]
    lines = stream.feed(b"abcdefghijklmnopqrstuvwxyz\nmore\n")
    assert lines[0] == "abcdefghi"
    assert "longer than 20 bytes" in lines[1]
    assert len(lines) == 2
    assert stream.full
    assert stream.feed(b"anything\n", last=True) == []


def test_exactly_the_limit_is_not_over_it() -> None:
    stream = LineStream(4)
    assert stream.feed(b"abc\n") == ["abc"]
    assert not stream.full


def test_bytes_that_are_no_text_do_not_stop_the_stream() -> None:
    assert LineStream(100).feed(b"caf\xe9\nfine\n") == ["caf\ufffd", "fine"]
