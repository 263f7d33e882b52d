# SPDX-License-Identifier: Apache-2.0
"""A cluster whose Enroot imports from a registry of the test, and that checks the manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.shell.fake_slurm.login import LocalCluster, client_facts, plain_image
from tests.shell.fake_slurm.registry import IMPORT, Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry) -> LocalCluster:
    insecure = [registry.address]
    made = LocalCluster(tmp_path, monkeypatch, verify_manifest=True, insecure_registries=insecure)
    plain_image(made)
    client_facts(made)
    made.slurm.enroot_does("import", IMPORT)
    return made


@pytest.fixture
def waits(cluster: LocalCluster) -> Callable[[], list[str]]:
    """Waiting takes no time; gives the whole seconds that the job meant to wait (less is for signals)."""
    file = cluster.slurm.enroot / "waits"
    cluster.slurm.tool("sleep", f'[[ "$1" == 0.* ]] || echo "$1" >> {file}')
    return lambda: file.read_text().split() if file.exists() else []
