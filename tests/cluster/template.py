"""Configuration files from the templates in conf/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

TEMPLATES = Path(__file__).with_name("conf")


def render(template: str, values: Mapping[str, object]) -> str:
    return Template((TEMPLATES / template).read_text()).substitute(values)


def override(text: str, settings: Mapping[str, str]) -> str:
    """Replace `Key=value` lines by name, appending the new ones: Slurm complains about a key given twice."""
    replaced = {key.lower() for key in settings}
    kept = [line for line in text.splitlines() if line.partition("=")[0].strip().lower() not in replaced]
    return "\n".join([*kept, *(f"{key}={value}" for key, value in settings.items())]) + "\n"


def write_config(target: Path, text: str, mode: int = 0o644) -> None:
    target.touch(mode=mode)
    target.chmod(mode)
    target.write_text(text)
