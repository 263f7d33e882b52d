# SPDX-License-Identifier: Apache-2.0
"""Shells an image may have as its ``$SHELL`` or ``/bin/sh``, and made-up images for ``enroot.rc``."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.unit.trees.prefix import ENROOT_RC, make_executable

_SHELLS = ("sh", "dash", "bash", "busybox ash", "ksh", "mksh", "yash", "zsh")
NOBODY = 65534


def shells() -> tuple[tuple[str, ...], ...]:
    """Return the commands of the shells that are here; ``sh`` always is."""
    found = []
    for command in _SHELLS:
        program, *applet = command.split()
        path = shutil.which(program)
        if path is not None:
            found.append((path, *applet))
    return tuple(found)


def elf(machine: int) -> bytes:
    """Return the head of a program for another machine."""
    return (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0x400000, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )


@dataclass
class FakeImage:
    """A directory that plays the root of an image, with Pythons that only say what they were asked."""

    root: Path
    shell: tuple[str, ...]

    @property
    def log(self) -> Path:
        """What the Pythons were started with, one line a start."""
        return self.root / "log"

    @property
    def rc(self) -> Path:
        """A copy of the start script that looks into this image only."""
        text = ENROOT_RC.read_text()
        for name, value in (
            ("ASI_MOUNT=/asi", f"ASI_MOUNT={self.root}/asi"),
            ("ASI_ROOT=", f"ASI_ROOT={self.root}"),
        ):
            assert f"\n{name} " in text or f"\n{name}\n" in text
            text = text.replace(f"\n{name}", f"\n{value}", 1)
        path = self.root / "enroot.rc"
        path.write_text(text)
        return path

    def python(self, place: str, version: str = "3.12", status: int = 0) -> Path:
        """Put a Python of a version there, which ends the inspection with a status."""
        return make_executable(
            self.root / place,
            "#!/bin/sh\n"
            f"case $3 in -c) printf 'noise\\n\\nasi:{version}\\n'; exit 0 ;; esac\n"
            f"printf '%s\\n' \"$0 $*\" >> {self.log}\n"
            f"exit {status}\n",
        )

    def run(
        self, *arguments: str, path: str = "usr/bin", user: int | None = None, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the start script with a PATH of directories of the image."""
        directories = ":".join(str(self.root / part) for part in path.split(":"))
        return subprocess.run(
            [*self.shell, str(self.rc), *(arguments or ("--kind", "client"))],
            env={"PATH": directories, **(environment or {})}, cwd="/", capture_output=True, text=True, timeout=60,
            stdin=subprocess.DEVNULL, user=user,
        )  # fmt: skip

    def started(self) -> list[str]:
        """Return the Pythons that ran the inspector, as paths inside the image, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [os.path.relpath(line.split(" ")[0], self.root) for line in lines]
