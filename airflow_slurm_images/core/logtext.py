# SPDX-License-Identifier: Apache-2.0
"""Making a job's output fit for a task log: whole lines, no control characters, no secrets, bounded."""

from __future__ import annotations

import re

MASK = "***"
LONGEST_LINE = 8192
"""Bytes of an unfinished line that are waited for."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SECRETS = (
    # A header's value may be several words (AWS4-HMAC-SHA256 Credential=..., Signature=...), so all of it goes.
    re.compile(r"(?i)((?:proxy-)?authorization\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\n\"'\\]+"),
    re.compile(r"(?i)\b((?:basic|bearer)\s+)[A-Za-z0-9+/_.~=-]{6,}"),
    re.compile(
        r"(?i)((?:password|passwd|passphrase|secret|token|api[_-]?key|(?<=[\"'])auth(?=\\*[\"']))\\*[\"']?\s*[:=]\s*)"
        r"(?:\\*\"[^\"\n]*\"?|\\*'[^'\n]*'?|[^\s,;&\"']+)"
    ),
    re.compile(r"(?i)\b((?:password|passwd)\s+)\S+"),
    # Up to the last @ of the word, as a password may hold / and @; `host:port/` is none.
    re.compile(r"(://)[^/@\s:]*:(?![0-9]{1,5}/)\S{1,512}(?=@)"),
)


def clean(text: str) -> str:
    """Drop terminal sequences and control characters (all but newline and tab) and mask what looks secret.

    >>> clean("Authorization: Bearer abc123")
    'Authorization: ***'
    """
    text = _CONTROL.sub("", _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    for pattern in _SECRETS:
        text = pattern.sub(lambda match: f"{match[1]}{MASK}", text)
    return text


def tail(text: str, lines: int = 20) -> str:
    """Last ``lines`` non-empty lines, cleaned, each at most 500 characters."""
    kept = [line.rstrip()[:500] for line in clean(text).splitlines() if line.strip()]
    return "\n".join(kept[-lines:])


class LineStream:
    """Cut a stream of chunks into cleaned lines, up to ``limit`` bytes in all; then one note, then silence.

    A line over :data:`LONGEST_LINE` that arrives in pieces is cut there: a piece of its own could hide a secret from
    the masks, which know it by what stands before.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._rest = b""
        self._skipping = False
        self.full = False

    @property
    def shown(self) -> int:
        """Where to go on after a restart: bytes up to, without, the line end of the last line that was shown."""
        return self._taken if self._skipping or self.full else max(0, self._taken - len(self._rest) - 1)

    def go_on(self, shown: int) -> None:
        """Go on where another stream was at ``shown``; what is left of the line there is not shown."""
        self._taken = shown
        self._skipping = shown > 0
        self.full = shown > self._limit

    def feed(self, chunk: bytes, *, last: bool = False) -> list[str]:
        """Whole lines so far; with ``last`` also an unfinished one."""
        if self.full:
            return []
        room = self._limit - self._taken
        self._taken += len(chunk)
        data = self._rest + chunk[:room].replace(b"\r", b"\n")
        self.full = self._taken > self._limit
        if self._skipping:
            _, separator, data = data.partition(b"\n")
            self._skipping = not separator
        head, separator, self._rest = data.rpartition(b"\n")
        if last or self.full:
            head, separator, self._rest = data, b"", b""
        elif len(self._rest) > LONGEST_LINE:
            head, self._rest, self._skipping = head + separator + self._rest[:LONGEST_LINE], b"", True
        lines = clean((head + separator).decode("utf-8", "replace")).splitlines()
        if self.full:
            lines.append(f"... output is longer than {self._limit} bytes; the rest is in the run directory")
        return [line for line in lines if line.strip()]
