"""Containers unpacked from an image: the way out where mounting does not work."""

from __future__ import annotations

from pathlib import Path

import pytest

from .runner import Enroot


@pytest.fixture
def container(enroot: Enroot, sqsh: Path) -> str:
    result = enroot("create", "--name", "box", str(sqsh))
    assert result.status == 0, result.err
    return "box"


def test_create_unpacks_below_the_data_path(enroot: Enroot, container: str) -> None:
    assert (enroot.paths["data"] / container / "bin/busybox").is_file()
    assert enroot("list").lines == [container]


def test_create_reports_on_standard_error(enroot: Enroot, sqsh: Path) -> None:
    result = enroot("create", "-n", "box", str(sqsh))
    assert (result.status, result.out) == (0, "")
    assert result.err.startswith("[INFO] Extracting squashfs filesystem...\n")


def test_the_default_name_is_the_file_s(enroot: Enroot, sqsh: Path) -> None:
    assert enroot("create", str(sqsh)).status == 0
    assert enroot("list").lines == ["plain"]


def test_an_existing_container_is_replaced_only_by_force(enroot: Enroot, sqsh: Path, container: str) -> None:
    path = enroot.paths["data"] / container
    enroot.write(path / "mine", "x")
    result = enroot("create", "--name", container, str(sqsh))
    assert (result.status, result.err) == (1, f"[ERROR] File already exists: {path}\n")
    assert (path / "mine").exists()
    assert enroot("create", "-f", "--name", container, str(sqsh)).status == 0
    assert not (path / "mine").exists()


def test_junk_is_no_image(enroot: Enroot) -> None:
    junk = enroot.write(enroot.base / "junk.sqsh", "junk\n")
    result = enroot("create", "-f", "--name", "box", str(junk))
    assert (result.status, result.err) == (1, f"[ERROR] Invalid image format: {junk}\n")


def test_a_missing_file_is_named(enroot: Enroot) -> None:
    missing = enroot.base / "missing.sqsh"
    result = enroot("create", "-f", "--name", "box", str(missing))
    assert (result.status, result.err) == (1, f"[ERROR] No such file or directory: {missing}\n")


@pytest.mark.parametrize(
    "arguments", [["create", "-n", "a/b"], ["remove", "-f", "a/b"], ["start", "a/b"]], ids=" ".join
)
def test_a_name_holds_no_slash(enroot: Enroot, sqsh: Path, arguments: list[str]) -> None:
    image = [str(sqsh)] if arguments[0] == "create" else []
    result = enroot(*arguments, *image)
    assert (result.status, result.err) == (1, "[ERROR] Invalid argument: a/b\n")


def test_a_container_starts_by_name(enroot: Enroot, container: str) -> None:
    result = enroot.start(container, "sh", "-c", "echo $FROM_IMAGE; exit 7")
    assert (result.status, result.out) == (7, "yes\n")


def test_a_container_is_read_only_until_asked(enroot: Enroot, container: str) -> None:
    assert enroot.start(container, "touch", "/new").status == 1
    assert enroot.start(container, "touch", "/new", options=["--rw"]).status == 0
    assert (enroot.paths["data"] / container / "new").exists()


def test_remove_takes_it_away(enroot: Enroot, container: str) -> None:
    read_only = enroot.paths["data"] / container / "srv/deep"
    read_only.mkdir(parents=True)
    enroot.account.own(read_only, read_only.parent)
    read_only.parent.chmod(0o500)
    assert enroot("remove", "-f", container).status == 0
    assert (enroot("list").lines, list(enroot.paths["data"].iterdir())) == ([], [])


def test_an_unknown_container_cannot_be_removed(enroot: Enroot) -> None:
    path = enroot.paths["data"] / "box"
    result = enroot("remove", "-f", "box")
    assert (result.status, result.err) == (1, f"[ERROR] No such file or directory: {path}\n")


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, []), ("n\n", 0, ["box"]), ("", 1, ["box"])])
def test_remove_asks_first(enroot: Enroot, container: str, answer: str, status: int, left: list[str]) -> None:
    assert enroot("remove", container, stdin=answer).status == status
    assert enroot("list").lines == left


def test_several_are_removed_at_once(enroot: Enroot, sqsh: Path, container: str) -> None:
    assert enroot("create", "--name", "other", str(sqsh)).status == 0
    assert enroot("list").lines == ["box", "other"]
    assert enroot("remove", "-f", "other", container).status == 0
    assert enroot("list").lines == []
