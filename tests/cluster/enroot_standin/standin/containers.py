"""Containers unpacked below ENROOT_DATA_PATH: create, list, remove."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .console import (
    Exit,
    fail,
    fix_permissions,
    info,
    is_squashfs,
    need,
    real_path,
    remove_tree,
    run,
    status_of,
)


def location(name: str) -> Path:
    if not name:
        fail("Invalid argument")
    if "/" in name:
        fail(f"Invalid argument: {name}")
    return real_path(f"{os.environ['ENROOT_DATA_PATH']}/{name}")


def existing(name: str) -> Path:
    path = location(name)
    if not path.is_dir():
        fail(f"No such file or directory: {path}")
    return path


def create(image: str, name: str, *, force: bool) -> None:
    need("unsquashfs", "find")
    if not image:
        fail("Invalid argument")
    file = real_path(image)
    if not file.is_file():
        fail(f"No such file or directory: {file}")
    if not is_squashfs(file):
        fail(f"Invalid image format: {file}")
    target = location(name or file.name.removesuffix(".sqsh"))
    if target.exists():
        if not force:
            fail(f"File already exists: {target}")
        remove_tree(target)
    info("Extracting squashfs filesystem...")
    processors = os.environ["ENROOT_MAX_PROCESSORS"]
    run(["unsquashfs", "-no-progress", "-processors", processors, "-user-xattrs", "-d", str(target), str(file)])
    fix_permissions(target)


def names(*, fancy: bool) -> None:
    """The fancy form names no processes here: nothing of ours asks for them."""
    data = Path(os.environ["ENROOT_DATA_PATH"])
    if not data.is_dir():
        fail(f"Could not change directory: {data}")
    if not fancy:
        returncode = subprocess.run(["ls", "-1"], cwd=data, check=False).returncode
        if returncode:
            raise Exit(status_of(returncode))
        return
    print("NAME  PID  COMM  STATE  STARTED  TIME  MNTNS  USERNS  COMMAND")
    for entry in sorted(data.iterdir()):
        print(entry.name)


def _agreed(path: Path) -> bool:
    sys.stderr.write(f"Do you really want to delete {path}? [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise Exit(1)
    return answer.strip() in ("y", "Y")


def remove(wanted: Sequence[str], *, force: bool) -> None:
    for name in wanted:
        path = existing(name)
        if force or _agreed(path):
            remove_tree(path)
