# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from airflow_slurm_images.core import remote
from tests.shell.workspace import PRUNE, Workspace

DAY = 86400
NOW = {"ASI_GRACE_SECONDS": "0", "ASI_TRASH_SECONDS": "0"}
LOGIN = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path.resolve() / "ws")


def published(ws: Workspace, *contents: str, name: str = "vllm") -> list[Path]:
    files = [ws.add(content) for content in contents]
    for file in files:
        assert ws.publish(file, name).status == 0
    return files


def tree(root: Path) -> dict[str, tuple[int, int, int]]:
    """Every path with inode, mode and size; locks' home aside, which a rehearsal uses."""
    return {
        str(path.relative_to(root)): (path.lstat().st_ino, path.lstat().st_mode, path.lstat().st_size)
        for path in root.rglob("*")
        if path.name != ".locks"
    }


def test_without_a_rule_history_and_named_files_stay(ws: Workspace) -> None:
    files = published(ws, "one", "two", "three")
    assert ws.prune(**NOW) == []
    assert all(file.exists() for file in files)


def test_keep_last_counts_the_current_version(ws: Workspace) -> None:
    one, two, three = published(ws, "one", "two", "three")
    report = ws.prune(ASI_KEEP_LAST="2", **NOW)
    assert ("version", "removed", "aliases/vllm.d/1") in report
    assert [one.exists(), two.exists(), three.exists()] == [False, True, True]
    assert ws.current() == "three"
    assert ws.leftovers() == []


def test_the_current_version_stays_whatever_the_rules(ws: Workspace) -> None:
    published(ws, "one")
    ws.age(ws.aliases / "vllm.d/1/record.json", 100 * DAY)
    ws.prune(ASI_KEEP_LAST="0", ASI_KEEP_SECONDS="0", **NOW)
    assert ws.current() == "one"


def test_keep_days_counts_from_the_day_a_version_was_replaced(ws: Workspace) -> None:
    one, two, _ = published(ws, "one", "two", "three")
    for number, days in ((1, 100), (2, 40), (3, 3)):
        ws.age(ws.aliases / f"vllm.d/{number}/record.json", days * DAY)
    ws.prune(ASI_KEEP_SECONDS=str(30 * DAY), **NOW)
    assert [one.exists(), two.exists()] == [False, True]


def test_either_rule_keeps_a_version(ws: Workspace) -> None:
    one, two, _ = published(ws, "one", "two", "three")
    for number in (1, 2, 3):
        ws.age(ws.aliases / f"vllm.d/{number}/record.json", 100 * DAY)
    ws.prune(ASI_KEEP_LAST="2", ASI_KEEP_SECONDS=str(30 * DAY), **NOW)
    assert [one.exists(), two.exists()] == [False, True]


def test_a_file_that_another_alias_names_stays(ws: Workspace) -> None:
    one, _ = published(ws, "one", "two")
    published(ws, "one", name="pinned")
    report = ws.prune(ASI_KEEP_LAST="1", **NOW)
    assert report == [("version", "removed", "aliases/vllm.d/1")]
    assert one.exists()


def test_an_unnamed_file_waits_for_the_grace_period(ws: Workspace) -> None:
    one, _ = published(ws, "one", "two")
    name = f"store/sha256/{one.name}"
    assert ("image", "waiting", name) in ws.prune(ASI_KEEP_LAST="1")
    ws.age(ws.aliases / ".unnamed" / one.stem, 6 * DAY)
    assert ws.prune() == [("image", "waiting", name)]
    ws.age(ws.aliases / ".unnamed" / one.stem, 2 * DAY)
    assert ws.prune() == [("image", "trashed", name)]
    assert not one.exists()
    assert not one.with_suffix(".json").exists()
    trashed = ws.root / "store/.trash" / one.stem
    assert (trashed / one.name).read_text() == "one"
    ws.age(trashed, DAY)
    assert ws.prune() == [("image", "removed", f"store/.trash/{one.stem}")]
    assert not trashed.exists()
    assert ws.leftovers() == []


def test_a_file_that_a_job_added_and_nobody_published_yet_waits_too(ws: Workspace) -> None:
    file = ws.add("fresh")
    ws.age(file, 300 * DAY)
    assert ws.prune() == [("image", "waiting", f"store/sha256/{file.name}")]
    assert file.exists()


def test_naming_a_file_again_starts_the_grace_period_anew(ws: Workspace) -> None:
    one, _ = published(ws, "one", "two")
    ws.prune(ASI_KEEP_LAST="1")
    ws.age(ws.aliases / ".unnamed" / one.stem, 30 * DAY)
    ws.publish(one)
    published(ws, "three")
    assert ("image", "waiting", f"store/sha256/{one.name}") in ws.prune(ASI_KEEP_LAST="1")
    assert one.exists()


def test_a_marker_that_outlived_its_reason_does_not_shorten_the_grace_period(ws: Workspace) -> None:
    one, _ = published(ws, "one", "two")
    (ws.aliases / ".unnamed").mkdir(exist_ok=True)
    marker = ws.aliases / ".unnamed" / one.stem
    marker.touch()
    ws.age(marker, 30 * DAY)
    assert ("image", "waiting", f"store/sha256/{one.name}") in ws.prune(ASI_KEEP_LAST="1")


def test_what_an_alias_names_comes_back_from_the_trash(ws: Workspace) -> None:
    (one,) = published(ws, "one")
    item = ws.root / "store/.trash" / one.stem
    item.mkdir(parents=True)
    one.rename(item / one.name)
    ws.age(item, 30 * DAY)
    assert ws.prune() == [("image", "restored", f"store/sha256/{one.name}")]
    assert ws.current() == "one"


def test_a_dry_run_tells_the_same_and_changes_nothing(ws: Workspace) -> None:
    published(ws, "one", "two", "three")
    ws.add("stray")
    ws.prune()
    before = tree(ws.root)
    rehearsal = ws.prune(ASI_KEEP_LAST="1", ASI_DRY_RUN="1", ASI_GRACE_SECONDS="0")
    assert tree(ws.root) == before
    assert sorted(rehearsal) == sorted(ws.prune(ASI_KEEP_LAST="1", ASI_GRACE_SECONDS="0"))


def test_an_unmanaged_file_is_never_touched(ws: Workspace, tmp_path: Path) -> None:
    given = tmp_path / "given.sqsh"
    given.write_text("mine")
    ws.publish(given, record=ws.record(given, oci=None))
    published(ws, "two")
    ws.prune(ASI_KEEP_LAST="1", **NOW)
    assert given.read_text() == "mine"


def test_an_unmanaged_alias_of_a_store_file_keeps_it(ws: Workspace) -> None:
    one = ws.add("one")
    ws.publish(one, record=ws.record(one, oci=None), ASI_MANAGED="0")
    assert ws.prune(**NOW) == []
    assert one.exists()


def test_versions_of_an_alias_without_current_stay(ws: Workspace) -> None:
    one, two = published(ws, "one", "two")
    (ws.aliases / "vllm.d/current").unlink()
    ws.prune(ASI_KEEP_LAST="1", **NOW)
    assert one.exists()
    assert two.exists()


def test_a_version_that_was_never_committed_goes(ws: Workspace) -> None:
    published(ws, "one")
    (ws.aliases / "vllm.d/2").mkdir()
    (ws.aliases / "vllm.d/2/record.json").touch()
    assert ws.prune() == [("version", "removed", "aliases/vllm.d/2")]


def test_stale_partial_files_go_and_fresh_ones_stay(ws: Workspace) -> None:
    stale, fresh = ws.store / ".partial-aa", ws.store / ".partial-bb"
    stale.write_text("half")
    fresh.write_text("half")
    ws.age(fresh, 10 * DAY)  # its rename into the store was just now
    ws.age(stale, 10 * DAY)
    report = ws.prune(ASI_PARTIAL_SECONDS="0")
    assert ("partial", "removed", "store/sha256/.partial-aa") in report
    assert ws.prune() == []


def test_a_partial_file_counts_by_its_last_change_not_only_by_its_bytes(ws: Workspace) -> None:
    moved = ws.store / ".partial-aa"
    moved.write_text("whole")
    ws.age(moved, 10 * DAY)  # ctime is now
    assert ws.prune() == []
    assert moved.exists()


def test_dead_locks_go_and_living_ones_stay(ws: Workspace) -> None:
    for name in ("alias-dead", "alias-alive", "alias-x.break"):
        (ws.aliases / ".locks" / name).mkdir(parents=True)
    ws.age(ws.aliases / ".locks/alias-dead", 3600)
    ws.age(ws.aliases / ".locks/alias-x.break", 3600)
    assert sorted(ws.prune()) == [
        ("lock", "removed", "aliases/.locks/alias-dead"),
        ("lock", "removed", "aliases/.locks/alias-x.break"),
    ]
    assert [path.name for path in (ws.aliases / ".locks").iterdir()] == ["alias-alive"]


def attempt(ws: Workspace, key: str, name: str, days: float) -> Path:
    directory = ws.root / "users" / LOGIN / "runs" / (key * 32) / (name * 16)
    (directory / "output/sealed").mkdir(parents=True)
    (directory / "slurm.out").write_text("log")
    (directory / "output/sealed").chmod(0o500)
    for path in (*directory.rglob("*"), directory):
        ws.age(path, days * DAY)
    return directory


def queue(ws: Workspace, script: str) -> None:
    binaries = ws.root / "bin"
    binaries.mkdir()
    squeue = binaries / "squeue"
    squeue.write_text(f"#!/bin/sh\n{script}\n")
    squeue.chmod(0o755)
    ws.environment["PATH"] = f"{binaries}:{ws.environment['PATH']}"


def test_old_run_directories_without_a_job_go(ws: Workspace) -> None:
    old, fresh, active = attempt(ws, "a", "1", 20), attempt(ws, "a", "2", 1), attempt(ws, "b", "3", 20)
    alone = attempt(ws, "c", "4", 20)
    queue(ws, f"echo asi-{'b' * 32}")
    report = ws.prune(ASI_RUN_SECONDS=str(14 * DAY))
    assert sorted(path for _, _, path in report) == sorted(str(path.relative_to(ws.root)) for path in (old, alone))
    assert [old.exists(), fresh.exists(), active.exists()] == [False, True, True]
    assert not alone.parent.exists()


def test_a_queue_that_does_not_answer_keeps_every_run(ws: Workspace) -> None:
    old = attempt(ws, "a", "1", 20)
    queue(ws, "exit 1")
    assert [action for _, action, _ in ws.prune(ASI_RUN_SECONDS=str(14 * DAY))] == ["kept"]
    assert old.exists()


def test_the_layer_cache_is_bounded_and_keeps_what_was_used_last(ws: Workspace) -> None:
    cache = ws.root / "users" / LOGIN / "cache"
    cache.mkdir(parents=True)
    for index in range(4):
        layer = cache / (str(index) * 64)
        layer.write_bytes(b"x" * 1000)
        ws.age(layer, index * DAY)
    (cache / "other").write_bytes(b"x" * 9000)
    ws.prune(ASI_CACHE_BYTES="2500")
    assert sorted(path.name[:5] for path in cache.iterdir()) == ["00000", "11111", "other"]


def test_when_the_time_is_up_the_rest_waits_for_the_next_call(ws: Workspace) -> None:
    one, _ = published(ws, "one", "two")
    result = ws.run("prune", {**PRUNE, **NOW, "ASI_KEEP_LAST": "1", "ASI_BUDGET_SECONDS": "0"})
    assert result.text("complete") == "0"
    assert one.exists()


def before_taking_a_lock(ws: Workspace, tmp_path: Path, command: str) -> None:
    """Something happens to a digest while its lock is waited for."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mkdir").write_text(f'#!/bin/sh\ncase "$*" in *sha256-*) {command};; esac\nexec /bin/mkdir "$@"\n')
    (tools / "mkdir").chmod(0o755)
    ws.environment["PATH"] = f"{tools}:{ws.environment['PATH']}"


def test_a_workspace_whose_store_is_a_link_is_refused(ws: Workspace, tmp_path: Path) -> None:
    ws.store.rmdir()
    ws.store.symlink_to(tmp_path)
    result = ws.run("prune", PRUNE)
    assert result.text("refused") == "unsafe_workspace"


def test_file_modes_do_not_stop_the_owner(ws: Workspace) -> None:
    one, _ = published(ws, "one", "two")
    assert stat.S_IMODE(one.stat().st_mode) == 0o400
    ws.prune(ASI_KEEP_LAST="1", **NOW)
    assert not one.exists()


def test_prune_says_how_it_ended(ws: Workspace) -> None:
    result: remote.RemoteResult = ws.run("prune", PRUNE)
    assert (result.status, result.text("complete"), result.text("report")) == (0, "1", "")


def test_what_came_back_and_went_again_meanwhile_stays_in_the_trash_for_its_time(ws: Workspace, tmp_path: Path) -> None:
    one = ws.add("one")
    item = ws.root / "store/.trash" / one.stem
    item.mkdir(parents=True)
    one.rename(item / one.name)
    ws.age(item, 30 * DAY)
    before_taking_a_lock(ws, tmp_path, f"touch {item}")
    assert ws.prune() == []
    assert (item / one.name).read_text() == "one"


def test_a_file_that_cannot_be_brought_back_is_not_said_to_be(ws: Workspace) -> None:
    (one,) = published(ws, "one")
    item = ws.root / "store/.trash" / one.stem
    item.mkdir(parents=True)
    one.unlink()
    one.with_suffix(".json").rename(item / f"{one.stem}.json")
    assert ws.prune() == [("image", "kept", f"store/.trash/{one.stem}")]


@pytest.mark.parametrize(
    "place",
    [
        "store/.trash/{hex}/notes",
        "store/.trash/notes",
        "store/sha256/notes",
        "store/sha256/{other}.sqsh/notes",
        "aliases/notes",
        "aliases/vllm.d/notes",
        "aliases/.unnamed/notes",
        "aliases/.locks/alias-x.dead-y/notes",
        "aliases/.locks/alias-x.dead-y/sub/owner",
        "aliases/.locks/.notes",
        "aliases/.locks/notes/notes",
    ],
)
def test_what_is_not_ours_is_never_lost(ws: Workspace, place: str) -> None:
    one, _ = published(ws, "one", "two")
    path = ws.root / place.format(hex=one.stem, other="0" * 64)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("precious")
    ws.preamble = b"sleep() { :; }\n"
    for _ in range(3):
        for found in (*ws.aliases.rglob("*"), *ws.root.glob("store/.trash/*")):
            ws.age(found, 100 * DAY)
        ws.prune(ASI_KEEP_LAST="1", ASI_PARTIAL_SECONDS="0", **NOW)
    assert not one.exists()
    assert [found.read_text() for found in ws.root.rglob("*") if found.name == path.name and found.is_file()] == [
        "precious"
    ]
    assert ws.current() == "two"


@pytest.mark.parametrize("place", ["aliases", "aliases/vllm.d", "store", "store/.trash"])
def test_what_a_killed_maker_of_a_directory_left_goes_when_it_is_old(ws: Workspace, place: str) -> None:
    published(ws, "one")
    left = ws.root / place / ".new-dead-1"
    left.mkdir(parents=True)
    rules = {"ASI_PARTIAL_SECONDS": str(DAY)}
    if place != "aliases/vllm.d":  # there the alias's lock tells that its maker is dead
        assert ws.prune(**rules) == []
        os.utime(left, (1, 1))
        assert ws.prune(**rules) == [], "its mode was set a moment ago"
    ws.prune(ASI_PARTIAL_SECONDS="0")
    assert not left.exists()
    assert ws.leftovers() == []


# --- names that another member of the group chose


def test_the_text_of_a_link_is_never_calculated(ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = published(ws, "one", "two")
    history = ws.aliases / "vllm.d"
    text = "UID[$(touch injected)]"
    (history / text).mkdir()
    (history / "current").unlink()
    (history / "current").symlink_to(text)
    report = ws.prune(ASI_KEEP_LAST="1", **NOW)
    assert report == [("version", "kept", f"aliases/vllm.d/{number}") for number in (2, 1)]
    assert all(file.exists() for file in files)
    assert not (tmp_path / "injected").exists()


@pytest.mark.parametrize(
    "name",
    [
        "store/sha256/.partial-a\t1\tUID[$(touch injected)]\t1",
        "store/sha256/.partial-a\t1\t1\t1\n.precious",
        "store/sha256/.partial-a\n1\t1\t1\t.precious",
        "aliases/.locks/a\n.precious",
    ],
)
def test_the_name_of_a_file_is_neither_calculated_nor_taken_for_another_path(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".precious").write_text("of whoever prunes")
    published(ws, "one")
    (ws.root / name).write_text("")
    for path in (ws.root / name, tmp_path / ".precious"):
        ws.age(path, 100 * DAY)
    ws.prune(ASI_PARTIAL_SECONDS="0")
    assert {path.name for path in tmp_path.iterdir()} == {".precious", "ws"}


def test_a_file_that_somebody_wants_while_its_lock_is_waited_for_stays(ws: Workspace, tmp_path: Path) -> None:
    one, _ = published(ws, "one", "two")
    ws.prune(ASI_KEEP_LAST="1")
    mark = ws.aliases / ".unnamed" / one.stem
    ws.age(mark, 100 * DAY)
    # A job that brought the same bytes held the lock just before, and took the mark away.
    before_taking_a_lock(ws, tmp_path, f"rm -f {mark}")
    assert ws.prune() == [("image", "kept", f"store/sha256/{one.name}")]
    assert one.exists()
