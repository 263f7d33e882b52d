# SPDX-License-Identifier: Apache-2.0
"""Jobs that end well: what they leave, and with what they called Enroot."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import pytest

from tests.unit.fake_slurm.images import image
from tests.unit.fake_slurm.login import LocalCluster, import_request, inspect_request


def test_an_import_ends_in_the_store_under_its_hash(cluster: LocalCluster) -> None:
    done = cluster.run(import_request("client"))
    assert done.status == 0, done.output
    sqsh = done.record.sqsh
    assert sqsh is not None
    assert sqsh.managed
    digest = hashlib.sha256(image("plain").read_bytes()).hexdigest()
    assert sqsh.sha256 == digest
    path = Path(sqsh.path)
    assert path == cluster.workspace / f"store/sha256/{digest}.sqsh"
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name]
    phases = [line.split()[2] for line in done.output.splitlines() if line.startswith("asi: phase ")]
    assert phases == ["verify", "claim", "space", "import", "check", "hash", "examine", "inspect", "store", "done"]
    assert cluster.slurm.leftovers() == []
