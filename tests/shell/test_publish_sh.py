# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_slurm_images.core import remote
from tests.shell.workspace import DIGEST, MARK, Workspace

OTHER = "sha256:" + "e" * 64


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path.resolve() / "ws")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def callers(ws: Workspace, number: int) -> list[Workspace]:
    """As many tasks: each call has a marker of its own."""
    return [replace(ws, mark=f"asi-{index:032x}") for index in range(number)]


def refusal(result: remote.RemoteResult) -> str:
    return result.text("refused")


def test_first_publication_makes_the_layout_of_the_contract(ws: Workspace) -> None:
    file = ws.add("one")
    result = ws.publish(file)
    assert (result.status, result.text("number"), result.text("moved")) == (0, "1", "1")
    assert result.text("alias_path") == str(ws.aliases / "vllm.sqsh")
    assert result.data("previous") is None
    assert (ws.aliases / "vllm.sqsh").readlink() == Path("vllm.d/current/image.sqsh")
    assert (ws.aliases / "vllm.json").readlink() == Path("vllm.d/current/record.json")
    assert (ws.aliases / "vllm.d/current").readlink() == Path("1")
    assert (ws.aliases / "vllm.sqsh").resolve() == file
    assert (ws.aliases / "vllm.json").read_bytes() == ws.record(file) == file.with_suffix(".json").read_bytes()
    assert ws.current() == "one"
    assert ws.leftovers() == []


def test_private_modes_are_explicit(ws: Workspace) -> None:
    ws.preamble = b"umask 0\n"
    file = ws.add("one")
    ws.publish(file)
    assert mode(ws.aliases / "vllm.d") == mode(ws.aliases / "vllm.d/1") == 0o700
    assert mode(ws.aliases / "vllm.d/1/record.json") == mode(file.with_suffix(".json")) == 0o400


def test_moving_an_alias_keeps_the_old_file_and_its_history(ws: Workspace) -> None:
    first, second = ws.add("one"), ws.add("two")
    ws.publish(first)
    with (ws.aliases / "vllm.sqsh").open() as reader:
        result = ws.publish(second, record=ws.record(second, oci=OTHER))
        assert reader.read() == "one"
    assert (result.text("number"), result.text("moved")) == ("2", "1")
    assert json.loads(result.text("previous"))["sqsh"]["path"] == str(first)
    assert ws.current() == "two"
    assert first.read_text() == "one"
    assert (ws.aliases / "vllm.d/1/image.sqsh").resolve() == first
    assert first.stat().st_nlink == second.stat().st_nlink == 1


def test_publishing_what_the_alias_means_already_writes_nothing(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file)
    again = json.loads(ws.record(file))
    again["job"]["job_id"] = 5
    result = ws.publish(file, record=json.dumps(again).encode() + b"\n")
    assert (result.text("number"), result.text("moved")) == ("1", "0")
    assert not (ws.aliases / "vllm.d/2").exists()


def test_another_kind_of_inspection_is_a_new_version_but_no_move(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file)
    result = ws.publish(file, record=ws.record(file, kind="client"))
    assert (result.text("number"), result.text("moved")) == ("2", "0")
    assert json.loads((ws.aliases / "vllm.json").read_text())["inspection"]["inspection"]["kind"] == "client"
    assert json.loads(file.with_suffix(".json").read_text())["inspection"]["inspection"]["kind"] == "generic"


def test_a_record_that_serves_other_imports_is_written_anew_and_is_no_move(ws: Workspace) -> None:
    file = ws.add("one")
    results = []
    for job, key in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
        record = json.loads(ws.record(file))
        record["job"]["job_id"] = job
        record["store"]["reuse_key"] = key * 64
        results.append(ws.publish(file, record=json.dumps(record).encode() + b"\n"))
    assert [(result.text("number"), result.text("moved")) for result in results] == [
        ("1", "1"),
        ("1", "0"),
        ("2", "0"),
        ("2", "0"),
    ]
    assert json.loads((ws.aliases / "vllm.json").read_text())["job"]["job_id"] == 3


def test_what_an_image_says_is_never_taken_for_the_end_of_a_record(ws: Workspace) -> None:
    file = ws.add("one")
    for number, label in (("1", "a"), ("1", "b")):
        record = json.loads(ws.record(file))
        record["image"] = {"store": {"reuse_key": label * 64}, "text": f'"reuse_key": "{label * 64}"}}}}'}
        assert ws.publish(file, record=json.dumps(record).encode() + b"\n").text("number") == number


def test_a_call_whose_answer_was_lost_tells_again_that_it_moved_the_alias(ws: Workspace) -> None:
    first, second = ws.add("one"), ws.add("two")
    ws.publish(first)
    ws.publish(second)
    result = ws.publish(second)
    assert (result.text("number"), result.text("moved")) == ("2", "1")
    assert json.loads(result.text("previous"))["sqsh"]["path"] == str(first)


def test_links_that_somebody_removed_come_back_though_nothing_moved(ws: Workspace) -> None:
    file = ws.add("one")
    ws.publish(file)
    for suffix in ("sqsh", "json"):
        (ws.aliases / f"vllm.{suffix}").unlink()
    again = json.loads(ws.record(file))
    again["job"]["job_id"] = 5
    result = ws.publish(file, record=json.dumps(again).encode() + b"\n")
    assert (result.text("number"), result.text("moved")) == ("1", "0")
    assert ws.current() == "one"


def test_a_reused_image_is_told_again_to_its_own_run_and_not_to_the_next_one(ws: Workspace) -> None:
    first, second = ws.add("one"), ws.add("two")
    ws.publish(first)
    record = json.loads(ws.record(second))
    results = []
    for publisher in ("tonight.1", "tonight.1", "tomorrow.1"):
        record.update(reused=True, store={**record["store"], "publisher": publisher})
        results.append(ws.publish(second, record=json.dumps(record).encode() + b"\n"))
    assert [result.text("moved") for result in results] == ["1", "1", "0"]
    assert {result.text("number") for result in results} == {"2"}


def test_on_conflict_fail_refuses_another_digest(ws: Workspace) -> None:
    ws.publish(ws.add("one"))
    second = ws.add("two")
    result = ws.publish(second, record=ws.record(second, oci=OTHER), ASI_ON_CONFLICT="fail")
    assert refusal(result) == "conflict"
    assert "on_conflict" in result.text("message")
    assert ws.current() == "one"
    assert ws.leftovers() == []


def test_on_conflict_fail_allows_a_reimport_of_the_same_digest(ws: Workspace) -> None:
    ws.publish(ws.add("one"))
    result = ws.publish(ws.add("two"), ASI_ON_CONFLICT="fail")
    assert (refusal(result), result.text("moved")) == ("", "1")


def test_on_conflict_fail_compares_files_where_there_is_no_digest(ws: Workspace, tmp_path: Path) -> None:
    first, second = tmp_path / "a.sqsh", tmp_path / "b.sqsh"
    first.write_text("one")
    second.write_text("two")
    assert refusal(ws.publish(first, record=ws.record(first, oci=None), ASI_ON_CONFLICT="fail")) == ""
    assert refusal(ws.publish(second, record=ws.record(second, oci=None), ASI_ON_CONFLICT="fail")) == "conflict"


def test_on_conflict_fail_refuses_when_the_old_meaning_cannot_be_read(ws: Workspace) -> None:
    ws.publish(ws.add("one"))
    record = ws.aliases / "vllm.d/1/record.json"
    record.unlink()
    record.write_text("{}")
    assert refusal(ws.publish(ws.add("two"), ASI_ON_CONFLICT="fail")) == "conflict"


@pytest.mark.parametrize("name", ["sqsh", "a.json", "current", "1"])
def test_the_meaning_is_read_from_the_record_not_from_its_values(ws: Workspace, name: str) -> None:
    first = ws.add("one")
    record = json.loads(ws.record(first, name))
    record["image"] = {"sqsh": {"sha256": "f" * 64}, "oci_digest": OTHER, "kind": "client"}
    ws.publish(first, name, record=json.dumps(record).encode() + b"\n")
    result = ws.publish(ws.add("two"), name, ASI_ON_CONFLICT="fail")
    assert refusal(result) == ""
    assert ws.current(name) == "two"


def test_unmanaged_alias_points_at_the_file_where_it_is(ws: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "given.sqsh"
    file.write_text("mine")
    ws.publish(file, record=ws.record(file, oci=None))
    assert (ws.aliases / "vllm.d/1/image.sqsh").readlink() == file
    assert list(ws.store.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value"), [("ASI_SIZE", "4"), ("ASI_INODE", "1"), ("ASI_MTIME", "1"), ("ASI_SHA256", "0" * 64)]
)
def test_a_file_that_is_not_the_one_the_job_saw_is_refused(ws: Workspace, variable: str, value: str) -> None:
    file = ws.add("one")
    constants, record = ws.publication(file, "vllm", None, **{variable: value})
    assert refusal(ws.run("publish", constants, record)) == "integrity"
    assert ws.current() is None
    assert ws.leftovers() == []


def test_a_file_that_is_not_visible_is_told_apart_from_a_wrong_one(ws: Workspace) -> None:
    file = ws.add("one")
    constants, record = ws.publication(file, "vllm")
    file.unlink()
    result = ws.run("publish", constants, record)
    assert refusal(result) == "not_visible"
    assert str(file) in result.text("message")
    assert ws.leftovers() == []


@pytest.mark.parametrize("level", [".trash", ".trash/{stem}", ".trash/{stem}/{name}"])
def test_nothing_is_taken_out_of_the_trash_through_a_link(ws: Workspace, tmp_path: Path, level: str) -> None:
    file = ws.add("one")
    constants, record = ws.publication(file, "vllm")
    link = ws.root / "store" / level.format(stem=file.stem, name=file.name)
    planted = tmp_path / "planted"
    inside = planted / str((ws.root / "store/.trash" / file.stem / file.name).relative_to(link))
    inside.parent.mkdir(parents=True, exist_ok=True)
    file.rename(inside)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(planted)
    assert refusal(ws.run("publish", constants, record)) == "not_visible"
    assert inside.read_text() == "one"
    assert ws.files() == []


def test_a_store_file_that_is_a_link_is_refused(ws: Workspace) -> None:
    file = ws.add("one")
    constants, record = ws.publication(file, "vllm")
    file.rename(ws.root / "elsewhere")
    file.symlink_to(ws.root / "elsewhere")
    assert refusal(ws.run("publish", constants, record)) == "integrity"


def test_a_foreign_record_beside_the_store_file_is_not_overwritten(ws: Workspace) -> None:
    file = ws.add("one")
    file.with_suffix(".json").write_text("garbage")
    assert refusal(ws.publish(file)) == "integrity"
    assert file.with_suffix(".json").read_text() == "garbage"
    assert ws.current() is None


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("/etc/passwd"), Path.mkdir])
def test_something_foreign_at_the_alias_is_a_conflict_and_stays(ws: Workspace, make: object) -> None:
    link = ws.aliases / "vllm.sqsh"
    make(link)  # type: ignore[operator]
    before = link.lstat()
    assert refusal(ws.publish(ws.add("one"))) == "conflict"
    assert link.lstat().st_ino == before.st_ino
    assert ws.leftovers() == []


def test_a_history_that_is_a_link_is_refused(ws: Workspace, tmp_path: Path) -> None:
    (ws.aliases / "vllm.d").symlink_to(tmp_path)
    assert refusal(ws.publish(ws.add("one"))) == "unsafe_workspace"


def test_a_record_that_did_not_arrive_whole_changes_nothing(ws: Workspace) -> None:
    file = ws.add("one")
    constants, record = ws.publication(file, "vllm")
    result = ws.run("publish", constants, record[:-20])
    assert refusal(result) == "unavailable"
    assert ws.current() is None


def test_a_record_over_one_mebibyte_is_refused(ws: Workspace) -> None:
    file = ws.add("one")
    record = json.loads(ws.record(file))
    record["image"]["big"] = "x" * 1_100_000
    assert refusal(ws.publish(file, record=json.dumps(record).encode() + b"\n")) == "integrity"
    assert ws.current() is None


def test_a_record_whose_keys_are_in_another_order_is_refused(ws: Workspace) -> None:
    file = ws.add("one")
    record = json.dumps(json.loads(ws.record(file)), sort_keys=True).encode() + b"\n"
    assert refusal(ws.publish(file, record=record)) == "integrity"


def test_leftovers_of_a_dead_publisher_are_removed_and_its_number_used_again(ws: Workspace) -> None:
    ws.publish(ws.add("one"))
    history = ws.aliases / "vllm.d"
    (history / ".new-dead").mkdir()
    (history / ".new-dead/record.json").write_text("{}")
    (history / ".current-dead").symlink_to("7")
    (history / "2").mkdir()
    (history / "2/record.json").write_text("{}")
    result = ws.publish(ws.add("two"))
    assert result.text("number") == "2"
    assert ws.current() == "two"
    assert ws.leftovers() == []


def test_history_whose_current_somebody_removed_is_kept(ws: Workspace) -> None:
    ws.publish(ws.add("one"))
    ws.publish(ws.add("two"))
    (ws.aliases / "vllm.d/current").unlink()
    assert ws.publish(ws.add("three")).text("number") == "3"
    assert (ws.aliases / "vllm.d/1/record.json").exists()
    assert ws.current() == "three"


def test_the_lock_of_a_dead_publisher_is_taken_over(ws: Workspace) -> None:
    lock = ws.aliases / ".locks/alias-vllm"
    lock.mkdir(parents=True)
    (lock / "owner").write_text("n1 1 gone\n")
    ws.age(lock, 3600)
    assert ws.publish(ws.add("one")).status == 0
    assert ws.leftovers() == []


def test_the_lock_of_a_living_publisher_is_waited_for(ws: Workspace) -> None:
    lock = ws.aliases / ".locks/alias-vllm"
    lock.mkdir(parents=True)
    release = threading.Timer(1.0, lock.rmdir)
    release.start()
    assert ws.publish(ws.add("one")).status == 0
    release.join()


def plant_pipe(lock: Path) -> Path:
    lock.mkdir()
    os.mkfifo(lock / "owner")
    return lock / "owner"


def plant_endless(lock: Path) -> Path:
    lock.mkdir()
    (lock / "owner").symlink_to("/dev/zero")
    return lock / "owner"


def plant_file(lock: Path) -> Path:
    lock.write_text("precious")
    return lock


def plant_directory(lock: Path) -> Path:
    lock.mkdir()
    (lock / "precious").write_text("precious")
    return lock / "precious"


def plant_link(lock: Path) -> Path:
    home = lock.parents[3] / "home"
    home.mkdir()
    (home / "owner").write_text("precious")
    lock.symlink_to(home)
    return home / "owner"


@pytest.mark.parametrize("plant", [plant_pipe, plant_endless, plant_file, plant_directory, plant_link])
@pytest.mark.parametrize("name", ["alias-vllm", "sha256"])
def test_something_foreign_in_place_of_a_lock_holds_nobody_up_for_good_and_is_not_lost(
    ws: Workspace, plant: Callable[[Path], Path], name: str
) -> None:
    file = ws.add("one")
    lock = ws.aliases / ".locks" / (f"sha256-{file.stem}" if name == "sha256" else name)
    lock.parent.mkdir()
    planted = plant(lock)
    for path in {lock, planted}:
        ws.age(path, 3600)
    ws.preamble = b"sleep() { :; }\n"
    assert refusal(ws.publish(file)) == ""
    assert ws.current() == "one"
    ws.prune()
    texts = [path.read_text() for path in (*ws.root.rglob("*"), *ws.root.parent.glob("home/*")) if path.is_file()]
    assert texts.count("precious") == (0 if plant in (plant_pipe, plant_endless) else 1)


def test_a_lock_that_stays_held_is_a_failure_that_changes_nothing(ws: Workspace) -> None:
    lock = ws.aliases / ".locks/alias-vllm"
    lock.mkdir(parents=True)
    (lock / "owner").write_text("n1 77 somebody\n")
    ws.preamble = b"sleep() { SECONDS=$((SECONDS + 10)); }\n"
    result = ws.publish(ws.add("one"))
    assert refusal(result) == "unavailable"
    assert "n1 77 somebody" in result.text("message")
    assert ws.current() is None
    assert [path.name for path in (ws.aliases / ".locks").iterdir()] == ["alias-vllm"]


def test_every_refusal_gives_its_locks_back(ws: Workspace) -> None:
    (ws.aliases / "vllm.json").write_text("foreign")
    assert refusal(ws.publish(ws.add("one"))) == "conflict"
    assert list((ws.aliases / ".locks").iterdir()) == []


def test_a_file_in_the_trash_comes_back_when_it_is_published(ws: Workspace) -> None:
    file = ws.add("one")
    constants, record = ws.publication(file, "vllm")
    item = ws.root / "store/.trash" / file.stem
    item.mkdir(parents=True)
    file.rename(item / file.name)
    assert ws.run("publish", constants, record).status == 0
    assert ws.current() == "one"


def test_eight_publishers_of_one_image_and_one_alias_all_succeed(ws: Workspace) -> None:
    file = ws.add("one")
    records = []
    for job in range(8):
        record = json.loads(ws.record(file))
        record["job"]["job_id"] = job + 1
        records.append(json.dumps(record).encode() + b"\n")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda caller, record: caller.publish(file, record=record), callers(ws, 8), records))
    assert [refusal(result) for result in results] == [""] * 8
    assert [result.text("moved") for result in results].count("1") == 1
    assert [path.name for path in ws.store.glob("*.sqsh")] == [file.name]
    assert sorted(path.name for path in (ws.aliases / "vllm.d").iterdir()) == ["1", "current"]
    assert ws.leftovers() == []


def test_publishers_of_different_images_all_succeed_and_history_tells(ws: Workspace) -> None:
    files = [ws.add(str(number)) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda caller, file: caller.publish(file), callers(ws, 8), files))
    assert [refusal(result) for result in results] == [""] * 8
    assert sorted(int(result.text("number")) for result in results) == list(range(1, 9))
    last = next(file for file, result in zip(files, results, strict=True) if result.text("number") == "8")
    assert (ws.aliases / "vllm.sqsh").resolve() == last
    assert ws.leftovers() == []


def test_sigterm_in_the_middle_gives_the_lock_back(ws: Workspace) -> None:
    ws.preamble = b"sync() { kill -TERM $$; sleep 1; }\n"
    assert b" end 143" in ws.raw("publish", *ws.publication(ws.add("one"), "vllm"))
    assert ws.current() is None
    assert ws.leftovers() == []


def test_publication_goes_on_when_the_connection_is_cut(ws: Workspace) -> None:
    constants, record = ws.publication(ws.add("one"), "vllm")
    with subprocess.Popen(
        ws.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ws.environment
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write(ws.text("publish", constants))
        process.stdin.flush()
        while b"begin" not in process.stdout.readline():
            pass
        process.stdout.close()
        process.stdin.write(record)
        process.stdin.close()
        process.wait()
    assert ws.current() == "one"
    assert ws.leftovers() == []


def test_no_space_leaves_the_old_meaning(ws: Workspace) -> None:
    ws.publish(ws.add("one"))
    ws.preamble = b"sync() { return 1; }\n"
    result = ws.publish(ws.add("two"))
    assert refusal(result) == "unavailable"
    assert ws.current() == "one"
    assert ws.leftovers() == []


def test_what_the_tools_said_of_the_file_system_is_told(ws: Workspace) -> None:
    ws.preamble = b"sync() { printf 'sync: error syncing: Disk quota exceeded\\n' >&2; return 1; }\n"
    result = ws.publish(ws.add("one"))
    assert refusal(result) == "unavailable"
    assert "Disk quota exceeded" in result.text("message")
    assert str(ws.root) in result.text("message")


def test_a_full_file_system_is_told_and_changes_nothing(ws: Workspace) -> None:
    file = ws.add("one")
    record = json.loads(ws.record(file))
    record["image"]["environment"] = {"A": "x" * 400_000}
    ws.command = ("unshare", "--user", "--map-root-user", "--mount", *ws.command)
    ws.preamble = f"mount -t tmpfs -o size=200k none '{ws.aliases}'\n".encode()
    result = ws.publish(file, record=json.dumps(record).encode() + b"\n", ASI_MANAGED="0")
    assert refusal(result) == "unavailable"
    assert "No space left on device" in result.text("message")


def test_the_answer_holds_nothing_but_fields(ws: Workspace) -> None:
    raw = ws.raw("publish", *ws.publication(ws.add("one"), "vllm"))
    assert all(not line or line.startswith(MARK.encode()) for line in raw.splitlines())


def test_digest_constant_is_the_one_of_the_records(ws: Workspace) -> None:
    assert DIGEST.encode() in ws.record(ws.add("one"))
