# SPDX-License-Identifier: Apache-2.0
"""A virtual environment made by hand, with distributions as good or as broken as a test wants them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import airflow_slurm_images.cluster as cluster_files
from tests.unit.trees.interpreters import Interpreter

INSPECTOR = Path(cluster_files.__path__[0]) / "inspect_image.py"
ENROOT_RC = Path(cluster_files.__path__[0]) / "enroot.rc"


def metadata(name: str, version: str, *extra: str) -> str:
    """Return the text of a METADATA file."""
    return "\n".join(
        ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *extra, "", "A description.", ""]
    )


def record_line(base: Path, path: Path) -> str:
    """Return the RECORD line of one installed file, as pip writes it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return f"{os.path.relpath(path, base)},sha256={digest},{path.stat().st_size}"


def script_text(module: str, interpreter: str) -> str:
    """Return a console script as installers write it."""
    return f"#!{interpreter}\nimport sys\nfrom {module} import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def make_executable(path: Path, text: str) -> Path:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@dataclass
class Outcome:
    """What one run of the inspector left."""

    status: int
    stderr: str
    facts: dict[str, Any]

    @property
    def inspection(self) -> dict[str, Any]:
        """The value that other tools read."""
        assert self.status == 0, self.stderr
        value = self.facts["inspection"]
        assert isinstance(value, dict)
        return value

    @property
    def image(self) -> dict[str, Any]:
        """Everything else."""
        assert self.status == 0, self.stderr
        value = self.facts["image"]
        assert isinstance(value, dict)
        return value

    @property
    def versions(self) -> dict[str, str]:
        """Name to version of the distributions found."""
        listed = self.inspection.get("distributions", self.image.get("distributions"))
        return {entry["name"]: entry["version"] for entry in listed or []}

    @property
    def error_code(self) -> str:
        """The code of a refused inspection, of which nothing was written."""
        last = self.stderr.rstrip("\n").rpartition("\n")[2]
        match = re.match(r"asi-inspect: error: (\w+): (.+)", last)
        assert match is not None, self.stderr
        assert self.facts == {}
        return match[1]


@dataclass
class Prefix:
    """One environment below ``root``, and the directory mounted into the container beside it."""

    root: Path
    interpreter: Interpreter
    mount: Path
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, tmp_path: Path, interpreter: Interpreter, name: str = "venv") -> Prefix:
        """Lay out an empty virtual environment and the mounted directory."""
        root = tmp_path / name
        for directory in (root / "bin", root / "lib" / f"python{interpreter.name}" / "site-packages"):
            directory.mkdir(parents=True)
        (root / "bin" / "python3").symlink_to(interpreter.executable)
        (root / "pyvenv.cfg").write_text(f"home = {interpreter.home}\ninclude-system-site-packages = false\n")
        mount = tmp_path / "mounted"
        mount.mkdir(exist_ok=True)
        (mount / "inspect_image.py").write_bytes(INSPECTOR.read_bytes())
        return cls(root, interpreter, mount, {"PATH": f"{root / 'bin'}:/usr/bin:/bin"})

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.root / "bin" / "python3"

    @property
    def site(self) -> Path:
        """The environment's site-packages."""
        return self.root / "lib" / f"python{self.interpreter.name}" / "site-packages"

    @property
    def output(self) -> Path:
        """Where the facts go."""
        return self.mount / "facts"

    def add(self, name: str, version: str = "1.0", *, base: Path | None = None, scripts: tuple[str, ...] = ()) -> Path:
        """Install a distribution as pip would; returns its dist-info directory."""
        base = base or self.site
        module = name.replace("-", "_").lower()
        package = base / module
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
        info = base / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(metadata(name, version))
        lines = [record_line(base, package / "__init__.py")]
        for script in scripts:
            path = make_executable(self.root / "bin" / script, script_text(f"{module}.cli", str(self.python)))
            lines.append(record_line(base, path))
        if scripts:
            entries = "".join(f"{script} = {module}.cli:main\n" for script in scripts)
            (info / "entry_points.txt").write_text(f"[console_scripts]\n{entries}")
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/METADATA,,", f"{info.name}/RECORD,,", ""]))
        return info

    def at_start(self, code: str) -> None:
        """Run ``code`` whenever this environment's Python starts (sitecustomize may be the distribution's own)."""
        (self.site / "_at_start.py").write_text(code)
        (self.site / "_at_start.pth").write_text("import _at_start\n")

    def inspect(self, kind: str = "client", *arguments: str, timeout: float = 60) -> Outcome:
        """Run the inspector as ``enroot.rc`` does."""
        done = subprocess.run(
            [str(self.python), "-s", "-B", str(self.mount / "inspect_image.py"), "--kind", kind,
             "--output", str(self.output), *arguments],
            env=self.environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        written = self.output.is_file() and not self.output.is_symlink()
        facts = json.loads(self.output.read_text()) if written else {}
        return Outcome(done.returncode, done.stderr, facts)


def client_prefix(tmp_path: Path, interpreter: Interpreter) -> Prefix:
    """Return an environment with pip, so that a client inspection has its installer."""
    prefix = Prefix.make(tmp_path, interpreter)
    prefix.add("pip", "24.0", scripts=("pip",))
    return prefix
