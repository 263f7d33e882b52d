# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a fresh cluster for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shell.fake_slurm import images
from tests.shell.fake_slurm.login import LocalCluster, client_facts, plain_image


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster whose Enroot imports a plain image and starts a client image."""
    made = LocalCluster(tmp_path, monkeypatch)
    plain_image(made)
    client_facts(made)
    return made


@pytest.fixture(scope="session", autouse=True)
def _images() -> Iterator[None]:
    yield
    images.forget()
