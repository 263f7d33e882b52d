# SPDX-License-Identifier: Apache-2.0
"""How a command crosses the SSH channel: constant script files in, fields between random markers out.

The command on the channel is always :data:`COMMAND`, which any login shell can run; everything else travels on
standard input. Login scripts may print what they like: only lines that begin with the marker are read, and an
answer without its end line is truncated, never a result.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

from airflow_slurm_images.core.batch import assignment_block
from airflow_slurm_images.core.errors import (
    ClusterUnavailableError,
    ConflictError,
    IntegrityError,
    InvalidRequestError,
    NotVisibleError,
    SlurmImagesError,
)

COMMAND = "/bin/bash -p -s"
"""``-p``: no startup files, no functions from the environment."""

SCRIPTS: Mapping[str, tuple[str, ...]] = {
    "prepare": ("remote.sh", "records.sh", "prepare.sh"),
    "stage": ("remote.sh", "stage.sh"),
    "submit": ("remote.sh", "submit.sh"),
    "observe": ("remote.sh", "observe.sh"),
    "collect": ("remote.sh", "collect.sh"),
    "cancel": ("remote.sh", "cancel.sh"),
    "publish": ("remote.sh", "locks.sh", "publish.sh"),
    "catalog": ("remote.sh", "records.sh", "catalog.sh"),
    "prune": ("remote.sh", "locks.sh", "sweep.sh", "prune.sh"),
    "adopt": ("remote.sh", "adopt.sh"),
    "probe": ("remote.sh", "probe.sh"),
}
"""Verb -> the files of ``cluster/`` it is made of, in order."""

_REFUSALS: Mapping[str, tuple[type[SlurmImagesError], str | None]] = {
    "no_workspace": (InvalidRequestError, "Create the directory on the cluster or correct workspace_root."),
    "unsafe_workspace": (
        InvalidRequestError,
        "Correct owner and mode on the cluster, or choose another workspace_root.",
    ),
    "unavailable": (
        ClusterUnavailableError,
        "Look at the file system on the cluster; the task may be retried.",
    ),
    "not_visible": (
        NotVisibleError,
        "Check that login and compute nodes see one and the same workspace; a retry finds the file, or imports again.",
    ),
    "conflict": (
        ConflictError,
        "Decide which of the two is right: take another name, move the other one away, or allow to replace it "
        "(on_conflict).",
    ),
    "integrity": (
        IntegrityError,
        "Look at what is named: it is damaged, or somebody else wrote it. Move it away by hand, then try again.",
    ),
}


class TruncatedAnswerError(ClusterUnavailableError):
    """The connection ended before the command's end line arrived; what happened there is not known."""


@dataclass(frozen=True)
class RemoteResult:
    """Fields of one answer; a name that came several times has several values, in order."""

    status: int
    fields: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        """First value of ``name`` as text; undecodable bytes are replaced."""
        return self.fields[name][0].decode("utf-8", "replace") if name in self.fields else default

    def data(self, name: str) -> bytes | None:
        """First value of ``name`` as bytes, or None when it did not come."""
        return self.fields[name][0] if name in self.fields else None

    def texts(self, name: str) -> tuple[str, ...]:
        """All values of ``name`` as text."""
        return tuple(value.decode("utf-8", "replace") for value in self.fields.get(name, ()))

    def raise_refusal(self) -> None:
        """Turn the remote side's refusal into its error; do nothing when there is none."""
        if "refused" not in self.fields:
            return
        kind, remedy = _REFUSALS.get(self.text("refused"), (ClusterUnavailableError, None))
        raise kind(self.text("message"), remedy=remedy)


def package_file(name: str) -> bytes:
    """Bytes of one package-owned file below ``cluster/``."""
    return resources.files("airflow_slurm_images").joinpath("cluster", *name.split("/")).read_bytes()


def compose(verb: str, mark: str, variables: Mapping[str, str], payload: bytes = b"") -> bytes:
    """Standard input of :data:`COMMAND` for ``verb``: constants, script files, then the payload.

    bash reads a pipe byte by byte up to the line it executes, so the payload is left for the script to read.
    Raises InvalidRequestError for a value that cannot be a shell constant.
    """
    block = assignment_block({"ASI_MARK": mark, **variables})
    return block.encode() + b"".join(package_file(name) for name in SCRIPTS[verb]) + payload


def parse(raw: bytes, mark: str) -> RemoteResult:
    """Read the fields between the markers; raises TruncatedAnswerError when begin or end is missing."""
    fields: dict[str, list[bytes]] = {}
    began = False
    prefix = mark.encode() + b" "
    for line in raw.splitlines():
        if not line.startswith(prefix):
            continue
        words = line[len(prefix) :].split(b" ")
        if words == [b"begin"]:
            began = True
        elif began and words[0] == b"end" and len(words) == 2 and words[1].isdigit():
            return RemoteResult(int(words[1]), {name: tuple(values) for name, values in fields.items()})
        elif began and len(words) == 2:
            fields.setdefault(words[0].decode("ascii", "replace"), []).append(_decode(words[1]))
    raise TruncatedAnswerError(
        "The answer of the login node is truncated: its end marker did not arrive",
        remedy="The connection was cut or the login shell ended the command; try again.",
    )


def _decode(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as err:
        raise TruncatedAnswerError("A field of the login node's answer is damaged") from err
