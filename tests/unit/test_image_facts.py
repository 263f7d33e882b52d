# SPDX-License-Identifier: Apache-2.0
"""Facts read out of a file without starting it, and the strict reading of the inspector's file."""

from __future__ import annotations

import json
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm_images.core.fields import plain_json
from airflow_slurm_images.core.image_facts import STATIC_FILE_LIMIT, image_section, static_facts
from airflow_slurm_images.core.image_formats import (
    parse_elf_architecture,
    parse_environment,
    parse_os_release,
    parse_start_script,
    parse_superblock,
    shell_words,
)

# Written by mksquashfs 4.5.1: -comp zstd -noD -mkfs-time 1700000000, two inodes.
REAL_SUPERBLOCK = bytes.fromhex(
    "687371730200000000f15365000002000100000006001100c204010004000000"
    "2000000000000000ff00000000000000f700000000000000ffffffffffffffff"
    "6900000000000000a600000000000000cf00000000000000e900000000000000"
)
DEBIAN = b"""PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
VERSION="12 (bookworm)"
ID=debian
HOME_URL="https://www.debian.org/"
"""
RC_HEAD = b"""# maintainer somebody <a@b.example>
# org.opencontainers.image.title An image: with "quotes" = and more
"""
RC_BODY = rb"""
mkdir -p "/srv/my app" 2> /dev/null
cd "/srv/my app" && unset OLDPWD || exit 1

if [ -s /etc/rc.local ]; then
    . /etc/rc.local
fi

if [ $# -gt 0 ]; then
    exec '/opt/nvidia/nvidia_entrypoint.sh' 'it'\''s' "$@"
else
    exec '/opt/nvidia/nvidia_entrypoint.sh' 'it'\''s' 'serve' $'two\nlines \303\251'
fi
"""


def superblock(**changes: int) -> bytes:
    fields = {
        "magic": 0x73717368, "inodes": 7, "created": 1_700_000_000, "block_size": 131072, "fragments": 0,
        "compression": 6, "block_log": 17, "flags": 0, "ids": 1, "major": 4, "minor": 0, "root": 0, "bytes_used": 4000,
    }  # fmt: skip
    return struct.pack("<IIIIIHHHHHHQQ", *{**fields, **changes}.values()).ljust(96, b"\0")


def elf(machine: int, bits: int = 2, order: int = 1) -> bytes:
    head = b"\x7fELF" + bytes([bits, order, 1]) + bytes(9)
    return head + struct.pack(">HH" if order == 2 else "<HH", 2, machine) + bytes(44)


def test_a_real_superblock_is_read() -> None:
    block = parse_superblock(REAL_SUPERBLOCK)
    assert (block.compression, block.block_size, block.created, block.inodes) == ("zstd", 131072, 1_700_000_000, 2)
    assert 0 < block.bytes_used < 4096


@pytest.mark.parametrize(("number", "name"), [(1, "gzip"), (2, "lzma"), (3, "lzo"), (4, "xz"), (5, "lz4"), (6, "zstd")])
def test_every_compression_has_its_name(number: int, name: str) -> None:
    assert parse_superblock(superblock(compression=number)).compression == name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"magic": 0x71736873}, "magic"),
        ({"major": 3}, "version 3.0"),
        ({"minor": 1}, "version 4.1"),
        ({"compression": 9}, "compression 9"),
        ({"block_size": 131073}, "block size"),
        ({"block_log": 99}, "block size"),
    ],
)
def test_another_superblock_is_refused_with_the_reason(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_superblock(superblock(**changes))


def test_a_short_superblock_is_refused() -> None:
    with pytest.raises(ValueError, match="95 bytes"):
        parse_superblock(superblock()[:95])


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (elf(62), "amd64"),
        (elf(183), "arm64"),
        (elf(40, bits=1), "arm"),
        (elf(3, bits=1), "386"),
        (elf(21), "ppc64le"),
        (elf(21, order=2), "ppc64"),
        (elf(22, order=2), "s390x"),
        (elf(243), "riscv64"),
        (elf(258), "loong64"),
        (elf(8, bits=1, order=2), "mips"),
        (elf(8), "mips64le"),
    ],
)
def test_elf_machines_have_their_oci_names(raw: bytes, name: str) -> None:
    assert parse_elf_architecture(raw) == name


@pytest.mark.parametrize("raw", [b"", b"\x7fELF", b"#!/bin/sh\n" * 5, elf(62, bits=1), elf(62, bits=7), elf(9999)])
def test_what_is_no_known_program_has_no_architecture(raw: bytes) -> None:
    with pytest.raises(ValueError, match="ELF"):
        parse_elf_architecture(raw)


def test_os_release_quoting() -> None:
    values = parse_os_release(
        b'ID=\'alpine\'\nNAME=Plain\nVERSION="a \\"b\\""\n# NO=comment\nbroken\nX="open\nEMPTY=\n'
    )
    assert values == {"ID": "alpine", "NAME": "Plain", "VERSION": 'a "b"', "X": "open", "EMPTY": ""}


ENVIRONMENT = """PATH=/opt/venv/bin:/usr/bin
EMPTY=
QUOTED="a=b"
  INDENTED='in quotes' \t
TWICE="'x'"
MIXED="y'
ONE="
OPEN="z
TWO=one
lines of it
# COMMENT=x
 # INDENTED_COMMENT=x

ENROOT_PRIVATE=x
ASKED=${HOME}/x
TAIL=kept\x20
PATH=/last
=x
1BAD=y
"""
# common::envfmt of Enroot 4.1.2, which runs before and after the hooks
ENVFMT = (
    r"s/^[[:space:]]\+//",
    r"/^#\|^$/d",
    r"/^[[:alpha:]_][[:alnum:]_]*=/!d",
    r"/^ENROOT_/d",
    r"s/^\([[:alpha:]_][[:alnum:]_]*\)=[\"\x27]\(.*\)[\"\x27][[:space:]]*$/\1=\2/",
)


def envfmt(text: str) -> dict[str, str]:
    """The variables as Enroot's own sed leaves them."""
    for _ in range(2):
        command = ["sed", *[word for expression in ENVFMT for word in ("-e", expression)]]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=60).stdout
    return dict(line.partition("=")[::2] for line in text.splitlines())


def test_environment_lines() -> None:
    values, ignored = parse_environment(ENVIRONMENT.encode())
    assert values == envfmt(ENVIRONMENT)
    assert (values["PATH"], values["QUOTED"], values["INDENTED"]) == ("/last", "a=b", "in quotes")
    assert (values["ASKED"], values["OPEN"], values["MIXED"], values["TWICE"]) == ("${HOME}/x", '"z', "y", "x")
    assert ignored == 3


def test_variables_of_whoever_starts_the_image_are_told() -> None:
    facts = static_facts({"environment": b"A=${HOME}/x\nB=$HOME\nC=${1}\nPATH=/opt/x:${PATH}\n"})
    (warning,) = [text for text in facts["warnings"] if text.startswith("environment:")]
    assert warning.startswith("environment: A, PATH: Enroot fills in ${NAME} from the environment of whoever starts")
    assert facts["environment"]["A"] == "${HOME}/x"


def test_the_start_script_of_enroot() -> None:
    script = parse_start_script(RC_HEAD + RC_BODY)
    assert script.labels == {
        "maintainer": "somebody <a@b.example>",
        "org.opencontainers.image.title": 'An image: with "quotes" = and more',
    }
    assert script.working_directory == "/srv/my app"
    assert script.entrypoint == ("/opt/nvidia/nvidia_entrypoint.sh", "it's")
    assert script.command == ("serve", "two\nlines é")
    assert script.provenance is None


def test_the_provenance_line_of_newer_releases() -> None:
    script = parse_start_script(b"# enroot-provenance: docker://r.example#a/b:sha256:00\n" + RC_HEAD + RC_BODY)
    assert script.provenance == "docker://r.example#a/b:sha256:00"
    assert "enroot-provenance:" not in script.labels


def test_a_label_with_line_breaks_cannot_pretend_another_entrypoint() -> None:
    block = b"if [ $# -gt 0 ]; then\n    exec 'fake' \"$@\"\nelse\n    exec 'fake'\nfi\n"
    fake = b"# evil x\n" + block + b'cd "/fake" && unset OLDPWD\n'
    script = parse_start_script(fake + RC_BODY)
    assert script.entrypoint[0] == "/opt/nvidia/nvidia_entrypoint.sh"
    assert script.working_directory == "/srv/my app"


@pytest.mark.parametrize(
    "raw", [b"", b"#!/bin/sh\nexec /sbin/init\n", RC_BODY.replace(b"exec", b"exit"), RC_BODY + b"echo more\n"]
)
def test_another_start_script_is_not_read(raw: bytes) -> None:
    with pytest.raises(ValueError, match="Enroot"):
        parse_start_script(raw)


def test_words_are_read_as_bash_quoted_them() -> None:
    words = [
        "",
        "a b",
        "it's",
        '"',
        "\\",
        "$HOME",
        "`x`",
        "tab\t",
        "new\nline",
        "é",
        "\x01\x7f",
        "-c",
        "a'b'c",
        "#",
        "*",
        "!",
    ]
    done = subprocess.run(
        ["bash", "-c", 'printf "%s " "${@@Q}"', "bash", *words], capture_output=True, text=True, check=True, timeout=60
    )
    assert shell_words(done.stdout) == words


def test_all_files_of_a_debian_image() -> None:
    facts = static_facts(
        {
            "superblock": REAL_SUPERBLOCK,
            "elf": elf(62),
            "os-release": DEBIAN,
            "environment": b"PATH=/usr/bin\n",
            "rc": RC_HEAD + RC_BODY,
            "dpkg-count": b"97\n",
            "passwd": b"root:x:0:0::/root:/bin/sh\n",
        }
    )
    assert facts.pop("squashfs_bytes_used") > 0
    assert facts.pop("labels")
    assert facts == {
        "os": "Debian GNU/Linux 12 (bookworm)",
        "os_id": "debian",
        "os_version": "12",
        "architecture": "amd64",
        "compression": "zstd",
        "block_size": 131072,
        "squashfs_created": 1_700_000_000,
        "squashfs_inodes": 2,
        "environment": {"PATH": "/usr/bin"},
        "entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh", "it's"],
        "command": ["serve", "two\nlines é"],
        "working_directory": "/srv/my app",
        "debian_packages": 97,
        "warnings": [],
    }


def test_an_image_of_one_static_binary_has_reasons_instead() -> None:
    facts = static_facts({"superblock": superblock(), "elf": elf(62), "environment": b"", "rc": b"junk"})
    assert facts["architecture"] == "amd64"
    assert facts["debian_packages"] is None
    assert facts["warnings"] == [
        "os-release: not found in the image, or empty",
        "environment: not found in the image, or empty",
        "rc: not the start script that Enroot writes at import",
    ]
    assert not {"os", "environment", "entrypoint"} & set(facts)


def test_an_image_without_entrypoint_says_none() -> None:
    body = RC_BODY.replace(rb"exec '/opt/nvidia/nvidia_entrypoint.sh' 'it'\''s'", b"exec ")
    facts = static_facts({"rc": body})
    assert facts["entrypoint"] is None
    assert facts["command"] == ["serve", "two\nlines é"]


def test_a_file_that_was_cut_loses_its_last_line_and_says_so() -> None:
    facts = static_facts({"environment": b"A=1\nB=" + b"x" * STATIC_FILE_LIMIT})
    assert facts["environment"] == {"A": "1"}
    assert f"environment: only the first {STATIC_FILE_LIMIT} bytes were read" in facts["warnings"]


@pytest.mark.parametrize("raw", [b"many", b"-1", b"1" * 40, b"1\n2"])
def test_a_package_count_that_is_none_is_left_out(raw: bytes) -> None:
    facts = static_facts({"dpkg-count": raw})
    assert facts["debian_packages"] is None
    assert "dpkg-count: not a number" in facts["warnings"]


@pytest.mark.parametrize("filler", [b"\\a", b"''", b"' '", b'"', b"$'\\x41'", b"\n# x", b"A=\n", b"\xff"])
def test_large_files_of_one_repeated_piece_are_read_in_passing(filler: bytes) -> None:
    body = filler * (STATIC_FILE_LIMIT // len(filler) - 2000)
    rc = b"if [ $# -gt 0 ]; then\nexec " + body + b' "$@"\nelse\nexec ' + body[:9] + b"\nfi\n"
    facts = static_facts({"os-release": b"NAME=x\nID=" + body, "rc": rc, "environment": body})
    json.dumps(facts, ensure_ascii=False).encode("utf-8")


NAMES = ["superblock", "elf", "os-release", "environment", "rc", "dpkg-count"]


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=200)))
def test_any_bytes_give_plain_json(files: dict[str, bytes]) -> None:
    json.dumps(plain_json(static_facts(files)), ensure_ascii=False, allow_nan=False).encode("utf-8")


def test_names_that_airflow_would_act_on_are_left_out_and_told() -> None:
    config = {"labels": {"__type": "airflow.sdk.Asset", "__var": "x", "kept": "y"}}
    facts = static_facts(
        {
            "environment": b"__classname__=airflow.sdk.Asset\n__version__=1\n__data__=x\nPATH=/bin\n",
            "rc": b"# __id__ 1\n# kept y\n" + RC_BODY,
            "oci-config": json.dumps(config).encode(),
        }
    )
    assert facts["environment"] == {"PATH": "/bin"}
    assert facts["labels"] == {"kept": "y"}
    assert [text for text in facts["warnings"] if "left out" in text] == [
        "environment: 3 names that begin with '__' were left out",
        "rc: 1 names that begin with '__' were left out",
        "oci-config: 2 names that begin with '__' were left out",
    ]


def test_text_that_a_database_cannot_hold_is_marked() -> None:
    script = b"\nif [ $# -gt 0 ]; then\n    exec $'a\\0b' \"$@\"\nelse\n    exec $'a\\0b'\nfi\n"
    config = json.dumps({"labels": {"a\0b": "c\0d"}, "user": "\0", "volumes": 3}).encode()
    facts = static_facts({"rc": script, "oci-config": config.replace(b', "volumes": 3', b"")})
    assert facts["entrypoint"] == ["a\ufffdb"]
    assert (facts["labels"], facts["user"]) == ({"a\ufffdb": "c\ufffdd"}, "\ufffd")
    assert static_facts({"oci-config": b'{"labels": {"a\\u0000b": 3}}'})["warnings"][-1].count("\0") == 0


@given(st.binary(min_size=96, max_size=96), st.integers(0, 95))
def test_a_superblock_with_any_bytes_changed_is_read_or_refused(noise: bytes, cut: int) -> None:
    raw = REAL_SUPERBLOCK[:cut] + noise[cut:]
    facts = static_facts({"superblock": raw})
    assert ("compression" in facts) != any(text.startswith("superblock:") for text in facts["warnings"])


@given(st.text("ABC_abc=\"'\\ $\n#", max_size=60))
def test_any_os_release_gives_a_name_or_a_reason(text: str) -> None:
    facts = static_facts({"os-release": f"NAME=x\n{text}".encode()})
    assert "os" in facts or any(line.startswith("os-release:") for line in facts["warnings"])


@given(st.text("exec '\"$@\\x03\n cd&", max_size=60), st.text("exec '\"$@\\x03 cn", max_size=60))
def test_any_start_script_is_read_or_refused(first: str, second: str) -> None:
    raw = f'{first}\nif [ $# -gt 0 ]; then\n    exec {second} "$@"\nelse\n    exec {second}\nfi\n'.encode()
    facts = static_facts({"rc": raw})
    json.dumps(facts, ensure_ascii=False).encode("utf-8")


def test_what_was_read_from_outside_is_never_replaced() -> None:
    static = {"os": "real", "architecture": "amd64", "warnings": ["outside"]}
    merged = image_section(static, {"os": "fake", "python_version": "3.12.1", "warnings": ["inside"]})
    assert merged == {
        "os": "real",
        "architecture": "amd64",
        "python_version": "3.12.1",
        "warnings": ["outside", "inside"],
    }
    assert image_section(static) == static
