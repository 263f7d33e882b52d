# SPDX-License-Identifier: Apache-2.0
"""The reference's side: data-designer-slurm from the package index, in a virtual environment of its own.

Its own code prepares, renders and submits its own job script, which runs unchanged on the same node. Two things are
given to it as a site would: `enroot` in a directory of its fixed PATH, and plain HTTP for the registry of the box.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from benchmarks.product import Timed
from benchmarks.timed_box import CPUS, MEMORY_MB, TimedBox, settle

DISTRIBUTION = "data-designer-slurm"
VERSION = "1.0.0rc1"
# Readable by every user, writable by root alone; kept, as it takes a while to install.
ENVIRONMENT = Path("/var/cache/airflow-slurm-images-benchmark") / f"{DISTRIBUTION}-{VERSION}"
SITE_ENROOT = '#!/bin/sh\nENROOT_ALLOW_HTTP=yes exec {enroot} "$@"\n'


def install() -> Path:
    """The Python of the environment, made when it is not there yet."""
    python = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / "ready"
    if not ready.exists():
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{DISTRIBUTION}=={VERSION}"], check=True)
        ready.touch()
    return python


class Reference:
    """Runs the reference on a box, in a workspace of its own on the same file system."""

    def __init__(self, timed: TimedBox) -> None:
        self._timed = timed
        self._python = install()
        box = timed.box
        self._script = box.root / "reference_side.py"
        shutil.copyfile(Path(__file__).with_name("reference_side.py"), self._script)
        self._script.chmod(0o644)
        self._put_enroot_on_its_path()
        self.forget_everything()

    def _put_enroot_on_its_path(self) -> None:
        box = self._timed.box
        assert box.enroot_dir is not None
        directory = box.root / "site-bin"
        directory.mkdir()
        for helper in box.enroot_dir.glob("enroot-*"):
            (directory / helper.name).symlink_to(helper)
        enroot = directory / "enroot"
        enroot.write_text(SITE_ENROOT.format(enroot=box.enroot_dir / "enroot"))
        enroot.chmod(0o755)
        # Seen inside the box only, which has mounts of its own.
        box.as_root(["mount", "--bind", str(directory), "/usr/local/sbin"], check=True)

    def forget_everything(self) -> None:
        self._workspace = self._timed.directory("reference")

    def add(self, source: str) -> tuple[Timed, Path]:
        """Import a pinned image, or inspect a file, and register it."""
        box = self._timed.box
        settle()
        request = box.root / "request.json"
        request.write_text(json.dumps(self._request(source)))
        argv = box.user_command([str(self._python), str(self._script), str(request)])
        with subprocess.Popen(
            argv,
            env=box.user_env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            submitted = _answer(process.stdout)
            directory = Path(submitted["directory"])
            job = self._timed.follow(submitted["job_id"], directory / "phase")
            logs = self._logs(directory)
            process.stdin.write("publish\n")
            process.stdin.flush()
            try:
                published = _answer(process.stdout)
            except RuntimeError as err:
                raise RuntimeError(f"the reference's job failed:\n{logs}") from err
        timed = Timed(submitted["seconds"], job.seconds, published["seconds"], job.phases)
        return timed, Path(published["path"])

    def _request(self, source: str) -> dict[str, Any]:
        box = self._timed.box
        return {
            "id": f"image-{secrets.token_hex(16)}",
            "name": "benchmark",
            "source": source,
            "profile": {
                "schema_version": 1,
                "gpus_per_node": 1,
                "workspace_root": str(self._workspace),
                "scheduler": {"account": box.account},
                "image_build": {
                    "partition": box.partition,
                    "cpus_per_task": CPUS,
                    "memory": f"{MEMORY_MB}M",
                    "time_limit": "4:00:00",
                },
            },
        }

    def _logs(self, directory: Path) -> str:
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in sorted(directory.glob("slurm-*")))


def _answer(lines: IO[str]) -> dict[str, Any]:
    line = lines.readline()
    if not line:
        raise RuntimeError("the reference ended without an answer")
    answer: dict[str, Any] = json.loads(line)
    return answer
