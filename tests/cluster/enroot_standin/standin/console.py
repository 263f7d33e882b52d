"""Messages, failures and external programs, in Enroot's manner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

SHELL_DIR = Path(__file__).resolve().parent.parent / "shell"


class Exit(Exception):
    """Ends the program with a status; what there was to say has been said."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def log(level: str, message: str) -> None:
    print(f"[{level}] {message}", file=sys.stderr, flush=True)


def info(message: str) -> None:
    log("INFO", message)


def fail(message: str) -> NoReturn:
    log("ERROR", message)
    raise Exit(1)


def warn(program: str, message: str, error: OSError | None = None) -> None:
    """In the words of one of Enroot's helper programs."""
    detail = f": {os.strerror(error.errno)}" if error is not None and error.errno else ""
    print(f"{program}: {message}{detail}", file=sys.stderr, flush=True)


def complain(program: str, message: str, error: OSError | None = None) -> NoReturn:
    warn(program, message, error)
    raise Exit(1)


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            fail(f"Command not found: {program}")


def status_of(returncode: int) -> int:
    """The exit status a shell reports: 128 and the signal's number for a killed child."""
    return returncode if returncode >= 0 else 128 - returncode


def run(command: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a program with its report on our standard error, as Enroot does; end with its status if it fails."""
    returncode = subprocess.run(command, stdout=sys.stderr, env=env, cwd=cwd, check=False).returncode
    if returncode:
        raise Exit(status_of(returncode))


def real_path(path: str) -> Path:
    """`readlink -f`: everything but the last component has to exist."""
    resolved = Path(os.path.realpath(path))
    if not resolved.parent.is_dir():
        fail(f"No such file or directory: {path}")
    return resolved


def _make_removable(path: Path) -> None:
    for directory, _, _ in os.walk(path):
        Path(directory).chmod(0o700)


def remove_tree(path: Path) -> None:
    """Images bring directories without write permission along; open them first."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        _make_removable(path)
        shutil.rmtree(path)


def fix_permissions(path: Path) -> None:
    """Enroot makes everything readable and every directory writable for the owner."""
    subprocess.run(["chmod", "-f", "-R", "u+rX", str(path)], check=False)
    for directory, _, _ in os.walk(path):
        mode = Path(directory).stat().st_mode
        if not mode & 0o200:
            Path(directory).chmod((mode | 0o200) & 0o7777)


def is_squashfs(path: str | Path) -> bool:
    if shutil.which("unsquashfs") is None:
        return False
    probe = subprocess.run(["unsquashfs", "-s", str(path)], capture_output=True, check=False)
    return probe.returncode == 0


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A private directory below ENROOT_TEMP_PATH, gone at the end (not after SIGKILL)."""
    made = subprocess.run(
        ["mktemp", "-d", "-p", os.environ["ENROOT_TEMP_PATH"], f"{prefix}.XXXXXXXXXX"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode:
        raise Exit(made.returncode)
    path = Path(made.stdout.rstrip("\n"))
    try:
        yield path
    finally:
        remove_tree(path)
