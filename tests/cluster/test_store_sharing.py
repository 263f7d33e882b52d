# SPDX-License-Identifier: Apache-2.0
"""A workspace shared by two accounts of one Unix group: both publish, both read, only owners remove."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.users import GROUP, OTHER_USER, USER, ensure_users
from tests.shell.workspace import Workspace

NOW = {"ASI_KEEP_LAST": "1", "ASI_GRACE_SECONDS": "0", "ASI_TRASH_SECONDS": "0"}


@pytest.fixture
def root() -> Iterator[Path]:
    """Directories as ``prepare.sh`` makes them for a group."""
    ensure_users()
    directory = Path(tempfile.mkdtemp()).resolve()
    directory.chmod(0o755)
    owner, group = pwd.getpwnam(USER).pw_uid, grp.getgrnam(GROUP).gr_gid
    for name, mode in (("", 0o3770), ("store", 0o3770), ("store/sha256", 0o3770), ("aliases", 0o2770)):
        path = directory / "ws" / name
        path.mkdir()
        os.chown(path, owner, group)
        path.chmod(mode)
    yield directory / "ws"
    shutil.rmtree(directory)


def member(root: Path, user: str, umask: str = "0077") -> Workspace:
    """The workspace as one account uses it, with a umask that shares nothing."""
    command = ("setpriv", "--reuid", user, "--regid", user, "--init-groups", "/bin/bash", "-p", "-s")
    return Workspace(root, group=GROUP, command=command, preamble=f"umask {umask}\n".encode())


def add(ws: Workspace, user: str, content: str) -> Path:
    """A store file as a job of ``user`` leaves it."""
    path = ws.add(content)
    os.chown(path, pwd.getpwnam(user).pw_uid, grp.getgrnam(GROUP).gr_gid)
    path.chmod(0o440)
    return path


def readable(user: str, path: Path) -> bool:
    """Can ``user`` read it?"""
    command = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "cat", str(path)]
    return subprocess.run(command, capture_output=True).returncode == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_either_account_moves_the_alias_and_both_read_it(root: Path) -> None:
    ann, bob = member(root, USER), member(root, OTHER_USER)
    assert ann.publish(add(ann, USER, "one")).text("refused") == ""
    assert bob.publish(add(bob, OTHER_USER, "two")).text("number") == "2"
    assert ann.publish(add(ann, USER, "three")).text("number") == "3"
    for user in (USER, OTHER_USER):
        for name in ("vllm.sqsh", "vllm.json", "vllm.d/2/record.json"):
            assert readable(user, ann.aliases / name)
    assert not readable("nobody", ann.aliases / "vllm.sqsh")
    assert ann.leftovers() == []


@pytest.mark.parametrize("umask", ["0000", "0022", "0077", "0777"])
def test_modes_and_group_are_right_whatever_the_umask(root: Path, umask: str) -> None:
    ann = member(root, USER, umask)
    file = add(ann, USER, "one")
    ann.publish(file)
    for path in (ann.aliases / "vllm.d", ann.aliases / "vllm.d/1", ann.aliases / ".locks"):
        assert (mode(path), path.group()) == (0o2770, GROUP)
    for path in (ann.aliases / "vllm.d/1/record.json", file.with_suffix(".json")):
        assert (mode(path), path.group()) == (0o440, GROUP)


def test_a_file_of_the_other_account_can_be_published(root: Path) -> None:
    ann, bob = member(root, USER), member(root, OTHER_USER)
    file = add(ann, USER, "one")
    assert ann.publish(file).text("refused") == ""
    assert bob.publish(file, "mine").text("refused") == ""
    assert bob.current("mine") == "one"


def test_the_lock_of_the_other_account_is_taken_over_when_it_is_dead(root: Path) -> None:
    ann, bob = member(root, USER), member(root, OTHER_USER)
    ann.publish(add(ann, USER, "one"))
    ann.preamble += b"sync() { kill -KILL $$; }\n"
    ann.publication(add(ann, USER, "two"), "vllm")
    ann.raw("publish", *ann.publication(add(ann, USER, "two"), "vllm"))
    assert len(list((ann.aliases / ".locks").iterdir())) == 2
    ann.age_locks()
    assert bob.publish(add(bob, OTHER_USER, "three")).text("refused") == ""
    assert bob.current() == "three"


@pytest.mark.parametrize("command", ["sync", "ln", "mv"])
def test_what_a_dead_publisher_left_is_removed_by_the_other_account(root: Path, command: str) -> None:
    ann, bob = member(root, USER), member(root, OTHER_USER)
    ann.publish(add(ann, USER, "one"))
    ann.preamble += f"{command}() {{ case $PWD in */aliases) kill -KILL $$;; esac; }}\n".encode()
    file = add(ann, USER, "two")
    ann.raw("publish", *ann.publication(file, "vllm"))
    assert ann.leftovers() != []
    ann.age_locks()
    assert bob.publish(add(bob, OTHER_USER, "three")).text("refused") == ""
    left = [name for name in bob.leftovers() if not name.startswith("store/sha256/.partial-")]
    assert left == [f"aliases/.locks/sha256-{file.stem}"]
    bob.age_locks()
    bob.prune(**NOW)
    assert list((bob.aliases / ".locks").iterdir()) == []


def test_prune_removes_nothing_while_there_is_an_alias_it_cannot_look_into(root: Path) -> None:
    ann, bob = member(root, USER), member(root, OTHER_USER)
    file = add(bob, OTHER_USER, "one")
    assert ann.publish(file).text("refused") == ""
    history = ann.aliases / "vllm.d"
    history.chmod(0o700)  # as the account made it before the profile had a group
    stray = add(bob, OTHER_USER, "stray")
    for variables in ({**NOW, "ASI_DRY_RUN": "1"}, NOW, NOW):
        told = bob.prune(**variables)
        assert sorted(told) == sorted(("image", "kept", f"store/sha256/{path.name}") for path in (file, stray))
    assert ann.current() == "one"
    history.chmod(0o2770)
    assert ("image", "trashed", f"store/sha256/{stray.name}") in bob.prune(**NOW)
    assert file.exists()
    assert ann.current() == "one"


def test_two_accounts_publishing_at_once_both_succeed(root: Path) -> None:
    members = [(member(root, user), user) for user in (USER, OTHER_USER) * 3]
    for index, (ws, _) in enumerate(members):
        ws.mark = f"asi-{index:032x}"
    files = [add(ws, user, str(index)) for index, (ws, user) in enumerate(members)]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda pair: pair[0][0].publish(pair[1]), zip(members, files, strict=True)))
    assert [result.text("refused") for result in results] == [""] * 6
    assert sorted(int(result.text("number")) for result in results) == [1, 2, 3, 4, 5, 6]


def test_prune_removes_own_files_and_reports_those_of_others(root: Path) -> None:
    ann, bob = member(root, USER), member(root, OTHER_USER)
    one, two, three = add(ann, USER, "one"), add(bob, OTHER_USER, "two"), add(bob, OTHER_USER, "three")
    for ws, file in ((ann, one), (bob, two), (bob, three)):
        assert ws.publish(file).text("refused") == ""
    report = bob.prune(**NOW)
    assert ("image", "kept", f"store/sha256/{one.name}") in report
    assert ("image", "trashed", f"store/sha256/{two.name}") in report
    assert [one.exists(), two.exists(), three.exists()] == [True, False, True]
    ann.prune(**NOW)
    assert not one.exists()
    assert bob.current() == "three"


def test_what_one_account_put_in_the_trash_another_publishes_again(root: Path) -> None:
    ann, bob = member(root, USER), member(root, OTHER_USER)
    one = add(ann, USER, "one")
    ann.publish(one)
    ann.publish(add(ann, USER, "two"))
    constants, record = bob.publication(one, "again")
    ann.prune(**{**NOW, "ASI_TRASH_SECONDS": "86400"})
    assert not one.exists()
    assert bob.run("publish", constants, record).text("refused") == ""
    assert bob.current("again") == "one"


def test_a_member_needs_no_right_to_write_to_the_root_once_it_is_laid_out(root: Path) -> None:
    ann, bob = member(root, USER), member(root, OTHER_USER)
    assert ann.prepare().text("workspace") == str(root)
    root.chmod(0o2750)
    assert bob.prepare().text("refused") == ""
    assert (root / "users" / OTHER_USER / "runs").is_dir()
    shutil.rmtree(root / "users" / OTHER_USER)
    os.chown(root / "users", 0, 0)
    (root / "users").chmod(0o755)
    assert bob.prepare().text("refused") == "no_workspace"


def test_a_root_of_its_owner_alone_is_told_to_be_closed_and_what_helps_opens_it(root: Path) -> None:
    ann, bob = member(root, USER), member(root, OTHER_USER)
    os.chown(root, -1, pwd.getpwnam(USER).pw_gid)
    root.chmod(0o750)  # as the account made it, for the group it has by itself
    look = ["setpriv", "--reuid", OTHER_USER, "--regid", OTHER_USER, "--init-groups", "ls", str(root / "aliases")]
    (told,) = ann.prepare().texts("closed")
    assert subprocess.run(look, capture_output=True).returncode != 0
    owner = ("setpriv", "--reuid", USER, "--regid", USER, "--init-groups", "/bin/sh", "-c")
    subprocess.run([*owner, told.rpartition("run: ")[2]], check=True)
    assert subprocess.run(look, capture_output=True).returncode == 0
    assert not ann.prepare().texts("closed")
    assert bob.prepare().text("refused") == ""
