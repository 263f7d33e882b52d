# SPDX-License-Identifier: Apache-2.0
"""Small real SquashFS files, well-formed and hostile, made once a session."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\x3e\x00" + bytes(44)
"""Header of a little-endian x86-64 program."""
AMD64, ARM64 = 62, 183


def _plain(root: Path) -> None:
    for name in ("bin", "etc", "proc", "dev", "sys", "tmp", "usr/lib"):
        (root / name).mkdir(parents=True)
    (root / "bin/tool").write_bytes(ELF)
    (root / "bin/tool").chmod(0o755)
    (root / "usr/lib/os-release").write_text('PRETTY_NAME="Tiny Linux 1"\nID=tiny\n')
    (root / "etc/environment").write_text("PATH=/usr/bin:/bin\nLANG=C\n")
    (root / "data").write_bytes(os.urandom(100_000))  # so that the file has some blocks to lose


def _link(path: str, target: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        place = root / path
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.symlink_to(target)

    return make


def _fifo(path: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / path).unlink(missing_ok=True)
        os.mkfifo(root / path)

    return make


def _harmless_links(root: Path) -> None:
    (root / "lib").symlink_to("usr/lib")
    (root / "opt").mkdir()
    (root / "opt/etc").symlink_to("../etc")
    (root / "etc/mtab").symlink_to("/proc/mounts")


def _program(path: str, machine: int) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(ELF[:18] + bytes([machine, 0]) + ELF[20:])
        place.chmod(0o755)

    return make


def _all(*steps: Callable[[Path], object]) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for step in steps:
            step(root)

    return make


def _text(path: str, text: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    return make


def _large(root: Path) -> None:
    with (root / "large").open("wb") as file:
        file.truncate(48 << 20)
    (root / "usr/large").hardlink_to(root / "large")
    _text("var/log/lastlog", "")(root)
    with (root / "var/log/lastlog").open("wb") as file:
        file.truncate(256 << 20)


_ELSEWHERE = _text("opt/v2/release", "ID=elsewhere\n")
_TOOLS = _all(lambda root: shutil.rmtree(root / "bin"), _program("app/tool-arm64", ARM64), _program("app/tool", AMD64))

RECIPES: dict[str, Callable[[Path], None]] = {
    "plain": lambda _: None,
    "links elsewhere": _harmless_links,
    "/etc is a link": _link("etc", "/var/tmp"),
    "/etc is a link into a directory named squashfs-root": _link("etc", "/home/ann/squashfs-root/x"),
    "/etc/fstab is a link": _link("etc/fstab", "/etc/hosts"),
    "/etc/environment is a link": _link("etc/environment", "/etc/passwd"),
    "/etc/environment is a pipe": _fifo("etc/environment"),
    "/etc/rc is a link": _link("etc/rc", "/etc/rc.local"),
    "/.lock is a link": _link(".lock", "/home/ann/notes"),
    "/dev is a link": _link("dev", "/dev"),
    "/dev/null is a link": _link("dev/null", "/home/ann/notes"),
    "/proc is a link": _link("proc", "/"),
    "/sys is a link": _link("sys", "/"),
    "/tmp is a link": _link("tmp", "/home/ann"),
    "/asi is a link": _link("asi", "/home/ann"),
    "bash and tools for two machines": _all(_TOOLS, _program("usr/bin/bash", AMD64)),
    "a shell of another machine than the rest": _all(
        _program("bin/bash", ARM64), _program("bin/dash", AMD64), _link("bin/sh", "/usr/bin/dash")
    ),
    "a loader and tools for two machines": _all(_TOOLS, _program("usr/lib/x86/ld-linux-x86-64.so.2", AMD64)),
    "tools for two machines alone": _TOOLS,
    "programs for one other machine": _all(_TOOLS, _program("app/tool", ARM64)),
    "two different os-release": _text("etc/os-release", "ID=etc\n"),
    "os-release is a link elsewhere": _all(_ELSEWHERE, _link("etc/os-release", "../opt/./v2/release")),
    "os-release is an absolute link over linked directories": _all(
        _ELSEWHERE, _link("opt/current", "v2"), _link("o", "opt//current/"), _link("etc/os-release", "/../o/release")
    ),
    "os-release is a link out of the image": _all(
        _link("usr/lib/os-release", "/etc/os-release"), _link("etc/os-release", "../../../../../../etc/debian_version")
    ),
    "os-release is a link to itself": _link("etc/os-release", "os-release"),
    "distroless": _all(
        *[_text(f"var/lib/dpkg/status.d/{name}", "Package: x\n") for name in ("base", "base.md5sums", "libc6")]
    ),
    "a large file, a hard link and a log": _large,
}
HOSTILE = [name for name in RECIPES if name.startswith("/")]


@cache
def directory() -> Path:
    """Where the files of this session are; removed by :func:`forget`."""
    return Path(mkdtemp(prefix="asi-images-"))


def forget() -> None:
    """Remove the files of this session."""
    shutil.rmtree(directory(), ignore_errors=True)


@cache
def image(name: str) -> Path:
    """The ``.sqsh`` of a recipe."""
    number = list(RECIPES).index(name)
    root = directory() / f"root-{number}"
    _plain(root)
    RECIPES[name](root)
    path = directory() / f"{number}.sqsh"
    subprocess.run(
        ["mksquashfs", root, path, "-quiet", "-no-progress", "-all-root", "-noD", "-comp", "gzip"],
        check=True,
        capture_output=True,
    )
    shutil.rmtree(root)
    return path
