# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images import reuse
from airflow_slurm_images.core import catalog
from airflow_slurm_images.core.catalog import Catalog, Reusable
from airflow_slurm_images.core.housekeeping import PruneReport, PruneRules
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.records import CompletedFile, ImageRecord
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.core.requests import build_import
from airflow_slurm_images.core.run_state import RunState
from airflow_slurm_images.core.slurm import QueueAnswer
from tests.shell.workspace import DIGEST, Workspace

OTHER = "sha256:" + "e" * 64
WANTED: dict[str, Any] = {
    "source_digest": DIGEST,
    "architecture": None,
    "partition": "cpu",
    "squash_options": "-comp zstd",
    "kind": "generic",
}


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path.resolve() / "ws")


def look(ws: Workspace, name: str = "", history: str = "0") -> Catalog:
    result = ws.run("catalog", {"ASI_NAME": name, "ASI_HISTORY": history})
    assert result.text("workspace") == str(ws.root)
    return catalog.read(result)


def candidates(ws: Workspace, digest: str = DIGEST) -> Catalog:
    return catalog.read(ws.run("candidates", {"ASI_ROOT": str(ws.root), "ASI_SOURCE_DIGEST": digest}))


def reusable(ws: Workspace, **changes: Any) -> Reusable | None:
    wanted = {**WANTED, **changes}
    return catalog.find_reusable(candidates(ws, wanted["source_digest"]), **wanted)


def edited(ws: Workspace, file: Path, key: str, value: object) -> bytes:
    record = json.loads(ws.record(file))
    record["store"][key] = value
    return json.dumps(record).encode() + b"\n"


# --- the catalog


def test_a_workspace_without_aliases_is_an_empty_catalog(ws: Workspace) -> None:
    ws.aliases.rmdir()
    assert look(ws) == Catalog()


def test_the_catalog_lists_every_alias_with_its_record(ws: Workspace) -> None:
    ws.publish(ws.add("one"), "a")
    ws.publish(ws.add("two"), "b.c")
    seen = look(ws)
    assert [version.name for version in seen.versions] == ["a", "b.c"]
    current = seen.current("b.c")
    assert current is not None and current.record is not None
    assert (current.number, current.file.status, current.path) == (1, "file", str(ws.add("two")))
    assert current.record.sqsh.sha256 == ws.add("two").stem
    assert seen.current("missing") is None
    assert json.loads(json.dumps(current.to_dict()))["record"]["name"] == "b.c"


def test_history_tells_what_an_alias_meant_before_newest_first(ws: Workspace) -> None:
    for content in ("one", "two", "three"):
        ws.publish(ws.add(content))
    ws.age(ws.aliases / "vllm.d/1/record.json", 86400)
    seen = look(ws, "vllm", "1")
    assert [(version.number, version.current) for version in seen.versions] == [(3, True), (2, False), (1, False)]
    assert seen.versions[0].published_at - seen.versions[2].published_at >= 86400
    assert all(version.record and version.record.job.run_directory for version in seen.versions)
    assert [version.number for version in look(ws, "vllm").versions] == [3]


def test_a_version_that_was_never_committed_is_not_shown(ws: Workspace) -> None:
    ws.publish(ws.add("one"))
    ws.publish(ws.add("two"))
    (ws.aliases / "vllm.d/current").unlink()
    (ws.aliases / "vllm.d/current").symlink_to("1")
    assert [version.number for version in look(ws, "vllm", "1").versions] == [1]


def test_a_missing_file_and_a_broken_record_are_told(ws: Workspace) -> None:
    ws.publish(ws.add("one"))
    ws.add("one").unlink()
    record = ws.aliases / "vllm.d/1/record.json"
    record.unlink()
    record.write_text('{"schema_version": 2}')
    (version,) = look(ws).versions
    assert version.file.status == "missing"
    assert version.record is None
    assert version.problem is not None and "schema_version" in version.problem


def test_a_record_that_is_a_link_is_not_read(ws: Workspace, tmp_path: Path) -> None:
    ws.publish(ws.add("one"))
    record = ws.aliases / "vllm.d/1/record.json"
    record.rename(tmp_path / "elsewhere")
    record.symlink_to(tmp_path / "elsewhere")
    (version,) = look(ws).versions
    assert version.record is None


def test_an_unmanaged_alias_shows_the_file_where_it_is(ws: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "given.sqsh"
    file.write_text("mine")
    ws.publish(file, record=ws.record(file, oci=None))
    (version,) = look(ws).versions
    assert (version.path, version.file.size_bytes) == (str(file), 4)


def test_lines_that_are_not_ours_are_left_out() -> None:
    fields = {"version.0": (b"name with spaces",), "version.1": (b"a 1 1 5 file 1 2 3 /ws/x",), "stored.0": (b"zz",)}
    seen = catalog.read(RemoteResult(0, fields))
    assert [version.name for version in seen.versions] == ["a"]
    assert seen.stored == ()


# --- reuse


def test_the_same_digest_platform_and_options_are_reused(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file)
    found = reusable(ws)
    assert found is not None
    assert (found.record.sqsh.path, found.needs_inspection) == (str(file), False)


@pytest.mark.parametrize(
    "changes",
    [
        {"source_digest": OTHER},
        {"architecture": "aarch64"},
        {"partition": "arm"},
        {"squash_options": "-comp lzo"},
    ],
)
def test_any_other_wish_is_not_answered_with_this_file(ws: Workspace, changes: dict[str, Any]) -> None:
    ws.publish(ws.add("one"))
    assert reusable(ws, **changes) is None


@pytest.mark.parametrize("architecture", ["amd64", "x86_64"])
def test_an_architecture_asked_for_is_that_of_the_image_by_either_name(ws: Workspace, architecture: str) -> None:
    file = ws.add("one")
    ws.publish(file, record=edited(ws, file, "architecture", "x86_64"))
    assert reusable(ws, architecture=architecture, partition="another") is not None


def test_without_an_architecture_an_import_that_asked_for_one_does_not_count(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file, record=edited(ws, file, "requested_architecture", "aarch64"))
    assert reusable(ws) is None


def test_another_kind_needs_an_inspection_only(ws: Workspace) -> None:
    ws.publish(ws.add("one"))
    found = reusable(ws, kind="client")
    assert found is not None and found.needs_inspection


def test_a_record_of_the_right_kind_is_preferred_wherever_it_is(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file)
    ws.publish(file, record=ws.record(file, kind="client"))
    for kind in ("generic", "client"):
        found = reusable(ws, kind=kind)
        assert found is not None and not found.needs_inspection
        assert found.record.inspection.inspection.kind == kind


@pytest.mark.parametrize("change", ["size", "mtime", "inode", "gone", "link"])
def test_a_file_that_is_not_what_was_recorded_is_not_reused(ws: Workspace, tmp_path: Path, change: str) -> None:
    file = ws.add("one")
    ws.publish(file)
    file.chmod(0o600)
    if change == "size":
        stamp = file.stat().st_mtime
        file.write_text("longer")
        ws.age(file, file.stat().st_mtime - stamp)
    elif change == "mtime":
        ws.age(file, 5)
    else:
        file.rename(tmp_path / "kept")
        if change == "link":
            file.symlink_to(tmp_path / "kept")
        elif change == "inode":
            file.write_text("one")
            ws.age(file, file.stat().st_mtime - (tmp_path / "kept").stat().st_mtime)
    assert reusable(ws) is None


def test_two_imports_of_one_digest_differ_in_bytes_and_the_newest_is_taken(ws: Workspace) -> None:
    first, second = ws.add("one"), ws.add("two")
    ws.publish(first)
    ws.publish(second)
    for path in (first.with_suffix(".json"), ws.aliases / "vllm.d/1/record.json"):
        ws.age(path, 60)
    found = reusable(ws)
    assert found is not None and found.record.sqsh.path == str(second)


def test_an_unmanaged_or_foreign_record_is_not_reused(ws: Workspace) -> None:
    file = ws.add("one")
    record = json.loads(ws.record(file))
    record["sqsh"]["managed"] = False
    ws.publish(file, record=json.dumps(record).encode() + b"\n", ASI_MANAGED="0")
    assert reusable(ws) is None
    file.with_suffix(".json").write_text(json.dumps({"oci_digest": DIGEST}))
    assert reusable(ws) is None


def test_a_record_without_store_facts_is_not_reused(ws: Workspace) -> None:
    file = ws.add("one")
    record = json.loads(ws.record(file))
    del record["store"]
    ws.publish(file, record=json.dumps(record).encode() + b"\n")
    assert reusable(ws) is None


def test_an_old_record_survives_the_pruning_of_its_alias_version(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file)
    other = ws.add("two")
    ws.publish(other, record=ws.record(other, oci=OTHER))
    ws.prune(ASI_KEEP_LAST="1")
    found = reusable(ws)
    assert found is not None and found.record.sqsh.path == str(file)


def test_at_most_sixteen_candidates_are_sent(ws: Workspace) -> None:
    for number in range(10):
        ws.publish(ws.add(str(number)))
    seen = candidates(ws)
    assert len(seen.versions) + len(seen.stored) == 16


def test_records_that_serve_the_same_imports_are_sent_once(ws: Workspace) -> None:
    file = ws.add("one")
    for number, kind in enumerate(["client", *["generic"] * 20]):
        record = image_record(ws, kind)
        facts = catalog.store_facts(record)
        assert facts is not None
        ws.publish(file, f"alias{number}", record=catalog.to_publish(record, facts, f"run.{number}"))
        if kind == "client":
            for path in (file.with_suffix(".json"), ws.aliases / "alias0.d/1/record.json"):
                ws.age(path, 60)
    seen = candidates(ws)
    assert len(seen.versions) + len(seen.stored) == 2
    found = reusable(ws, kind="client")
    assert found is not None and not found.needs_inspection


def verified(ws: Workspace, file: Path, *, platform: str | None, index: str | None = None) -> bytes:
    record = json.loads(ws.record(file))
    record["source"] |= {"platform_digest": platform, "index_digest": index, "manifest_verified": platform is not None}
    return json.dumps(record).encode() + b"\n"


def test_a_verified_import_is_found_behind_newer_ones_that_were_not(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file, "first", record=verified(ws, file, platform=DIGEST))
    for path in (file.with_suffix(".json"), ws.aliases / "first.d/1/record.json"):
        ws.age(path, 60)
    ws.publish(file, "second", record=verified(ws, file, platform=None))
    for wanted in (True, False):
        found = reusable(ws, verified=wanted)
        assert found is not None
        assert bool(catalog.source_extra(found.record.source, "manifest_verified")) is wanted


def test_the_manifest_that_an_index_named_is_the_same_source(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file, record=verified(ws, file, platform=OTHER, index=DIGEST))
    assert reusable(ws, source_digest="sha256:" + "f" * 64) is None
    request = build_import(image=f"reg.example/a/b@{OTHER}", name="vllm", kind="generic")
    profile = ClusterProfile(workspace_root=str(ws.root), partition="cpu", squash_options="-comp zstd")
    queue = QueueAnswer("ok")
    found = reuse.find(
        RunState(str(ws.root), "ann", "login", (), queue, candidates(ws, OTHER)), request, profile, "skip"
    )
    assert found.record is not None and found.record.source is not None
    source = found.record.source.model_dump()
    assert (source["oci_digest"], source["platform_digest"], source["index_digest"]) == (OTHER, OTHER, None)


def test_an_index_is_not_the_same_source_as_the_manifest_that_was_imported(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file, record=verified(ws, file, platform=DIGEST))
    assert reusable(ws, source_digest=OTHER) is None


def test_records_that_serve_other_imports_have_other_keys(ws: Workspace) -> None:
    record, again = image_record(ws), image_record(ws)
    facts = catalog.store_facts(record)
    assert facts is not None and record.source is not None

    def key(record: ImageRecord, facts: catalog.StoreFacts) -> str:
        return str(json.loads(catalog.to_publish(record, facts, "run.1"))["store"]["reuse_key"])

    again = again.model_copy(update={"job": again.job.model_copy(update={"job_id": 99}), "image": {"x": 1}})
    assert key(again, facts) == key(record, facts)
    source = record.source.model_copy(update={"manifest_verified": True})
    others = [key(record, facts.model_copy(update={name: 1})) for name in ("inode", "mtime")]
    others += [key(record, facts.model_copy(update={name: "x"})) for name in ("partition", "squash_options", "kind")]
    others += [key(record.model_copy(update={"source": source}), facts), key(record, facts)]
    assert len(set(others)) == len(others)


# --- publishing and reused records


def image_record(ws: Workspace, kind: str = "generic") -> ImageRecord:
    return ImageRecord.model_validate_json(ws.record(ws.add("one"), kind=kind))


def test_what_is_published_can_be_found_and_reused_again(ws: Workspace) -> None:
    record = image_record(ws)
    stat = ws.add("one").stat()
    seen = CompletedFile(
        path=record.sqsh.path,
        sha256=record.sqsh.sha256,
        size_bytes=stat.st_size,
        inode=stat.st_ino,
        mtime=int(stat.st_mtime),
        managed=True,
    )
    facts = catalog.StoreFacts.of(
        seen,
        kind="generic",
        squash_options="-comp zstd",
        architecture="amd64",
        requested_architecture=None,
        partition="cpu",
    )
    payload = catalog.to_publish(record, facts, "run.1")
    variables = catalog.publication_variables(record, facts, payload, on_conflict="fail")
    assert not ws.publish(ws.add("one"), record=payload, **variables).fields.get("refused")
    found = reusable(ws)
    assert found is not None
    again = catalog.as_reused(found.record, name="other", alias_path="/ws/aliases/other.sqsh")
    assert (again.name, again.sqsh.alias_path, again.reused) == ("other", "/ws/aliases/other.sqsh", True)
    assert again.sqsh.sha256 == record.sqsh.sha256
    assert "store" not in again.model_dump()


def test_the_payload_keeps_the_order_of_the_model_whatever_the_image_says(ws: Workspace) -> None:
    record = image_record(ws).model_copy(update={"image": {"sqsh": {"sha256": "f" * 64}, "oci_digest": OTHER}})
    facts = catalog.store_facts(record)
    assert facts is not None
    text = catalog.to_publish(record, facts, "run.1").decode()
    assert text.startswith('{"schema_version":')
    assert text.index('"sqsh":') < text.index('"image":') < text.index('"store":')
    assert text.index(DIGEST) < text.index(OTHER)


def test_only_the_hash_of_the_same_payload_goes_with_it(ws: Workspace) -> None:
    record = image_record(ws)
    facts = catalog.store_facts(record)
    assert facts is not None
    one, two = (
        catalog.publication_variables(
            record, replace_facts, catalog.to_publish(record, replace_facts, "run.1"), on_conflict="fail"
        )
        for replace_facts in (facts, facts.model_copy(update={"mtime": 1}))
    )
    assert one["ASI_RECORD_SHA256"] != two["ASI_RECORD_SHA256"]


# --- housekeeping


def test_prune_rules_become_constants_in_seconds() -> None:
    variables = PruneRules(keep_last=2, keep_days=0.5, run_days=None).variables(dry_run=True, budget_seconds=9)
    assert variables == {
        "ASI_KEEP_LAST": "2",
        "ASI_KEEP_SECONDS": "43200",
        "ASI_GRACE_SECONDS": "604800",
        "ASI_TRASH_SECONDS": "86400",
        "ASI_PARTIAL_SECONDS": "172800",
        "ASI_RUN_SECONDS": "",
        "ASI_CACHE_BYTES": "",
        "ASI_BUDGET_SECONDS": "9",
        "ASI_DRY_RUN": "1",
    }


def report(*lines: str, complete: str = "1") -> PruneReport:
    text = "".join(line.replace(" ", "\t") + "\n" for line in lines)
    return PruneReport.read(
        RemoteResult(0, {"report": (text.encode(),), "complete": (complete.encode(),)}), dry_run=False
    )


def test_the_report_counts_and_adds_up() -> None:
    told = report("image removed 100 /ws/a x", "image trashed 50 /ws/b y", "run removed 7 /ws/c z", "noise")
    values = told.to_dict()
    assert values["counts"] == {"image removed": 1, "image trashed": 1, "run removed": 1}
    assert (values["freed_bytes"], values["complete"], values["actions_left_out"]) == (107, True, 0)
    assert json.loads(json.dumps(values)) == values


def test_several_calls_make_one_report_without_repetition() -> None:
    first = report("image waiting 1 /ws/a x", "image trashed 2 /ws/b y", complete="0")
    second = report("image waiting 1 /ws/a x", "image removed 3 /ws/c z")
    merged = PruneReport.merge([first, second])
    assert [action.path for action in merged.actions] == ["/ws/a", "/ws/b", "/ws/c"]
    assert merged.complete
    assert replace(merged, complete=False).to_dict()["complete"] is False


def test_a_workspace_that_moved_is_reused_where_it_is_now(ws: Workspace, tmp_path: Path) -> None:
    ws.publish(ws.add("one"))
    moved = Workspace(ws.root.rename(tmp_path.resolve() / "elsewhere"))
    found = reusable(moved)
    assert found is not None
    assert found.record.sqsh.path == str(moved.add("one"))
    again = catalog.as_reused(found.record, name="vllm", alias_path=f"{moved.root}/aliases/vllm.sqsh")
    assert again.sqsh.path == str(moved.add("one"))
    payload = catalog.to_publish(again, found.facts, "run.1")
    variables = catalog.publication_variables(again, found.facts, payload, on_conflict="replace")
    result = moved.run("publish", {"ASI_ROOT": str(moved.root), "ASI_NAME": "vllm", **variables}, payload)
    assert "refused" not in result.fields
