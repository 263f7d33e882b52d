# SPDX-License-Identifier: Apache-2.0
"""Airflow on a private database, and a cluster in a box behind the connection ``slurm_default``."""

from __future__ import annotations

from tests.airflow import environment  # isort: skip  # settles Airflow's configuration, so it comes first

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.airflow.dag_runs import DagRunner, Run
from tests.cluster.box import Box
from tests.cluster.conftest import box_accounting, enroot_dir, image_layouts, push_images, shared_boxes

__all__ = ["box_accounting", "enroot_dir", "image_layouts", "push_images", "shared_boxes"]


@pytest.fixture(scope="session")
def airflow_database() -> None:
    from airflow.utils.db import initdb

    initdb()
    assert (environment.HOME / "airflow.db").exists()


@pytest.fixture(scope="session")
def box(box_accounting: Box) -> Iterator[Box]:
    """A running cluster; its connection is Airflow's ``slurm_default`` (``AIRFLOW_CONN_SLURM_DEFAULT``)."""
    os.environ["AIRFLOW_CONN_SLURM_DEFAULT"] = box_accounting.connection_json
    yield box_accounting
    del os.environ["AIRFLOW_CONN_SLURM_DEFAULT"]


@pytest.fixture(scope="session")
def images(box: Box, push_images: Callable[[Box], dict[str, str]]) -> dict[str, str]:
    """Pinned references of the test images in the box's registry: client, serving, nopython, static."""
    return {name: f"{box.registry}/images/{name}:latest@{digest}" for name, digest in push_images(box).items()}


@pytest.fixture(scope="session")
def sqsh(box: Box) -> Path:
    """A SquashFS file on the cluster that somebody else made."""
    (box.workspace / "tree" / "etc").mkdir(parents=True)
    (box.workspace / "tree" / "etc" / "os-release").write_text("NAME=Test\nID=test\n")
    made = box.workspace / "foreign.sqsh"
    subprocess.run(["mksquashfs", made.with_name("tree"), made, "-quiet", "-no-progress"], check=True)
    shutil.chown(made, box.user)
    return made


@pytest.fixture
def run_dag(airflow_database: None, capfd: pytest.CaptureFixture[str]) -> DagRunner:
    """Run a DAG with ``dag.test()``; gives states, XComs and the log."""
    return DagRunner(capfd)


@pytest.fixture(scope="session")
def kept_runs() -> dict[str, Run]:
    """Runs that several tests look at, by name."""
    return {}
