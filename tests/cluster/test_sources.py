# SPDX-License-Identifier: Apache-2.0
"""Files and registries that are not what the request says: each fault its own class, nothing published."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import (
    IntegrityError,
    InvalidRequestError,
    JobFailedError,
    RegistryError,
    RegistryNotFoundError,
    RegistryUnavailableError,
    SlurmImagesError,
)

from . import multiplatform
from .box import Box
from .oci import Tree
from .remains import bound, left_by
from .sqsh import changed, false_python, place, squash, tree_of
from .works import Task, import_task, inspect_task, outcomes, reasons


@pytest.fixture(scope="module")
def base(image_layouts: dict[str, Path]) -> Tree:
    return tree_of(image_layouts["nopython"])


@pytest.fixture
def file(box_plain: Box, base: Tree) -> Path:
    return squash(base, place(box_plain, "source"))


def failed(box: Box, task: Task, error: type[SlurmImagesError], reason: str) -> SlurmImagesError:
    with pytest.raises(error) as caught:
        task.run()
    assert caught.value.details["reason"] == reason
    assert not (box.workspace / "aliases" / f"{task.work.request.name}.sqsh").is_symlink()
    assert left_by(box, task) == []
    return caught.value


# -- files


def test_a_file_that_is_nowhere_is_not_visible_on_the_node(box_plain: Box) -> None:
    task = inspect_task(box_plain, place(box_plain, "nowhere"), name="nowhere")
    error = failed(box_plain, task, JobFailedError, "source_not_visible")
    assert f"not visible on node {box_plain.node}" in str(error)


def test_a_file_that_only_others_see_is_not_visible_on_the_node(box_plain: Box, file: Path, tmp_path: Path) -> None:
    """Another file system is mounted there on the node."""
    tmp_path.chmod(0o755)
    with bound(box_plain, tmp_path, file.parent):
        task = inspect_task(box_plain, file, name="elsewhere")
        failed(box_plain, task, JobFailedError, "source_not_visible")
    assert file.exists()


def test_what_is_no_readable_file_is_refused(box_plain: Box, file: Path) -> None:
    paths = {kind: place(box_plain, f"no-file-{kind}") for kind in ("link", "directory", "pipe", "unreadable")}
    paths["link"].symlink_to(file)
    paths["directory"].mkdir()
    os.mkfifo(paths["pipe"], 0o666)
    shutil.copy(file, paths["unreadable"])
    paths["unreadable"].chmod(0o600)
    tasks = {kind: inspect_task(box_plain, path, "generic", "no-file") for kind, path in paths.items()}
    assert reasons(outcomes(tasks)) == dict.fromkeys(paths, ("JobFailedError", "source_refused"))
    assert not (box_plain.workspace / "aliases" / "no-file.sqsh").is_symlink()


def test_an_incomplete_file_is_caught(box_plain: Box, file: Path) -> None:
    whole = file.read_bytes()
    damaged = {
        "8 KiB short": whole[:-8192],
        "tables overwritten": whole[:-12288] + b"\xff" * 12288,
        "no SquashFS": b"x" * len(whole),
        "empty": b"",
    }
    tasks = {}
    for number, (damage, data) in enumerate(damaged.items()):
        path = place(box_plain, f"damaged-{number}")
        path.write_bytes(data)
        for kind in ("client", "generic"):
            tasks[f"{damage}, {kind}"] = inspect_task(box_plain, path, kind, "damaged", copy_to_store=True)
    assert reasons(outcomes(tasks)) == dict.fromkeys(tasks, ("IntegrityError", "broken_squashfs"))
    assert not (box_plain.workspace / "aliases" / "damaged.sqsh").is_symlink()
    assert list((box_plain.workspace / "store" / "sha256").glob(".partial-*")) == []


@pytest.mark.parametrize("change", ["replaced", "written to", "removed"])
def test_a_file_that_changes_during_its_inspection_is_caught(box_plain: Box, base: Tree, change: str) -> None:
    other = squash(base, place(box_plain, "other"))
    slow = false_python("/bin/sleep 2; echo '{}' > /asi/facts; exit 0")
    path = squash(changed(base, slow), place(box_plain, "changing"))
    task = inspect_task(box_plain, path, name="changing")
    task.begin()
    assert task.reaches("inspect")
    if change == "replaced":
        other.rename(path)
    elif change == "removed":
        path.unlink()
    else:
        with path.open("r+b") as target:
            target.seek(0, os.SEEK_END)
            target.write(b"\0")
    with pytest.raises(IntegrityError, match="changed during inspection") as caught:
        task.wait()
    assert caught.value.details["reason"] == "changed_during_inspection"
    assert not (box_plain.workspace / "aliases" / "changing.sqsh").is_symlink()


# -- registries

UNKNOWN = "sha256:" + "0" * 64


def test_an_image_of_another_architecture_is_refused(box_plain: Box, tmp_path: Path) -> None:
    multiplatform.write_image(tmp_path / "arm", "arm64")
    multiplatform.push(box_plain.registry, tmp_path / "arm" / "layout", "images/arm", "latest", "--format=v2s2")
    digest = digest_of(box_plain, "images/arm")
    task = import_task(box_plain, f"{box_plain.registry}/images/arm@{digest}", "arm")
    failed(box_plain, task, JobFailedError, "architecture_mismatch")


def digest_of(box: Box, repository: str) -> str:
    from urllib.request import Request, urlopen

    accept = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
    with urlopen(Request(f"http://{box.registry}/v2/{repository}/manifests/latest", headers=accept)) as answer:
        return str(answer.headers["Docker-Content-Digest"])


def test_an_unknown_digest_is_not_found_for_good(box_plain: Box) -> None:
    task = import_task(box_plain, f"{box_plain.registry}/images/none@{UNKNOWN}", "none")
    error = failed(box_plain, task, RegistryNotFoundError, "registry_not_found")
    assert not error.retryable


def test_a_registry_that_is_down_may_be_tried_again(box_plain: Box) -> None:
    task = import_task(box_plain, f"{box_plain.registry}/images/static@{UNKNOWN}", "down")
    box_plain.oci_registry.daemon.stop()
    try:
        error = failed(box_plain, task, RegistryUnavailableError, "registry_unavailable")
    finally:
        box_plain.oci_registry.start()
        box_plain.oci_registry.wait_ready()
    assert error.retryable
    assert box_plain.registry in str(error)


def test_a_registry_without_tls_is_not_spoken_to_unless_allowed(box_plain: Box) -> None:
    task = import_task(box_plain, f"{box_plain.registry}/images/static@{UNKNOWN}", "plain-http", insecure_registries=[])
    with pytest.raises(RegistryError):
        task.run()


@pytest.mark.parametrize(
    "image",
    [
        "{}/a/b",
        "{}/a/b:1",
        "{}/a/b@sha256:0",
        "{}/a/b@sha512:" + "0" * 128,
        "{}/a/b@" + UNKNOWN.upper(),
        "{}/A/b@" + UNKNOWN,
    ],
)
def test_a_reference_that_is_not_pinned_is_refused_before_anything_else(box_plain: Box, image: str) -> None:
    before = box_plain.sshd.logins()
    with pytest.raises(InvalidRequestError):
        import_task(box_plain, image.format(box_plain.registry), "unpinned")
    assert box_plain.sshd.logins() == before
