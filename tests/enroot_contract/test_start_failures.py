"""Starts that fail, and what tells a broken image from a busy machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .runner import Enroot, path_without


@pytest.mark.parametrize("name", ["junk.sqsh", "missing.sqsh", "empty.sqsh"])
def test_what_is_no_image_is_an_invalid_argument(enroot: Enroot, name: str) -> None:
    enroot.write(enroot.base / "junk.sqsh", "junk\n" * 1000)
    enroot.write(enroot.base / "empty.sqsh", "")
    file = enroot.base / name
    result = enroot.start(file, "true")
    assert (result.status, result.err) == (1, f"[ERROR] Invalid argument: {file}\n")


def test_an_unknown_container_is_looked_for_below_the_data_path(enroot: Enroot) -> None:
    result = enroot.start("unknown", "true")
    expected = f"[ERROR] No such file or directory: {enroot.paths['data']}/unknown\n"
    assert (result.status, result.err) == (1, expected)


def test_squashfuse_s_complaint_is_passed_on(enroot: Enroot, sqsh: Path) -> None:
    path = enroot.path_with(squashfuse="squashfuse_refused.sh")
    result = enroot.start(sqsh, "true", env={"PATH": path})
    assert result.status == 1
    assert result.err.splitlines() == [
        "[WARN] fuse: failed to open /dev/fuse: Permission denied",
        f"[ERROR] Failed to mount: {sqsh}",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="closing /dev/fuse, even for one process, is root's")
def test_a_closed_dev_fuse_is_a_failed_mount(enroot: Enroot, sqsh: Path) -> None:
    command = ["unshare", "-m", enroot.helper("without_fuse.sh"), str(enroot.account.uid), str(enroot.account.gid)]
    command += ["enroot", "start", "--rc", str(enroot.exec_rc), str(sqsh), "true"]
    done = subprocess.run(
        command, env=enroot.environment(), cwd=enroot.base, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "[WARN] fuse: failed to open /dev/fuse: Permission denied",
        f"[ERROR] Failed to mount: {sqsh}",
    ]


def test_a_slow_mount_is_a_failed_mount(enroot: Enroot, sqsh: Path) -> None:
    path = enroot.path_with(squashfuse="squashfuse_slow.sh")
    result = enroot.start(sqsh, "true", env={"PATH": path})
    assert (result.status, result.last_error_line) == (1, f"[ERROR] Failed to mount: {sqsh}")


def test_a_second_try_after_a_slow_mount_succeeds(enroot: Enroot, sqsh: Path) -> None:
    path = enroot.path_with(squashfuse="squashfuse_slow_once.sh")
    assert enroot.start(sqsh, "true", env={"PATH": path}).status == 1
    assert enroot.start(sqsh, "true", env={"PATH": path}).status == 0


def test_without_squashfuse_the_program_is_named(enroot: Enroot, sqsh: Path) -> None:
    path = path_without(enroot.base / "bin", "squashfuse", enroot.program)
    result = enroot.start(sqsh, "true", env={"PATH": path})
    assert (result.status, result.err) == (1, "[ERROR] Command not found: squashfuse\n")


def test_a_descriptor_of_a_living_process_names_the_file(enroot: Enroot, sqsh: Path) -> None:
    """The link is resolved to a path at once: a rename on this machine is followed, a removal is not."""
    image = enroot.base / "image.sqsh"
    shutil.copy(sqsh, image)
    holder = enroot.popen(str(image), program=enroot.helper("hold_open.sh"))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    name = f"/proc/{holder.pid}/fd/3"
    image.rename(enroot.base / "renamed.sqsh")
    renamed = enroot.start(name, "echo", "started")
    (enroot.base / "renamed.sqsh").unlink()
    removed = enroot.start(name, "echo", "started")
    holder.communicate("")
    assert (renamed.status, renamed.out) == (0, "started\n")
    assert removed.status == 1
    assert " at /(deleted): " in removed.err
