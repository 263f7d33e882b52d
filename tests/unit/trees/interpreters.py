# SPDX-License-Identifier: Apache-2.0
"""The Pythons this machine has, one of each minor version, the running one among them.

``python3.8`` to ``python3.15`` are looked up on PATH and where version managers put them; ``ASI_TEST_PYTHONS`` names
more, separated by colons.
"""

from __future__ import annotations

import functools
import glob
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_MINORS = range(8, 16)
_PLACES = (
    *("~/.pyenv/versions/*/bin", "/opt/pyenv/versions/*/bin", "~/.local/share/uv/python/*/bin"),
    *("/usr/local/bin", "/usr/bin", "/opt/python*/bin", "/opt/conda/envs/*/bin"),
)
_QUESTION = """
import json, os, sys
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([sys.executable, os.path.dirname(os.path.realpath(base)), list(sys.version_info[:2]), sys.version]))
"""


@dataclass(frozen=True)
class Interpreter:
    """One Python: its program, the directory a ``pyvenv.cfg`` calls its home, (major, minor), full version."""

    executable: Path
    home: Path
    minor: tuple[int, int]
    full_version: str

    @property
    def name(self) -> str:
        """``3.11``, for test ids and directories."""
        return f"{self.minor[0]}.{self.minor[1]}"


def _ask(program: str) -> Interpreter | None:
    try:
        done = subprocess.run([program, "-c", _QUESTION], capture_output=True, text=True, timeout=60, check=True)
        executable, home, minor, version = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None  # a shim of a version manager, say
    if not (3, 8) <= tuple(minor) <= (3, 99):
        return None
    return Interpreter(Path(executable), Path(home), (minor[0], minor[1]), version.split()[0])


@functools.cache
def interpreters() -> tuple[Interpreter, ...]:
    """Return what was found, oldest first."""
    named = [name for name in os.environ.get("ASI_TEST_PYTHONS", "").split(":") if name]
    found: dict[tuple[int, int], Interpreter] = {}
    for program in [sys.executable, *named]:
        _keep(found, program)
    for minor in _MINORS:
        name = f"python3.{minor}"
        places = [path for place in _PLACES for path in sorted(glob.glob(os.path.expanduser(f"{place}/{name}")))]
        # What PATH finds may be the shim of a version manager that has not chosen this version.
        for program in filter(None, [shutil.which(name), *places]):
            if (3, minor) not in found:
                _keep(found, program)
    return tuple(found[minor] for minor in sorted(found))


def _keep(found: dict[tuple[int, int], Interpreter], program: str) -> None:
    interpreter = _ask(program)
    if interpreter is not None:
        found.setdefault(interpreter.minor, interpreter)


def running() -> Interpreter:
    """Return the Python that runs the tests."""
    return next(one for one in interpreters() if one.minor == sys.version_info[:2])


def quickly_tested() -> tuple[Interpreter, ...]:
    """Return the oldest, the running and the newest; tests under the ones between are slow tests."""
    every = interpreters()
    return tuple(one for one in every if one in (every[0], running(), every[-1]))
