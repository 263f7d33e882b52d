# SPDX-License-Identifier: Apache-2.0
"""The catalog: what aliases mean now and meant before, what the store holds, and what of it can be used again.

Reads the answers of ``catalog.sh`` (and of ``prepare.sh``, which sends candidates for reuse the same way). A record
on the cluster is input like any other: validated here, and one that cannot be read is told, not dropped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from airflow_slurm_images.core.records import MAX_RECORD_BYTES, CompletedFile, ImageRecord, SourceIdentity
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.requests import OCI_ARCHITECTURES

FileStatus = Literal["file", "missing", "other"]

_N = r"([0-9]{1,18})"
_FILE = rf"(file|missing|other) {_N} {_N} (-?[0-9]{{1,18}}) (/.*)"
_VERSION = re.compile(rf"(\S+) {_N} ([01]) {_N} {_FILE}", re.DOTALL)
_STORED = re.compile(rf"([0-9a-f]{{64}}) {_N} {_FILE}", re.DOTALL)


@dataclass(frozen=True)
class FileState:
    """A file as it is now: size in bytes, ``mtime`` in seconds since the epoch. ``other``: a link, a directory."""

    status: FileStatus
    size_bytes: int
    inode: int
    mtime: int


@dataclass(frozen=True)
class AliasVersion:
    """One meaning of an alias.

    ``published_at`` is by the file server's clock; ``problem`` tells why ``record`` is None.
    """

    name: str
    number: int
    current: bool
    published_at: int
    path: str
    file: FileState
    record: ImageRecord | None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, for XCom and logs."""
        return {
            "name": self.name,
            "number": self.number,
            "current": self.current,
            "published_at": self.published_at,
            "path": self.path,
            "file": self.file.status,
            "record": self.record.model_dump(mode="json") if self.record else None,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class StoredImage:
    """One file of the store with the record beside it."""

    sha256: str
    recorded_at: int
    path: str
    file: FileState
    record: ImageRecord | None
    problem: str | None = None


@dataclass(frozen=True)
class Catalog:
    """Answer of one look. ``versions``: current ones before their history, each alias's newest first."""

    versions: tuple[AliasVersion, ...] = ()
    stored: tuple[StoredImage, ...] = ()

    def current(self, name: str) -> AliasVersion | None:
        """What ``name`` means now."""
        return next((version for version in self.versions if version.name == name and version.current), None)


class StoreFacts(BaseModel):
    """Key ``store`` of a record on the cluster: what has to be the same for the file to be used again.

    ``architecture`` is that of the image in ``uname -m``'s words; ``requested_architecture`` and ``partition``
    matter where none was asked for, as then the partition's nodes decide.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    kind: str
    squash_options: str
    architecture: str | None
    requested_architecture: str | None
    partition: str | None
    size_bytes: int
    inode: int
    mtime: int

    @classmethod
    def of(
        cls,
        file: CompletedFile,
        *,
        kind: str,
        squash_options: str,
        architecture: str | None,
        requested_architecture: str | None,
        partition: str | None,
    ) -> StoreFacts:
        """Facts of the file a job saw."""
        return cls(
            kind=kind,
            squash_options=squash_options,
            architecture=_machine(architecture),
            requested_architecture=_machine(requested_architecture),
            partition=partition,
            size_bytes=file.size_bytes,
            inode=file.inode,
            mtime=file.mtime,
        )


@dataclass(frozen=True)
class Reusable:
    """A file of the store that is what an import would make. ``needs_inspection``: recorded for another kind only."""

    record: ImageRecord
    facts: StoreFacts
    needs_inspection: bool


def read(result: RemoteResult) -> Catalog:
    """Read the fields ``version.N`` and ``stored.N``; a line that is not ours is left out."""
    versions, stored = [], []
    for index in _indices(result, "version."):
        match = _VERSION.fullmatch(result.text(f"version.{index}"))
        if match:
            record, problem = _record(result.data(f"version.{index}.record"))
            name, number, current, published, status, size, inode, mtime, path = match.groups()
            file = FileState(_status(status), int(size), int(inode), int(mtime))
            versions.append(
                AliasVersion(name, int(number), current == "1", int(published), path, file, record, problem)
            )
    for index in _indices(result, "stored."):
        match = _STORED.fullmatch(result.text(f"stored.{index}"))
        if match:
            record, problem = _record(result.data(f"stored.{index}.record"))
            sha256, recorded, status, size, inode, mtime, path = match.groups()
            file = FileState(_status(status), int(size), int(inode), int(mtime))
            stored.append(StoredImage(sha256, int(recorded), path, file, record, problem))
    return Catalog(tuple(versions), tuple(stored))


def _indices(result: RemoteResult, prefix: str) -> Iterable[int]:
    count = 0
    while f"{prefix}{count}" in result.fields:
        yield count
        count += 1


def _status(text: str) -> FileStatus:
    return "file" if text == "file" else "missing" if text == "missing" else "other"


def _record(data: bytes | None) -> tuple[ImageRecord | None, str | None]:
    if data is None:
        return None, "the record is missing, or is not a regular file"
    if len(data) > MAX_RECORD_BYTES:
        return None, "the record is larger than 1 MiB"
    try:
        return ImageRecord.model_validate_json(data), None
    except ValidationError as err:
        fault = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "record"
        return None, f"the record is not valid: {where}: {fault['msg']}"


def find_reusable(
    catalog: Catalog,
    *,
    source_digest: str,
    architecture: str | None,
    partition: str | None,
    squash_options: str,
    kind: str,
    verified: bool = False,
) -> Reusable | None:
    """The store's file for an import that was done before, or None.

    Same OCI digest (of the index or, where the job compared it, of the platform's manifest in it), same platform, same
    squash options, a valid record, and a file whose size, inode and mtime are the recorded ones. Two imports usually
    give the same bytes, but they are never compared. Where no ``architecture`` is asked for, the import must have been
    made without one too, in the same partition. ``verified``: only an import whose manifest was compared. Prefers a
    record of the same ``kind``, then the newest. The record returned names the file where it is now.
    """
    candidates = [(item.recorded_at, item.record, item.path, item.file) for item in catalog.stored]
    candidates += [(item.published_at, item.record, item.path, item.file) for item in catalog.versions]
    best: Reusable | None = None
    for _, record, path, file in sorted(candidates, key=lambda candidate: candidate[0], reverse=True):
        facts = _usable(record, path, file, source_digest)
        if record is None or facts is None or facts.squash_options != squash_options:
            continue
        if not _same_platform(facts, _machine(architecture), partition):
            continue
        if verified and not source_extra(record.source, "manifest_verified"):
            continue
        found = Reusable(_at(record, path), facts, needs_inspection=facts.kind != kind)
        if not found.needs_inspection:
            return found
        best = best or found
    return best


def _at(record: ImageRecord, path: str) -> ImageRecord:
    """The record with the place where its file is now: the workspace may have moved since it was written."""
    return record.model_copy(update={"sqsh": record.sqsh.model_copy(update={"path": path})})


def _usable(record: ImageRecord | None, path: str, file: FileState, source_digest: str) -> StoreFacts | None:
    """Facts of a record that is about ``source_digest`` and about the file as it is now."""
    if record is None or record.source is None:
        return None
    if source_digest not in (record.source.oci_digest, source_extra(record.source, "platform_digest")):
        return None
    facts = store_facts(record)
    sqsh = record.sqsh
    if facts is None or not sqsh.managed or not path.endswith(f"/store/sha256/{sqsh.sha256}.sqsh"):
        return None
    inspection = record.inspection
    if inspection.sqsh_sha256 != sqsh.sha256 or inspection.inspection.kind != facts.kind:
        return None
    recorded = FileState("file", facts.size_bytes, facts.inode, facts.mtime)
    return facts if file == recorded and sqsh.size_bytes == file.size_bytes else None


def source_extra(source: SourceIdentity | None, name: str) -> str | None:
    """``platform_digest``, ``index_digest`` or ``manifest_verified``, which only the records of newer jobs have."""
    return getattr(source, name, None)


def _same_platform(facts: StoreFacts, architecture: str | None, partition: str | None) -> bool:
    if architecture is None:
        return facts.requested_architecture is None and facts.partition == partition
    return facts.architecture == architecture


def _machine(architecture: str | None) -> str | None:
    return OCI_ARCHITECTURES.get(architecture, architecture) if architecture else None


def store_facts(record: ImageRecord) -> StoreFacts | None:
    """The ``store`` key of a record read from the cluster; None where it is missing or malformed."""
    try:
        return StoreFacts.model_validate((record.model_extra or {}).get("store"))
    except ValidationError:
        return None


def means(version: AliasVersion, record: ImageRecord, facts: StoreFacts) -> bool:
    """Whether an alias means just this file of the store, from the same source and with the same kind of facts."""
    now = version.record
    return (
        now is not None
        and _oci_digest(now) == _oci_digest(record)
        and now.sqsh.managed
        and (now.sqsh.sha256, now.inspection.inspection.kind) == (record.sqsh.sha256, facts.kind)
        and version.path == record.sqsh.path
        and version.file == FileState("file", facts.size_bytes, facts.inode, facts.mtime)
    )


def _oci_digest(record: ImageRecord) -> str | None:
    return record.source.oci_digest if record.source else None


def published_by(version: AliasVersion) -> str | None:
    """The ``publisher`` that :func:`to_publish` was told."""
    store = (version.record.model_extra or {}).get("store") if version.record else None
    return store.get("publisher") if isinstance(store, dict) else None


def as_reused(record: ImageRecord, *, name: str, alias_path: str, source: SourceIdentity | None = None) -> ImageRecord:
    """The record of a run that found its work done: same file and facts, this alias, ``reused`` true, no ``store``.

    ``source`` replaces the recorded one, as the same digest may be asked for under another tag or repository.
    """
    values = record.model_dump(mode="json", exclude={"store"})
    values.update(name=name, reused=True)
    values["sqsh"]["alias_path"] = alias_path
    if source is not None:
        values["source"] = source.model_dump(mode="json")
    return ImageRecord.model_validate_json(json.dumps(values))


def to_publish(record: ImageRecord, facts: StoreFacts, publisher: str) -> bytes:
    """Payload of ``publish.sh``, in the model's order of keys.

    The script reads digest, SHA-256 and kind out of its beginning, before anything that an image could have chosen.
    ``publisher`` names the run: the same payload again is a call whose answer was lost, and is told what that call did.
    ``reuse_key`` stands last, where the scripts find it without reading JSON.
    """
    values = record.model_dump(mode="json", exclude={"store"})
    values["store"] = {**facts.model_dump(mode="json"), "publisher": publisher, "reuse_key": _reuse_key(record, facts)}
    return json.dumps(values, ensure_ascii=True).encode() + b"\n"


def _reuse_key(record: ImageRecord, facts: StoreFacts) -> str:
    """The same for two records that serve the same imports: with another one a record is written anew.

    Else an image whose file came back from a backup, or that is asked for in other words, would be imported each time.
    """
    values = [
        _oci_digest(record),
        *(source_extra(record.source, name) for name in ("platform_digest", "index_digest", "manifest_verified")),
        record.sqsh.sha256,
        facts.model_dump(mode="json"),
    ]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def publication_variables(
    record: ImageRecord, facts: StoreFacts, payload: bytes, *, on_conflict: str
) -> dict[str, str]:
    """Constants of ``publish.sh`` that follow from the record."""
    return {
        "ASI_TARGET": record.sqsh.path,
        "ASI_SHA256": record.sqsh.sha256,
        "ASI_SIZE": str(record.sqsh.size_bytes),
        "ASI_INODE": str(facts.inode),
        "ASI_MTIME": str(facts.mtime),
        "ASI_MANAGED": "1" if record.sqsh.managed else "0",
        "ASI_RECORD_SHA256": hashlib.sha256(payload).hexdigest(),
        "ASI_ON_CONFLICT": on_conflict,
    }
