# SPDX-License-Identifier: Apache-2.0
"""Both operations on real parts: import and inspect, on a real Slurm cluster, from request to published record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import JobFailedError
from airflow_slurm_images.core.records import ImageRecord

from .box import Box
from .image_recipes import (
    CLIENT_DEBIAN_DISTRIBUTION,
    CLIENT_DISTRIBUTIONS,
    VLLM_EXECUTABLE,
    VLLM_VERSION,
    pip_wheel,
)
from .polling import wait_until
from .remains import left_by
from .sqsh import place, squash, tree_of
from .works import Task, import_task, inspect_task, sha256

PIP_VERSION = pip_wheel().name.split("-")[1]
PHASES = ("verify", "claim", "space", "manifest", "import", "check", "examine", "inspect", "hash", "store", "done")


@pytest.fixture(scope="module")
def client_file(any_box: Box, image_layouts: dict[str, Path]) -> Path:
    """The client image as a file that is not in the store."""
    return squash(tree_of(image_layouts["client"]), place(any_box, "client-file"))


def inspected(record: ImageRecord) -> dict[str, object]:
    value: dict[str, object] = record.inspection.inspection.model_dump(mode="json")
    return value


def check_client(record: ImageRecord) -> None:
    """Exactly what the recipe put in, under canonical names, sorted."""
    found = inspected(record)
    versions = {re.sub(r"[-_.]+", "-", name).lower(): value for name, value in CLIENT_DISTRIBUTIONS.items()}
    listed = found.pop("distributions")
    assert isinstance(listed, list)
    six = {item["name"]: item["version"] for item in listed}[CLIENT_DEBIAN_DISTRIBUTION]
    expected = versions | {"pip": PIP_VERSION, CLIENT_DEBIAN_DISTRIBUTION: six}
    assert listed == [{"name": name, "version": expected[name]} for name in sorted(expected)]
    assert re.fullmatch(r"3\.11\.\d+", str(found.pop("python_version")))
    assert found == {
        "kind": "client",
        "python_implementation": "cpython",
        "python_abi": "cp311",
        "installer_path": "/usr/local/bin/pip",
        "installer_version": PIP_VERSION,
    }
    assert record.image["python_executable"] == "/usr/bin/python3"
    assert record.image["os_id"] == "debian"
    assert record.image["debian_packages"] > 50


def check_published(box: Box, record: ImageRecord) -> None:
    """The file is named by its bytes, the alias leads to it, and the record lies beside the alias."""
    file = Path(record.sqsh.path)
    assert file == box.workspace / "store" / "sha256" / f"{sha256(file)}.sqsh"
    assert record.sqsh.sha256 == record.inspection.sqsh_sha256 == file.stem
    assert record.sqsh.size_bytes == file.stat().st_size
    assert file.stat().st_mode & 0o777 == 0o400
    alias = Path(str(record.sqsh.alias_path))
    assert alias == box.workspace / "aliases" / f"{record.name}.sqsh"
    assert alias.resolve() == file
    assert told_by(json.loads(alias.with_suffix(".json").read_text())) == told_by(record.model_dump(mode="json"))


def told_by(record: dict[str, object]) -> dict[str, object]:
    """What does not differ between two jobs that made the same file."""
    return {key: value for key, value in record.items() if key not in ("job", "store")}


def check_job(box: Box, task: Task, record: ImageRecord) -> None:
    assert record.job.job_id == task.handle.job_id
    assert (record.job.node, record.job.cluster, record.job.state) == (box.node, box.cluster_name, "COMPLETED")
    assert Path(record.job.run_directory) == task.directory
    assert left_by(box, task) == []
    assert task.directory.stat().st_mode & 0o777 == 0o700


# -- import


def test_a_client_image_is_imported_inspected_and_published(any_box: Box, images: dict[str, str]) -> None:
    task = import_task(any_box, images["client"], "main-client", "client")
    record = task.run()
    check_client(record)
    check_published(any_box, record)
    check_job(any_box, task, record)
    assert record.source is not None
    digest = images["client"].rpartition("@")[2]
    assert (record.source.oci_digest, record.source.requested_tag) == (digest, "latest")
    assert record.source.repository == "images/client"
    if any_box.account:  # accounting lags behind
        assert wait_until(lambda: len(any_box.sacct(task.handle.job_name)) == 1, 20)
    for phase in PHASES:
        assert sum(line.startswith(f"asi: phase {phase} ") for line in task.lines) == 1, phase


def test_a_serving_image_is_bound_to_its_own_script_and_needs_no_gpu(any_box: Box, images: dict[str, str]) -> None:
    task = import_task(any_box, images["serving"], "main-serving", "serving", required_distributions=["vllm>=0.30"])
    record = task.run()
    assert inspected(record) == {
        "kind": "serving",
        "server_type": "vllm",
        "runtime_version": VLLM_VERSION,
        "executable_path": VLLM_EXECUTABLE,
    }
    assert record.image["environment"]["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert record.image["entrypoint"] == ["vllm", "serve"]
    assert record.image["python_prefix"] == "/opt/venv"
    check_published(any_box, record)
    check_job(any_box, task, record)


@pytest.mark.parametrize("name", ["nopython", "static"])
def test_any_image_can_be_imported_as_generic(any_box: Box, images: dict[str, str], name: str) -> None:
    task = import_task(any_box, images[name], f"main-{name}")
    record = task.run()
    assert inspected(record) == {"kind": "generic"}
    assert record.image["architecture"] == "amd64"
    check_published(any_box, record)
    check_job(any_box, task, record)


@pytest.mark.parametrize(("name", "reason"), [("nopython", "no_python"), ("static", "no_shell")])
def test_a_client_without_python_or_shell_fails_clearly_and_publishes_nothing(
    any_box: Box, images: dict[str, str], name: str, reason: str
) -> None:
    task = import_task(any_box, images[name], f"failed-{name}", "client")
    with pytest.raises(JobFailedError) as caught:
        task.run()
    error = caught.value
    assert (error.reason, error.phase, error.retryable) == (reason, "inspect", False)
    assert "generic" in str(error.remedy)
    assert str(task.directory) in str(error)
    assert not (any_box.workspace / "aliases" / f"failed-{name}.sqsh").is_symlink()
    assert left_by(any_box, task) == []


def test_importing_a_digest_again_makes_the_same_file_and_no_second_version(
    any_box: Box, images: dict[str, str]
) -> None:
    first = import_task(any_box, images["static"], "again").run()
    second = import_task(any_box, images["static"], "again").run()
    check_published(any_box, second)
    assert (first.source, first.sqsh) == (second.source, second.sqsh)
    assert first.job.job_id != second.job.job_id
    versions = [path.name for path in (any_box.workspace / "aliases" / "again.d").iterdir() if path.name.isdigit()]
    assert versions == ["1"]


def test_missing_distributions_are_all_named(box_plain: Box, push_images: Callable[[Box], dict[str, str]]) -> None:
    image = f"{box_plain.registry}/images/serving@{push_images(box_plain)['serving']}"
    wanted = ["vllm>=1", "flash-attn", "six"]
    task = import_task(box_plain, image, "lacking", "serving", required_distributions=wanted)
    with pytest.raises(JobFailedError, match=r"vllm>=1 \(installed: 0\.33\.0\)") as caught:
        task.run()
    assert caught.value.reason == "distributions_missing"
    assert "flash-attn" in str(caught.value) and "six" in str(caught.value)
    assert not (box_plain.workspace / "aliases" / "lacking.sqsh").is_symlink()


# -- inspect


def test_inspecting_without_a_name_publishes_nothing(any_box: Box, client_file: Path) -> None:
    task = inspect_task(any_box, client_file)
    record = task.run()
    check_client(record)
    check_job(any_box, task, record)
    assert record.source is None and record.name is None
    assert record.sqsh.model_dump() == {
        "path": str(client_file),
        "alias_path": None,
        "sha256": sha256(client_file),
        "size_bytes": client_file.stat().st_size,
        "managed": False,
    }
    assert f"{record.sqsh.sha256}.sqsh" not in {path.name for path in any_box.workspace.rglob("*.sqsh")}


def test_inspecting_with_a_name_points_the_alias_at_the_file(any_box: Box, client_file: Path) -> None:
    record = inspect_task(any_box, client_file, "generic", "named").run()
    assert record.sqsh.managed is False
    alias = any_box.workspace / "aliases" / "named.sqsh"
    assert record.sqsh.alias_path == str(alias)
    assert alias.resolve() == client_file
    assert alias.read_bytes() == client_file.read_bytes()


def test_a_copy_into_the_store_leaves_the_file_where_it_is(any_box: Box, client_file: Path) -> None:
    record = inspect_task(any_box, client_file, "generic", "copied", copy_to_store=True).run()
    assert record.sqsh.managed is True
    assert client_file.exists()
    check_published(any_box, record)
    again = inspect_task(any_box, client_file, "generic", "copied-again", copy_to_store=True).run()
    assert again.sqsh.path == record.sqsh.path
    assert list(Path(record.sqsh.path).parent.glob(".partial-*")) == []
