# SPDX-License-Identifier: Apache-2.0
"""Functions of the cluster's shell files, called alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import airflow_slurm_images

CLUSTER = Path(airflow_slurm_images.__file__).parent / "cluster"


def call(
    function: str, *arguments: str, headers: list[str] | None = None, directory: Path = Path("/nonexistent")
) -> str:
    """What the function prints; `headers` are those of the last answer, kept below `directory`."""
    if headers is not None:
        (directory / "login").mkdir(exist_ok=True)
        (directory / "login/headers").write_text("".join(f"{line}\r\n" for line in ["HTTP/1.1 500 x", *headers]))
    command = (
        'ASI_ATTEMPT_DIR="$1"; source "$0/registry.sh"; source "$0/login.sh"; source "$0/manifest.sh"; shift; "$@"'
    )
    asked = ["bash", "-euc", command, str(CLUSTER), str(directory), function, *arguments]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.removesuffix("\n")
