# SPDX-License-Identifier: Apache-2.0
"""First contact with a workspace: made with explicit modes, refused when it is not ours."""

from __future__ import annotations

import grp
import logging
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import (
    ClusterUnavailableError,
    ConflictError,
    InvalidRequestError,
    SlurmImagesError,
)
from airflow_slurm_images.lifecycle import Lifecycle, Work
from tests.shell.fake_slurm.login import CREDENTIALS, RUN_KEY, LocalCluster, import_request, secrets_in


def refusal(cluster: LocalCluster) -> str:
    before = cluster.slurm.calls("squeue")
    with pytest.raises(InvalidRequestError) as caught:
        cluster.hook.prepare(RUN_KEY)
    assert caught.value.remedy
    assert cluster.slurm.calls("squeue") == before
    return caught.value.message


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_directories_get_their_modes_whatever_the_umask(cluster: LocalCluster, umask: int) -> None:
    cluster.umask = umask
    plan, _ = cluster.stage(import_request(), CREDENTIALS)
    modes = {
        str(path.relative_to(cluster.workspace)): stat.S_IMODE(path.stat().st_mode)
        for path in cluster.workspace.rglob("*")
    }
    assert {"store/sha256", "aliases", f"users/{plan.login}/cache"} <= set(modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    directory = Path(plan.attempt_directory)
    assert stat.S_IMODE((directory / "enroot-config/.credentials").stat().st_mode) == 0o600


def test_the_root_may_be_a_link_and_is_resolved_once(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(cluster.workspace)
    cluster.profile["workspace_root"] = str(tmp_path / "link")
    cluster.hook = cluster.new_hook()
    assert cluster.hook.prepare(RUN_KEY).workspace == str(cluster.workspace)


def test_a_resolved_root_that_enroot_cannot_mount_is_an_invalid_request(cluster: LocalCluster, tmp_path: Path) -> None:
    strange = tmp_path / "my workspace"
    strange.mkdir()
    (tmp_path / "link").symlink_to(strange)
    cluster.profile["workspace_root"] = str(tmp_path / "link")
    cluster.hook = cluster.new_hook()
    with pytest.raises(InvalidRequestError, match="workspace"):
        cluster.stage(import_request())


@pytest.mark.parametrize("name", ["store", "store/sha256", "aliases", "users", "users/{login}", "users/{login}/runs"])
def test_a_link_below_the_root_is_refused(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    login = cluster.hook.prepare(RUN_KEY).login
    path = cluster.workspace / name.format(login=login)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRequestError, match=r"symbolic link") as caught:
        cluster.hook.prepare(RUN_KEY)
    assert str(path) in caught.value.message


def test_a_link_in_place_of_the_run_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    state = cluster.hook.prepare(RUN_KEY)
    (cluster.workspace / f"users/{state.login}/runs/{RUN_KEY}").symlink_to(tmp_path)
    with pytest.raises(InvalidRequestError, match="symbolic link"):
        cluster.hook.prepare(RUN_KEY)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "does not exist": lambda root: root.rename(root.with_name("gone")),
    "world-writable": lambda root: root.chmod(0o777),
    "is not a directory": lambda root: (root / "store").write_text(""),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_a_root_that_cannot_be_used_is_refused_with_the_reason(cluster: LocalCluster, words: str) -> None:
    DAMAGE[words](cluster.workspace)
    assert words in refusal(cluster)


def test_a_world_writable_directory_below_the_root_is_refused(cluster: LocalCluster) -> None:
    (cluster.workspace / "store").mkdir()
    (cluster.workspace / "store").chmod(0o777)
    assert "world-writable" in refusal(cluster)


def test_a_directory_of_somebody_else_is_refused(cluster: LocalCluster) -> None:
    # Who we are is what `id` says; with another answer all that exists belongs to somebody else.
    (cluster.workspace / "store").mkdir()
    foreign = '[[ "$*" != -un ]] || { echo somebody; exit; }\nexec /usr/bin/id "$@"'
    cluster.slurm.login_tool("id", foreign)
    assert "belongs to" in refusal(cluster)


def test_a_group_we_are_not_in_is_refused(cluster: LocalCluster) -> None:
    cluster.profile["group"] = "no-such-group-here"
    cluster.hook = cluster.new_hook()
    assert "not a member" in refusal(cluster)


def test_with_a_group_store_and_aliases_are_shared_and_runs_are_not(cluster: LocalCluster) -> None:
    cluster.profile["group"] = grp.getgrgid(os.getegid()).gr_name
    cluster.hook = cluster.new_hook()
    login = cluster.hook.prepare(RUN_KEY).login
    modes = {
        name: oct(stat.S_IMODE((cluster.workspace / name).stat().st_mode))
        for name in ("store", "store/sha256", "aliases", f"users/{login}", f"users/{login}/runs")
    }
    assert modes.pop(f"users/{login}")[-3:] == modes.pop(f"users/{login}/runs")[-3:] == "700"  # setgid may come along
    assert modes == {"store": "0o3770", "store/sha256": "0o3770", "aliases": "0o2770"}


def use_group(cluster: LocalCluster) -> None:
    cluster.profile["group"] = grp.getgrgid(os.getegid()).gr_name
    cluster.hook = cluster.new_hook()


@pytest.mark.parametrize("name", ["users/{login}", "users/{login}/runs", "users/{login}/cache", "{run}"])
def test_what_is_an_accounts_own_belongs_to_nobody_else_of_the_group(cluster: LocalCluster, name: str) -> None:
    use_group(cluster)
    plan, _ = cluster.stage(import_request())
    path = cluster.workspace / name.format(login=plan.login, run=Path(plan.attempt_directory).parent)
    cluster.slurm.login_tool(
        "stat",
        f'[[ "${{*: -1}}" != "{path}" ]] || {{ /usr/bin/stat "$@" | sed "s/{plan.login}/ben/"; exit; }}\n'
        'exec /usr/bin/stat "$@"',
    )
    cluster.slurm.login_tool("id", '[[ "$*" != *ben ]] || exec /usr/bin/id -Gn\nexec /usr/bin/id "$@"')
    with pytest.raises(InvalidRequestError, match="belongs to 'ben'"):
        cluster.hook.prepare(RUN_KEY)


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o720])
@pytest.mark.parametrize("name", ["users/{login}", "users/{login}/runs", "users/{login}/cache", "{run}"])
def test_what_is_an_accounts_own_is_closed_to_others(cluster: LocalCluster, name: str, mode: int) -> None:
    plan, _ = cluster.stage(import_request())
    path = cluster.workspace / name.format(login=plan.login, run=Path(plan.attempt_directory).parent)
    path.chmod(mode)
    with pytest.raises(InvalidRequestError, match="open to others"):
        cluster.hook.prepare(RUN_KEY)


def test_a_group_named_later_or_a_maker_killed_halfway_is_made_good(cluster: LocalCluster) -> None:
    cluster.hook.prepare(RUN_KEY)
    use_group(cluster)
    cluster.hook.prepare(RUN_KEY)
    for name, mode in {"store": 0o3770, "store/sha256": 0o3770, "aliases": 0o2770, "users": 0o3770}.items():
        assert stat.S_IMODE((cluster.workspace / name).stat().st_mode) == mode


SHARED = {"store": 0o3770, "store/sha256": 0o3770, "aliases": 0o2770, "users": 0o3770}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("mode", [0o2775, 0o750])
def test_without_a_group_what_is_ours_is_closed_to_others(cluster: LocalCluster, name: str, mode: int) -> None:
    cluster.hook.prepare(RUN_KEY)
    path = cluster.workspace / name
    os.chown(path, -1, 65534)
    path.chmod(mode)
    cluster.hook.prepare(RUN_KEY)
    assert stat.S_IMODE(path.stat().st_mode) & 0o777 == 0o700


def test_a_task_without_the_group_takes_nothing_from_it(cluster: LocalCluster) -> None:
    use_group(cluster)
    cluster.hook.prepare(RUN_KEY)
    del cluster.profile["group"]
    cluster.hook = cluster.new_hook()
    said = refusal(cluster)
    for words in (str(cluster.workspace / "store"), f"'{grp.getgrgid(os.getegid()).gr_name}'", "3770", "set `group`"):
        assert words in said
    assert {name: stat.S_IMODE((cluster.workspace / name).stat().st_mode) for name in SHARED} == SHARED


def of_another_member(cluster: LocalCluster, path: Path) -> None:
    """``path`` looks as if it were of the member ben."""
    cluster.slurm.login_tool(
        "stat",
        f'[[ "${{*: -1}}" != "{path}" ]] || {{ /usr/bin/stat "$@" | sed "s/^[^|]*|/ben|/"; exit; }}\n'
        'exec /usr/bin/stat "$@"',
    )
    cluster.slurm.login_tool("id", '[[ "$*" != *ben ]] || exec /usr/bin/id -Gn\nexec /usr/bin/id "$@"')
    cluster.slurm.login_tool("sleep", f"[[ ! -x {path}.later ]] || {path}.later")


@pytest.mark.parametrize(
    ("name", "mode", "group"),
    [
        *[("aliases", mode, -1) for mode in (0o775, 0o2775, 0o700, 0o2750)],
        *[("store", mode, -1) for mode in (0o2770, 0o3775)],
        *[(name, mode, 65534) for name, mode in SHARED.items()],
    ],
)
def test_a_directory_that_another_member_shares_otherwise_is_refused(
    cluster: LocalCluster, name: str, mode: int, group: int
) -> None:
    use_group(cluster)
    cluster.hook.prepare(RUN_KEY)
    path = cluster.workspace / name
    os.chown(path, -1, group)
    path.chmod(mode)
    of_another_member(cluster, path)
    said = refusal(cluster)
    for words in (str(path), "'ben'", f"mode {mode:o}", f"by mode {SHARED[name]:o}", "chgrp and chmod"):
        assert words in said
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_directory_that_another_member_is_just_making_is_waited_for(cluster: LocalCluster) -> None:
    use_group(cluster)
    cluster.hook.prepare(RUN_KEY)
    path = cluster.workspace / "aliases"
    path.chmod(0o700)
    of_another_member(cluster, path)
    later = Path(f"{path}.later")
    later.write_text(f"#!/bin/sh\nchmod 2770 {path}\n")
    later.chmod(0o755)
    cluster.hook.prepare(RUN_KEY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o2770


# --- what keeps the group out of the workspace is told, and nothing is refused

STRANGER = 65534
"""A group that is not the profile's."""


@pytest.fixture
def open_place(cluster: LocalCluster) -> Iterator[Path]:
    """A workspace below directories that everybody may pass; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="asi-", dir="/tmp") as name:
        root = Path(name).resolve() / "ws"
        root.parent.chmod(0o755)
        root.mkdir(mode=0o755)
        cluster.profile["workspace_root"] = str(root)
        use_group(cluster)
        yield root


def members(cluster: LocalCluster, groups: str) -> None:
    """The profile's group has the member ben, who is in ``groups``."""
    cluster.slurm.login_tool("getent", '[[ "$1" != group ]] || { echo "x:x:7:ben"; exit; }\nexec /usr/bin/getent "$@"')
    cluster.slurm.login_tool("id", f'[[ "$*" != *ben ]] || {{ echo {groups}; exit; }}\nexec /usr/bin/id "$@"')


@pytest.mark.parametrize(
    ("mode", "group", "closed"),
    [
        (0o700, None, True),
        (0o2770, None, False),
        (0o710, None, False),
        (0o705, None, True),  # others may, but who is in the group is none of them
        (0o755, STRANGER, False),
        (0o700, STRANGER, True),
    ],
)
def test_a_root_that_keeps_the_group_out_is_told_with_what_helps(
    cluster: LocalCluster, open_place: Path, mode: int, group: int | None, closed: bool
) -> None:
    os.chown(open_place, -1, os.getegid() if group is None else group)
    open_place.chmod(mode)
    told = cluster.hook.prepare(RUN_KEY).closed
    assert len(told) == closed
    if closed:
        name = grp.getgrgid(os.getegid()).gr_name
        for words in (f"{open_place} (mode {mode:o}", f"chgrp {name} {open_place} && chmod g+rwxs {open_place}"):
            assert words in told[0]
        subprocess.run(["/bin/sh", "-c", told[0].rpartition("run: ")[2]], check=True)
        assert cluster.hook.prepare(RUN_KEY).closed == ()


@pytest.mark.parametrize(("groups", "closed"), [("ben", True), ("ben nogroup", False)])
def test_a_directory_of_another_group_is_open_to_those_who_are_in_that_one_too(
    cluster: LocalCluster, open_place: Path, groups: str, closed: bool
) -> None:
    os.chown(open_place, -1, STRANGER)
    open_place.chmod(0o750)
    members(cluster, groups.replace("nogroup", grp.getgrgid(STRANGER).gr_name))
    assert len(cluster.hook.prepare(RUN_KEY).closed) == closed


def test_a_directory_above_that_keeps_the_group_out_is_told_too(cluster: LocalCluster, open_place: Path) -> None:
    os.chown(open_place.parent, -1, STRANGER)
    open_place.parent.chmod(0o700)
    (told,) = cluster.hook.prepare(RUN_KEY).closed
    assert f"chmod o+x {open_place.parent}" in told


def test_without_a_group_nobody_else_is_expected(cluster: LocalCluster, open_place: Path) -> None:
    del cluster.profile["group"]
    cluster.hook = cluster.new_hook()
    open_place.chmod(0o700)
    assert cluster.hook.prepare(RUN_KEY).closed == ()


def test_a_task_warns_of_a_root_that_keeps_the_group_out(
    cluster: LocalCluster, open_place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_place.chmod(0o700)
    lifecycle = Lifecycle(cluster.hook, logging.getLogger("tests.root"))
    lifecycle.begin(Work(import_request(), RUN_KEY, 1, False, "lab", {}))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert str(open_place) in warning and "closed to members of group" in warning


def test_attempts_that_cannot_be_listed_are_not_taken_for_none(cluster: LocalCluster) -> None:
    plan, _ = cluster.stage(import_request())
    run = Path(plan.attempt_directory).parent
    cluster.slurm.login_tool("find", f'[[ "$1" != "{run}" ]] || exit 1\nexec /usr/bin/find "$@"')
    with pytest.raises(ClusterUnavailableError, match="cannot list"):
        cluster.hook.prepare(RUN_KEY)


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        *[(state, True) for state in ("PENDING", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "A_LATER_STATE")],
        *[(state, False) for state in ("CANCELLED", "TIMEOUT", "NODE_FAIL")],
    ],
)
def test_the_login_of_a_job_that_may_still_run_stays(cluster: LocalCluster, state: str, kept: bool) -> None:
    plan, job_id = cluster.submit(import_request(), CREDENTIALS)
    directory = Path(plan.attempt_directory)
    os.utime(directory / "job_id", (1, 1))
    cluster.slurm.change(job_id, state=state)
    cluster.hook.prepare(RUN_KEY)
    assert bool(secrets_in(directory)) is kept


# --- staging


def test_staged_files_arrive_as_they_were_sent(cluster: LocalCluster) -> None:
    plan, _ = cluster.stage(import_request("client"), CREDENTIALS)
    directory = Path(plan.attempt_directory)
    assert (directory / "enroot-config/.credentials").read_bytes() == CREDENTIALS
    assert (directory / "plan.json").read_text() == plan.to_json()
    assert [path.name for path in (directory / "generations").iterdir()] == ["1"]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_broken_transfer_is_noticed_before_anything_is_submitted(cluster: LocalCluster) -> None:
    cluster.cut = 20_000
    with pytest.raises(SlurmImagesError, match=r"staged file|did not arrive whole"):
        cluster.stage(import_request())
    assert cluster.slurm.calls("sbatch") == []


def test_a_new_attempt_fences_older_ones_and_takes_their_login(cluster: LocalCluster) -> None:
    older, job_id = cluster.submit(import_request(), CREDENTIALS)
    cluster.stage(import_request())
    assert secrets_in(cluster.workspace) == []
    assert cluster.slurm.run(job_id) == 72
    assert not (Path(older.attempt_directory) / "completion.json").exists()
    state = cluster.hook.prepare(RUN_KEY)
    assert {item.name: item.fenced for item in state.attempts}[older.attempt]


def test_an_attempt_directory_is_never_used_twice(cluster: LocalCluster) -> None:
    plan, _ = cluster.stage(import_request())
    with pytest.raises(ConflictError):
        cluster.hook.stage(plan)
