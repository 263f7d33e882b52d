# SPDX-License-Identifier: Apache-2.0
"""Images with a real Python that was tampered with: what they say of themselves may be wrong, nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import JobFailedError
from airflow_slurm_images.core.records import ClientInspection, ImageRecord

from .box import Box
from .image_recipes import CLIENT_DISTRIBUTIONS
from .oci import Tree
from .remains import left_by
from .sqsh import changed, place, squash, tree_of
from .works import inspect_task, sha256

SITE = "usr/local/lib/python3.11/dist-packages"
FORGED = {
    "facts_version": 1,
    "inspector_version": "9.9.9",
    "kind": "client",
    "inspection": {
        "kind": "client",
        "python_implementation": "forged",
        "python_version": "9.9.9",
        "python_abi": "cp99",
        "distributions": [],
        "installer_path": "/forged",
        "installer_version": "9",
    },
    "image": {"architecture": "forged", "os": "forged", "sqsh_sha256": "f" * 64},
}
FORGERY = f"""\
import os, sys
if "/asi/inspect_image.py" in " ".join(getattr(sys, "orig_argv", [])):
    with open("/asi/facts", "w") as facts:
        facts.write({json.dumps(FORGED)!r})
    os._exit(0)
"""


@pytest.fixture(scope="module")
def client(image_layouts: dict[str, Path]) -> Tree:
    return tree_of(image_layouts["client"])


def record_of(box: Box, name: str, tree: Tree) -> ImageRecord:
    task = inspect_task(box, squash(tree, place(box, name)))
    record = task.run()
    assert left_by(box, task) == []
    assert record.sqsh.sha256 == record.inspection.sqsh_sha256 == sha256(Path(record.sqsh.path))
    assert record.image["architecture"] == "amd64"
    assert "sqsh_sha256" not in record.image
    return record


def versions(record: ImageRecord) -> dict[str, str]:
    found = record.inspection.inspection
    assert isinstance(found, ClientInspection)
    return {item.name: item.version for item in found.distributions}


SHADOWS = ("argparse", "base64", "errno", "hashlib", "json", "platform", "re", "select", "stat", "zipfile")
PATCHES = """\
import importlib.metadata, json, os, sys
importlib.metadata.distributions = lambda **kwargs: []
importlib.metadata.version = lambda name: "0"
json.loads = None
sys.path += [None, b"bytes"]
os.environ.pop("PATH", None)
"""


def test_code_that_the_image_runs_at_start_changes_no_fact(box_plain: Box, home: Path, client: Tree) -> None:
    files = {
        f"{SITE}/usercustomize.py": "raise SystemExit('user')\n",
        f"{SITE}/_patches.py": PATCHES,
        f"{SITE}/patches.pth": "import _patches\n",
    }
    expect_the_facts(record_of(box_plain, "patched", changed(client, files)))


def test_modules_and_variables_of_the_image_change_no_fact(box_plain: Box, home: Path, client: Tree) -> None:
    files = {f"shadow/{name}.py": "raise SystemExit('shadowed')\n" for name in SHADOWS}
    variables = {
        "PYTHONPATH": "/shadow",
        "PYTHONSTARTUP": "/shadow/json.py",
        "PYTHONINSPECT": "1",
        "PYTHONUSERBASE": "/shadow",
        "PYTHONWARNINGS": "error",
        "PYTHONOPTIMIZE": "2",
        "PYTHONVERBOSE": "1",
        "PYTHONIOENCODING": "ascii:strict",
        "PYTHONDEVMODE": "1",
    }
    files["etc/environment"] = "".join(f"{name}={value}\n" for name, value in variables.items())
    record = record_of(box_plain, "shadowed", changed(client, files))
    expect_the_facts(record)
    assert record.image["python_path_env"] == "/shadow"


def expect_the_facts(record: ImageRecord) -> None:
    found = versions(record)
    assert found["tinylib"] == CLIENT_DISTRIBUTIONS["tinylib"]
    assert {"pip", "six", "tiny-plugin-set"} <= set(found)


FORGERIES = {
    "a .pth file": {f"{SITE}/_forge.py": FORGERY, f"{SITE}/forge.pth": "import _forge\n"},
    "the shell": {"bin/sh": f"#!/usr/bin/python3.11\n{FORGERY.replace('if ', 'if True or ')}"},
}


@pytest.mark.parametrize("forger", FORGERIES)
def test_a_forged_record_says_only_what_an_image_may_say_of_itself(
    box_plain: Box, home: Path, client: Tree, forger: str
) -> None:
    tree = changed(client, {path.replace("bin/sh", "usr/bin/sh"): text for path, text in FORGERIES[forger].items()})
    record = record_of(box_plain, "forged", tree)
    assert versions(record) == {}
    assert record.image["os_id"] == "debian"
    assert record.image["debian_packages"] is not None


def test_a_python_that_cannot_start_is_told_with_its_own_words(box_plain: Box, home: Path, client: Tree) -> None:
    tree = changed(client, {"etc/environment": "PYTHONHOME=/nonexistent\n"})
    task = inspect_task(box_plain, squash(tree, place(box_plain, "home-less")))
    with pytest.raises(JobFailedError, match="Fatal Python error: ") as caught:
        task.run()
    assert caught.value.reason == "no_python"


ODD_NAMES = ("-cat", "--help", "-d", "a\nb", "a\rb", "\x1b[2J", "a b", "$(id)", "`id`", "*", "?", "é\udcff", "x" * 250)


def test_odd_names_of_files_are_nothing_special(box_plain: Box, home: Path, client: Tree) -> None:
    programs = {f"{place}{name}": "#!/bin/sh\n" for name in ODD_NAMES for place in ("", "usr/bin/", f"{SITE}/")}
    metadata = {f"{SITE}/{name[:200]}-1.dist-info/METADATA": "Name: None\n" for name in ODD_NAMES}
    record = record_of(box_plain, "odd-names", changed(client, programs | metadata))
    assert versions(record)["tinylib"] == CLIENT_DISTRIBUTIONS["tinylib"]
    assert len(record.image["unreadable_distributions"]) == len(ODD_NAMES)
