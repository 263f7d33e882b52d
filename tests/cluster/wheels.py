"""Python distributions as an installer would leave them in an image."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from .oci import Tree

WHEEL_METADATA = "Wheel-Version: 1.0\nGenerator: airflow-slurm-images-tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def install(
    tree: Tree,
    site: str,
    name: str,
    version: str,
    modules: Mapping[str, str],
    scripts: Mapping[str, str] | None = None,
    bin_directory: str = "/usr/local/bin",
    python: str = "/usr/bin/python3",
) -> None:
    """Install a distribution of ours.

    `modules` are texts by their path below `site`; `scripts` are "module:function" by name.
    """
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = dict(modules)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: a test\n"
    files[f"{info}/WHEEL"] = WHEEL_METADATA
    files[f"{info}/INSTALLER"] = "pip\n"
    if scripts:
        lines = "".join(f"{script} = {target}\n" for script, target in scripts.items())
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
    record = "".join(f"{path},{_record_hash(text.encode())},{len(text.encode())}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    for path, text in files.items():
        tree.file(f"{site}/{path}", text)
    for script, target in (scripts or {}).items():
        tree.file(f"{bin_directory}/{script}", console_script(target, python), 0o755)


def unpack(tree: Tree, wheel: Path, site: str) -> None:
    """Install a pure-Python wheel that somebody else made."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                tree.file(f"{site}/{member.filename}", archive.read(member))


def console_script(target: str, python: str) -> str:
    """The script that pip writes for an entry point."""
    module, _, function = target.partition(":")
    lines = [
        f"#!{python}",
        "import sys",
        f"from {module} import {function}",
        "",
        f"sys.exit({function}())",
        "",
    ]
    return "\n".join(lines)


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
