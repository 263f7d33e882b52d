# SPDX-License-Identifier: Apache-2.0
"""Readers for the few file formats in which an image says something about itself without being started.

SquashFS 4.0 superblock (kernel documentation, ``filesystems/squashfs``), ELF header (gABI),
``os-release(5)``, and the two files Enroot writes at import: ``/etc/environment`` (the image's ``Env``, one
``NAME=value`` a line) and ``/etc/rc`` (labels as comments, working directory, entrypoint and command). The
bytes come from an untrusted image: whatever it is given, a reader returns facts or raises ``ValueError``.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

_SUPERBLOCK = struct.Struct("<IIIIIHHHHHHQQ")
_SQUASHFS_MAGIC = 0x73717368
_COMPRESSION = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
# (e_machine, bits, byte order) -> GOARCH, the architecture names of the OCI image specification.
_ELF_ARCHITECTURES = {
    (3, 32, "little"): "386",
    (8, 32, "big"): "mips",
    (8, 32, "little"): "mipsle",
    (8, 64, "big"): "mips64",
    (8, 64, "little"): "mips64le",
    (21, 64, "big"): "ppc64",
    (21, 64, "little"): "ppc64le",
    (22, 64, "big"): "s390x",
    (40, 32, "little"): "arm",
    (62, 64, "little"): "amd64",
    (183, 64, "little"): "arm64",
    (243, 64, "little"): "riscv64",
    (258, 64, "little"): "loong64",
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OS_RELEASE_LINE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)")
_SHELL_PIECE = re.compile(
    r"""(?P<space>\s+)|'(?P<single>[^']*)'|\$'(?P<ansi>(?:[^'\\]|\\.)*)'"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)|(?P<bare>[^\s'"\\$]+|\$)""",
    re.DOTALL,
)
_ANSI_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|c.|.)", re.DOTALL)
_ANSI_LETTERS = {"n": 10, "t": 9, "r": 13, "a": 7, "b": 8, "e": 27, "E": 27, "f": 12, "v": 11}
_BLANKS = " \t\r\v\f"
_QUOTES = "\"'"
_NOT_ENROOTS = "not the start script that Enroot writes at import"


@dataclass(frozen=True)
class Superblock:
    """The part of a SquashFS 4.0 superblock that says something about the file (sizes in bytes)."""

    inodes: int
    created: int
    """Seconds since the epoch."""
    block_size: int
    compression: str
    bytes_used: int
    """A whole file is at least this long; mksquashfs pads it to 4096."""


@dataclass(frozen=True)
class StartScript:
    """What Enroot's ``/etc/rc`` says of the image's configuration."""

    labels: dict[str, str]
    working_directory: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    provenance: str | None
    """The URI Enroot noted at import (newer releases); an image can write it itself, so no proof."""


def parse_superblock(raw: bytes) -> Superblock:
    """Return the facts in the first 96 bytes of a ``.sqsh``; raises ValueError saying what is wrong."""
    if len(raw) < 96:
        raise ValueError(f"superblock has {len(raw)} bytes, not 96")
    fields = _SUPERBLOCK.unpack_from(raw)
    magic, inodes, created, block_size, _fragments, compression, block_log = fields[:7]
    major, minor, bytes_used = fields[9], fields[10], fields[12]
    if magic != _SQUASHFS_MAGIC:
        raise ValueError("not a SquashFS file (wrong magic number)")
    if (major, minor) != (4, 0):
        raise ValueError(f"SquashFS version {major}.{minor}, only 4.0 is read")
    if compression not in _COMPRESSION:
        raise ValueError(f"unknown SquashFS compression {compression}")
    if not 12 <= block_log <= 20 or block_size != 1 << block_log:
        raise ValueError(f"SquashFS block size {block_size} does not fit its logarithm {block_log}")
    return Superblock(inodes, created, block_size, _COMPRESSION[compression], bytes_used)


def parse_elf_architecture(raw: bytes) -> str:
    """Return the OCI architecture name of an ELF program from its first 20 bytes; raises ValueError."""
    if len(raw) < 20 or raw[:4] != b"\x7fELF":
        raise ValueError("not an ELF program")
    bits = {1: 32, 2: 64}.get(raw[4], 0)
    order = {1: "little", 2: "big"}.get(raw[5], "unknown")
    machine = int.from_bytes(raw[18:20], "big" if order == "big" else "little")
    name = _ELF_ARCHITECTURES.get((machine, bits, order))
    if name is None:
        raise ValueError(f"unknown ELF architecture (machine {machine}, {bits} bits, byte order {order})")
    return name


def parse_os_release(raw: bytes) -> dict[str, str]:
    """Return the assignments of an os-release file, quotes removed; lines that are none are ignored."""
    values: dict[str, str] = {}
    for line in _text(raw).splitlines():
        match = _OS_RELEASE_LINE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            values[match[1]] = " ".join(shell_words(match[2]))
        except ValueError:
            values[match[1]] = match[2].strip("'\"")
    return values


def parse_environment(raw: bytes) -> tuple[dict[str, str], int]:
    """Return the variables of Enroot's ``/etc/environment`` and the number of lines that are none.

    As Enroot reads them at each start: indentation and quotes around a value fall off (twice, before its hooks and
    after), comments and its own variables are left out. A value with a line break spills over several lines; Enroot
    drops all but the first. The last of two assignments wins. ``${NAME}`` stays as it is.
    """
    values: dict[str, str] = {}
    ignored = 0
    for line in _text(raw).split("\n"):
        text = line.lstrip(_BLANKS)
        name, equals, value = text.partition("=")
        if equals and _VARIABLE.fullmatch(name):
            if not name.startswith("ENROOT_"):
                values[name] = _unquoted(_unquoted(value))
        elif text and not text.startswith("#"):
            ignored += 1
    return values, ignored


def _unquoted(value: str) -> str:
    """Without a quote at the start and one at the end, which need not be the same and may have blanks after it."""
    core = value.rstrip(_BLANKS)
    return core[1:-1] if len(core) > 1 and core[0] in _QUOTES and core[-1] in _QUOTES else value


def parse_start_script(raw: bytes) -> StartScript:
    """Return the image configuration in Enroot's ``/etc/rc``; raises ValueError where it is another script.

    Read from the end, because a label with line breaks can put any lines before the real ones.
    """
    lines = _text(raw).rstrip("\n").split("\n")
    ending = [line.strip() for line in lines[-5:]]
    if len(ending) < 5 or (ending[0], ending[2], ending[4]) != ("if [ $# -gt 0 ]; then", "else", "fi"):
        raise ValueError(_NOT_ENROOTS)
    with_arguments, without = _exec_words(ending[1]), _exec_words(ending[3])
    entrypoint = with_arguments[:-1]
    if with_arguments[-1:] != ["$@"] or without[: len(entrypoint)] != entrypoint:
        raise ValueError(_NOT_ENROOTS)
    labels, provenance = _comments(lines)
    command = tuple(without[len(entrypoint) :])
    return StartScript(labels, _directory(lines), tuple(entrypoint), command, provenance)


def shell_words(text: str) -> list[str]:
    """Split as a shell would, expanding nothing; understands bash's ``${x@Q}`` quoting. Raises ValueError."""
    words: list[list[str]] = []
    open_word = False
    position = 0
    while position < len(text):
        piece = _SHELL_PIECE.match(text, position)
        if piece is None:
            raise ValueError("unbalanced quotes")
        position = piece.end()
        if piece["space"] is not None:
            open_word = False
            continue
        if not open_word:
            words.append([])
            open_word = True
        words[-1].append(_piece_value(piece))
    return ["".join(pieces) for pieces in words]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\0", "\ufffd")


def _piece_value(piece: re.Match[str]) -> str:
    if piece["ansi"] is not None:
        raw = piece["ansi"].encode("utf-8", "replace")
        return _ANSI_ESCAPE.sub(_ansi_byte, raw).decode("utf-8", "replace")
    if piece["double"] is not None:
        return re.sub(r'\\([$`"\\])', r"\1", piece["double"])
    return next(value for key in ("single", "escaped", "bare") if (value := piece[key]) is not None)


def _ansi_byte(match: re.Match[bytes]) -> bytes:
    code = match[1].decode("latin-1")
    if code[0] == "x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code[0] in "01234567":
        return bytes([int(code, 8) & 0xFF])
    if code[0] == "c" and len(code) > 1:
        return bytes([ord(code[1]) & 0x1F])
    return bytes([_ANSI_LETTERS.get(code, ord(code[0]))])


def _exec_words(line: str) -> list[str]:
    if not line.startswith("exec "):
        raise ValueError(_NOT_ENROOTS)
    return shell_words(line[len("exec ") :])


def _directory(lines: list[str]) -> str:
    changes = [line for line in lines if line.startswith('cd "') and '" && unset OLDPWD' in line]
    return changes[-1][len('cd "') :].partition('" && unset OLDPWD')[0] if changes else "/"


def _comments(lines: list[str]) -> tuple[dict[str, str], str | None]:
    """Return the labels and the provenance in the leading comments."""
    labels: dict[str, str] = {}
    provenance = None
    for number, line in enumerate(lines):
        if not line.startswith("# "):
            break
        key, _, value = line[2:].partition(" ")
        if number == 0 and key == "enroot-provenance:":
            provenance = value
        elif key:
            labels[key] = value
    return labels, provenance
