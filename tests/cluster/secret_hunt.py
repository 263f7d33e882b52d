# SPDX-License-Identifier: Apache-2.0
"""Looking for a secret where none may be: files below directories, texts, arguments and environments of processes."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path

from . import procfs


class Hunt:
    """One login; its forms are the password, the pair as a basic login sends it, and its encoding at any offset."""

    def __init__(self, login: str, password: str) -> None:
        pair = f"{login}:{password}".encode()
        self.forms = {password.encode(), base64.b64encode(pair)}
        for offset in range(3):
            encoded = base64.b64encode(b"\0" * offset + password.encode())
            self.forms.add(encoded[4 if offset else 0 : len(encoded) // 4 * 4 - 4])
        self.seen: list[str] = []
        """What :meth:`sample` saw, if it saw a secret."""
        self.sampled: set[str] = set()
        """Names of the programs and scripts that were looked at."""

    def is_in(self, data: bytes) -> bool:
        return any(form in data for form in self.forms)

    def files(self, *roots: Path) -> list[Path]:
        """Regular files that hold a form, whoever owns them; names count too. What vanishes meanwhile is gone."""
        found = []
        for root in roots:
            for directory, _, names in os.walk(root):
                paths = [Path(directory, name) for name in names]
                found += [path for path in paths if self.is_in(str(path).encode()) or self.is_in(_content(path))]
        return found

    def sample(self, pids: Iterable[int]) -> None:
        """Look at the arguments and the environment of running processes."""
        for pid in pids:
            directory = procfs.PROC / str(pid)
            try:
                arguments = (directory / "cmdline").read_bytes()
                environment = (directory / "environ").read_bytes()
            except (OSError, ProcessLookupError):
                continue
            started = arguments.split(b"\0", 2)[:2]  # a script comes second, after its shell
            self.sampled.update(name.decode(errors="replace").rpartition("/")[2] for name in started)
            if self.is_in(arguments):
                self.seen.append(f"arguments of {arguments[:40]!r}")
            if self.is_in(environment):
                self.seen.append(f"environment of {arguments[:40]!r}")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    except OSError:
        return b""
