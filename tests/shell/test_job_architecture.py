# SPDX-License-Identifier: Apache-2.0
"""Which program of an image tells its architecture."""

from __future__ import annotations

import pytest

from airflow_slurm_images.core.image_formats import parse_elf_architecture
from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import LocalCluster, inspect_request

IMAGES = {
    "plain": "amd64",
    "bash and tools for two machines": "amd64",
    "a shell of another machine than the rest": "amd64",
    "a loader and tools for two machines": "amd64",
    "programs for one other machine": "arm64",
    "tools for two machines alone": None,
}


@pytest.mark.parametrize(
    ("name", "awk"), [*[(name, "mawk") for name in IMAGES], ("a shell of another machine than the rest", "gawk")]
)
def test_shell_and_loader_tell_the_architecture_before_any_other_program(
    cluster: LocalCluster, name: str, awk: str
) -> None:
    cluster.slurm.tool("awk", f'exec {awk} "$@"')
    done = cluster.run(inspect_request(image(name)))
    assert done.status == 0, done.output
    elf = done.directory / "output/static/elf"
    assert (parse_elf_architecture(elf.read_bytes()) if elf.exists() else None) == IMAGES[name]
