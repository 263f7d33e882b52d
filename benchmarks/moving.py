# SPDX-License-Identifier: Apache-2.0
"""What it costs when the file has to move: hashed where it is, or copied into the store and hashed in the same read.

    python -m benchmarks.moving [--size 1] [--repeats 3] [--quick] [--output NAME]

An inspection in place against one with copy_to_store; an import whose scratch is on the store's file system (a rename
brings the file in) against one whose scratch is in memory (a copy does).
"""

from __future__ import annotations

from tests.airflow import environment  # noqa: F401  # isort: skip  # settles Airflow's configuration, so it comes first

import logging
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_slurm_images.core.records import ImageRecord
from benchmarks import big_images, machine, product, results
from benchmarks.options import one_size
from benchmarks.timed_box import TimedBox, timed_box
from tests.cluster.conftest import enroot_on_this_machine


def memory_scratch(timed: TimedBox) -> Path:
    """A directory in memory, seen inside the box only."""
    path = timed.directory("scratch")
    timed.box.as_root(["mount", "-t", "tmpfs", "-o", "mode=1777", "scratch", str(path)], check=True)
    return path


def main() -> int:
    options = one_size(__doc__, "of the file, in GB; memory must hold three of it")
    logging.disable(logging.INFO)
    document = machine.describe(enroot_on_this_machine()) | {"gigabytes": options.size}
    measured: dict[str, list[Any]] = defaultdict(list)
    with timed_box(options.directory) as timed:
        image = big_images.push(timed.box.registry, options.size, timed.box.root / "making").image
        scratch = str(memory_scratch(timed))
        _, record = product.import_image(timed, image)  # fills the layer cache
        file = timed.directory("existing") / "image.sqsh"
        shutil.copyfile(record.sqsh.path, file)
        shutil.chown(file, timed.box.user, timed.box.user)
        ways: dict[str, Callable[[], tuple[product.Timed, ImageRecord]]] = {
            "inspect in place": lambda: product.inspect(timed, file),
            "inspect and copy to store": lambda: product.inspect(timed, file, name="moved", copy_to_store=True),
            "import, scratch beside store": lambda: product.import_image(timed, image),
            "import, scratch elsewhere": lambda: product.import_image(timed, image, scratch_root=scratch),
        }
        for _ in range(options.repeats):
            for name, run in ways.items():
                product.empty_store(timed)
                measured[name].append(run()[0].as_json() | {"load": machine.load()})
                print(name, measured[name][-1], file=sys.stderr, flush=True)
            if options.output:
                results.write(options.output, document | {"ways": measured})
    return 0


if __name__ == "__main__":
    sys.exit(main())
