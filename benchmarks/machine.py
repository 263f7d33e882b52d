# SPDX-License-Identifier: Apache-2.0
"""What a result was measured on: processor, memory, kernel and versions; no names and no paths."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def describe(enroot_dir: Path) -> dict[str, Any]:
    """Machine, versions and date, as every result carries them."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": {
            "processor": _field(Path("/proc/cpuinfo"), "model name"),
            "cores": os.cpu_count(),
            "memory_gib": round(int(_field(Path("/proc/meminfo"), "MemTotal").split()[0]) / 2**20),
            "kernel": platform.release(),
            "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        },
        "versions": {
            "provider": importlib.metadata.version("airflow-provider-slurm-images"),
            "airflow": importlib.metadata.version("apache-airflow"),
            "python": platform.python_version(),
            "slurm": _version(["slurmctld", "-V"]),
            "enroot": _version([str(enroot_dir / "enroot"), "version"]),
            "squashfs-tools": _version(["mksquashfs", "-version"]),
            "squashfuse": _version(["squashfuse", "--help"]),
            "openssl": _version(["openssl", "version"]),
        },
    }


def load() -> float:
    """Load average of the last minute: more than the benchmark's own when the machine is shared."""
    return round(os.getloadavg()[0], 2)


def _field(file: Path, name: str) -> str:
    match = re.search(rf"^{name}\s*:\s*(.+)$", file.read_text(), re.MULTILINE)
    return match[1] if match else "unknown 0"


def _version(argv: Sequence[str]) -> str:
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run(argv, env=clean, capture_output=True, text=True, check=False)
    match = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return match[0] if match else "unknown"
