# SPDX-License-Identifier: Apache-2.0
"""Nodes on which starting an image is slow or impossible, and images with their Python in odd places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.errors import JobFailedError

from . import wheels
from .box import Box
from .image_recipes import SYSTEM_PATH, VLLM_EXECUTABLE, VLLM_VERSION
from .oci import Tree
from .remains import bound, left_by, private_home
from .sqsh import changed, place, squash, tree_of
from .works import as_operator, inspect_task, wrapped

ROOTS_PYTHON = "root/.local/share/uv/python/bin/python3.11"


@pytest.fixture(scope="module")
def client(box_plain: Box, image_layouts: dict[str, Path]) -> Path:
    return squash(tree_of(image_layouts["client"]), place(box_plain, "runtime-client"))


@pytest.fixture(scope="module")
def serving(image_layouts: dict[str, Path]) -> Tree:
    return tree_of(image_layouts["serving"])


# -- nodes


def test_a_mount_that_takes_long_the_first_time_is_tried_again(box_plain: Box, client: Path) -> None:
    once = box_plain.workspace / "mounted-once"
    slow = wrapped(box_plain, "squashfuse", f'[[ -e {once} ]] || {{ touch {once}; sleep 2; }}; exec {{real}} "$@"')
    task = inspect_task(box_plain, client, **slow)
    assert task.run().inspection.inspection.kind == "client"
    assert once.exists()
    assert any("once more" in line for line in task.lines)
    assert not any("unpacking" in line for line in task.lines)


def test_without_fuse_the_image_is_unpacked_on_scratch_and_the_log_says_so(box_plain: Box, client: Path) -> None:
    device = box_plain.root / "closed-fuse"
    as_operator(box_plain, "mknod", "--mode=600", str(device), "c", "10", "229")
    with bound(box_plain, device, Path("/dev/fuse")):
        task = inspect_task(box_plain, client)
        record = task.run()
    assert record.inspection.inspection.kind == "client"
    assert any("unpacking it on scratch" in line for line in task.lines)
    assert left_by(box_plain, task) == []


def test_without_user_namespaces_only_generic_works(box_plain: Box, client: Path) -> None:
    sentence = "enroot-nsenter: failed to create user namespace: Permission denied"
    start = f'if [[ "$1" == start && "$2" != --help ]]; then echo "{sentence}" >&2; exit 1; fi; exec {{real}} "$@"'
    none = """'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'"""
    unshare = f'exec {{real}} --user --map-root-user bash -c {none} bash {{real}} "$@"'
    first, rest = wrapped(box_plain, "unshare", unshare), wrapped(box_plain, "enroot", start)
    closed: dict[str, Any] = {"path_prepend": [first["path_prepend"][0], *rest["path_prepend"]]}
    task = inspect_task(box_plain, client, **closed)
    said = f"unavailable on node {box_plain.node} .unshare: unshare failed: No space left on device"
    with pytest.raises(JobFailedError, match=said) as caught:
        task.run()
    assert caught.value.reason == "no_user_namespaces"
    assert "user.max_user_namespaces" in str(caught.value.remedy)
    assert "kernel.unprivileged_userns_clone" in str(caught.value.remedy)
    assert inspect_task(box_plain, client, "generic", **closed).run().image["os_id"] == "debian"


# -- images


def without_python(tree: Tree) -> Tree:
    """No interpreter where Debian has it."""
    result = changed(tree, {})
    for name in ("usr/bin/python3", "usr/bin/python3.11"):
        del result._members[name]
    return result


def test_an_interpreter_below_root_s_home_is_used_and_named(box_plain: Box, serving: Tree) -> None:
    tree = without_python(serving)
    tree.directory("root", 0o700)
    tree.file(ROOTS_PYTHON, serving._members["usr/bin/python3.11"][1], 0o755)
    tree.symlink("opt/venv/bin/python3", f"/{ROOTS_PYTHON}")
    record = inspect_task(box_plain, squash(tree, place(box_plain, "roots-python")), "serving").run()
    assert record.inspection.inspection.model_dump() == {
        "kind": "serving",
        "server_type": "vllm",
        "runtime_version": VLLM_VERSION,
        "executable_path": VLLM_EXECUTABLE,
    }
    assert record.image["python_executable"] == "/opt/venv/bin/python3"
    assert record.image["python_executable_resolved"] == f"/{ROOTS_PYTHON}"


def test_a_dangling_interpreter_is_named_with_its_target(box_plain: Box, serving: Tree) -> None:
    tree = without_python(serving)
    tree.symlink("opt/venv/bin/python3", "/root/.local/share/uv/gone/python3.12")
    task = inspect_task(box_plain, squash(tree, place(box_plain, "dangling-python")), "serving")
    with pytest.raises(JobFailedError, match=r"/root/\.local/share/uv/gone/python3\.12") as caught:
        task.run()
    assert caught.value.reason == "no_python"


@pytest.mark.parametrize("marked", [True, False], ids=["an environment", "only a program"])
def test_a_broken_python_in_front_of_the_system_s_is_never_passed_over_silently(
    box_plain: Box, image_layouts: dict[str, Path], marked: bool
) -> None:
    gone = "/root/.local/share/uv/gone/python3.12"
    files = {"etc/environment": f"PATH=/opt/venv/bin:{SYSTEM_PATH}\n"}
    files |= {"opt/venv/pyvenv.cfg": "home = /usr/bin\n"} if marked else {}
    tree = changed(tree_of(image_layouts["client"]), files, {"opt/venv/bin/python3": gone})
    task = inspect_task(box_plain, squash(tree, place(box_plain, f"broken-in-front-{marked}")))
    words = f"/opt/venv/bin/python3 -> {gone} which does not exist"
    if marked:
        with pytest.raises(JobFailedError, match=f"environment /opt/venv has no usable Python: {words}") as caught:
            task.run()
        assert caught.value.reason == "no_python"
    else:
        assert f"before /usr/bin/python3 come, and cannot be used: {words}" in task.run().image["warnings"]


def test_the_script_of_another_team_is_not_taken_for_that_of_a_target_directory(box_plain: Box, serving: Tree) -> None:
    site = "usr/local/lib/site"
    tree = changed(serving, {"etc/environment": f"PATH={SYSTEM_PATH}\nPYTHONPATH=/{site}\n"})
    for name in [name for name in tree._members if name.startswith("opt/venv/")]:
        del tree._members[name]
    modules = {"vllm/__init__.py": "", "vllm/cli.py": "def main():\n    pass\n"}
    wheels.install(tree, site, "vllm", "0.9.0", modules, {"vllm": "vllm.cli:main"}, f"{site}/bin")
    record = f"{site}/vllm-0.9.0.dist-info/RECORD"
    tree.file(record, tree._members[record][1] + b"../../bin/vllm,sha256=x,3\n")
    tree.file("usr/local/bin/vllm", "#!/bin/sh\necho 'of another team'\n", 0o755)
    found = inspect_task(box_plain, squash(tree, place(box_plain, "target-directory")), "serving").run()
    assert found.inspection.inspection.model_dump()["executable_path"] == f"/{site}/bin/vllm"
    words = f"PATH finds /usr/local/bin/vllm; the distribution's own script is /{site}/bin/vllm"
    assert words in found.image["warnings"]


def test_packages_and_variables_of_the_user_s_home_do_not_leak_in(box_plain: Box, client: Path) -> None:
    metadata = "Metadata-Version: 2.1\nName: {name}\nVersion: 9.9.9\n"
    site = ".local/lib/python3.11/site-packages"
    files = {f"{site}/{name}-9.9.9.dist-info/METADATA": metadata.format(name=name) for name in ("tinylib", "leaked")}
    variables = "export PYTHONPATH=/home/asiuser/x PYTHONHOME=/x PYTHONUSERBASE=~/.local VIRTUAL_ENV=/x\n"
    files |= {"x/tinylib-9.9.8.dist-info/METADATA": metadata.format(name="tinylib"), ".profile": variables}
    with private_home(box_plain, files):
        record = inspect_task(box_plain, client).run()
    inspection = record.inspection.inspection
    assert inspection.kind == "client"
    versions = {item.name: item.version for item in inspection.distributions}
    assert versions["tinylib"] == "1.4.0"
    assert "leaked" not in versions
    assert record.image["python_path_env"] is None
    assert record.image["shadowed_distributions"] == []
