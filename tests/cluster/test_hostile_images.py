# SPDX-License-Identifier: Apache-2.0
"""Image files that would act on the host when started: refused, or started without effect (SEC-8)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import JobFailedError, UnsafeImageError

from .box import Box
from .oci import Tree
from .remains import left_by
from .sqsh import changed, false_python, place, squash, tree_of
from .works import Task, inspect_task, outcomes, reasons

HOME = f"/home/{Box.user}"


@pytest.fixture(scope="module")
def base(image_layouts: dict[str, Path]) -> Tree:
    """A shell and its commands."""
    return tree_of(image_layouts["nopython"])


def bare(base: Tree, *without: str) -> Tree:
    """The base without some directories, for a link to take their place."""
    tree = changed(base, {})
    for name in list(tree._members):
        if name in without or name.startswith(tuple(f"{top}/" for top in without)):
            del tree._members[name]
    return tree


def refused(box: Box, name: str, tree: Tree, path: str) -> None:
    """Not started as `client`, with a message that names the path."""
    task = inspect_task(box, squash(tree, place(box, name)))
    with pytest.raises(UnsafeImageError, match=f"/{path} is neither a regular file nor a directory") as caught:
        task.run()
    assert "generic" in str(caught.value.remedy)
    assert task.completion()["phase"] == "examine"
    assert not (task.directory / "inspect.log").exists()
    assert left_by(box, task) == []


# -- what Enroot would open before the image is the root directory

LINKS = {
    ".lock": f"{HOME}/precious",
    ".enroot": HOME,
    "etc": HOME,
    "etc/environment": f"{HOME}/.netrc",
    "etc/fstab": f"{HOME}/precious",
    "etc/rc": f"{HOME}/precious",
    "dev": HOME,
    "dev/null": f"{HOME}/precious",
    "proc": HOME,
    "sys": HOME,
    "tmp": HOME,
    "asi": HOME,
}


def test_a_link_where_enroot_opens_a_file_is_not_started(box_plain: Box, home: Path, base: Tree) -> None:
    tasks: dict[str, Task] = {}
    for path, target in LINKS.items():
        tree = changed(bare(base, path), {}, {path: target})
        tasks[path] = inspect_task(box_plain, squash(tree, place(box_plain, f"link-{len(tasks)}")))
    found = outcomes(tasks)
    assert reasons(found) == dict.fromkeys(LINKS, ("UnsafeImageError", "unsafe_image"))
    for path, task in tasks.items():
        assert f"/{path} is neither a regular file nor a directory" in str(found[path])
        assert task.completion()["phase"] == "examine"
        assert not (task.directory / "inspect.log").exists()
        assert left_by(box_plain, task) == []


def test_generic_reads_such_a_file_without_starting_it(box_plain: Box, home: Path, base: Tree) -> None:
    links = {path: target for path, target in LINKS.items() if "/" not in path and path not in ("dev", "etc")}
    file = squash(changed(bare(base, *links), {}, links), place(box_plain, "generic"))
    task = inspect_task(box_plain, file, "generic")
    assert task.run().image["architecture"] == "amd64"
    assert left_by(box_plain, task) == []


def test_a_link_cannot_hide_behind_its_own_target(box_plain: Box, home: Path, base: Tree) -> None:
    """`unsquashfs -ll` writes `squashfs-root/` before each path; a target may hold the same words."""
    links = {"squashfs-root": HOME, ".lock": "squashfs-root/precious"}
    refused(box_plain, "hidden-link", changed(base, {}, links), ".lock")


def test_a_link_cannot_hide_behind_a_file_whose_name_looks_like_a_listing(
    box_plain: Box, home: Path, base: Tree
) -> None:
    odd = "a\n-rw-r--r-- root/root 1 2023-11-14 22:13 squashfs-root/.lock"
    tree = changed(base, {odd: "x"}, {".lock": f"{HOME}/precious -> squashfs-root/x"})
    refused(box_plain, "odd-names", tree, ".lock")


def test_a_pipe_where_enroot_opens_a_file_is_not_started(box_plain: Box, home: Path, base: Tree) -> None:
    tree = changed(base, {})
    tree._add(".lock", tarfile.FIFOTYPE, 0o644)
    refused(box_plain, "pipe", tree, ".lock")


def test_links_elsewhere_are_what_images_are_made_of(box_plain: Box, home: Path, base: Tree) -> None:
    """No false alarm; a directory of the extraction tool's name is nothing special either."""
    links = {
        "etc/mtab": "/proc/mounts",
        "var/run": "/run",
        "usr/tmp": "/tmp",
        "src/squashfs-root/etc": "/etc",
        "src/squashfs-root/.lock": "/run/lock",
    }
    task = inspect_task(box_plain, squash(changed(base, {}, links), place(box_plain, "usual-links")))
    with pytest.raises(JobFailedError) as caught:
        task.run()
    assert caught.value.reason == "no_python"


# -- configuration of the image, which must have no effect

WITNESS = "the image ran"
REPORT = f"""\
echo '{WITNESS}'; cat /proc/mounts; ls -la / /home /stolen* /srv 2>&1
cat /stolen*/precious; echo x > /stolen/precious
exit 3"""


def started(box: Box, name: str, tree: Tree) -> str:
    """Start the image, whose Python reports what it sees; returns the report."""
    task = inspect_task(box, squash(changed(tree, false_python(REPORT)), place(box, name)))
    with pytest.raises(JobFailedError):
        task.run()
    report = (task.directory / "inspect.log").read_text()
    assert WITNESS in report
    assert left_by(box, task) == []
    return report


@pytest.mark.parametrize("source", [HOME, "${HOME}", "${ENROOT_ROOTFS}/../..", "/"])
def test_the_image_s_mount_table_mounts_nothing(box_plain: Box, home: Path, base: Tree, source: str) -> None:
    table = f"{source} /stolen none x-create=dir,rbind,rw 0 0\n"
    report = started(box_plain, "fstab", changed(base, {"etc/fstab": table}))
    assert "stolen" not in report.replace("/stolen", "", 3)
    assert "of the host" not in report


def test_the_image_s_start_script_does_not_run(box_plain: Box, home: Path, base: Tree) -> None:
    script = f"#!/bin/sh\necho 'rc ran'; echo x > {HOME}/precious\n"
    files = {"etc/rc": script, "etc/rc.local": script, "etc/profile": script, "etc/profile.d/a.sh": script}
    report = started(box_plain, "rc", changed(base, files))
    assert "rc ran" not in report


def test_a_command_in_the_image_s_account_settings_does_not_run(box_plain: Box, home: Path, base: Tree) -> None:
    command = f"$(touch {HOME}/made; echo 1)"
    settings = "".join(f"{key} {command}\n" for key in ("UID_MIN", "GID_MIN", "SYS_UID_MAX", "USERGROUPS_ENAB"))
    started(box_plain, "logindefs", changed(base, {"etc/login.defs": settings, "etc/default/useradd": command}))


def test_a_command_in_the_image_s_environment_does_not_run(box_plain: Box, home: Path, base: Tree) -> None:
    environment = (
        f"A=$(touch {HOME}/made)\nB=`touch {HOME}/made`\nBASH_ENV={HOME}/.bashrc\nENV={HOME}/.bashrc\n"
        f"ENROOT_ROOTFS={HOME}\nLD_PRELOAD=/nonexistent.so\nC=x;touch {HOME}/made\n"
    )
    started(box_plain, "environment", changed(base, {"etc/environment": environment}))


def test_hooks_and_bundles_in_the_image_do_not_run(box_plain: Box, home: Path, base: Tree) -> None:
    script = f"#!/bin/sh\necho 'hook ran' >&2; touch {HOME}/made\n"
    names = ("etc/enroot/hooks.d/10-a.sh", "etc/enroot/mounts.d/10-a.fstab", "etc/enroot/environ.d/10-a.sh")
    report = started(box_plain, "hooks", changed(base, dict.fromkeys(names, script)))
    assert "hook ran" not in report


def test_nothing_of_the_host_is_mounted_but_what_the_inspector_needs(box_plain: Box, home: Path, base: Tree) -> None:
    report = started(box_plain, "mounts", base)
    table = [line.split()[1] for line in report.splitlines() if len(line.split()) == 6 and " 0 0" in line]
    below = {target for target in table if not target.startswith(("/proc", "/dev", "/asi"))}
    assert below <= {"/", "/tmp", "/.lock"}, table
    assert "/asi" in table
