# SPDX-License-Identifier: Apache-2.0
"""What it costs when the file has to move: hashed where it is, or copied into the store and hashed in the same read.

    python -m benchmarks.moving [--size 1] [--repeats 3] [--quick] [--output NAME]

An inspection in place against one with copy_to_store; an import whose scratch is on the store's file system (a rename
brings the file in) against one whose scratch is in memory (a copy does).
"""

from __future__ import annotations

from tests.airflow import environment  # noqa: F401  # isort: skip  # settles Airflow's configuration, so it comes first

import argparse
import logging
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_slurm_images.core.records import ImageRecord
from benchmarks import big_images, machine, product, results
from benchmarks.timed_box import TimedBox, timed_box
from tests.cluster.conftest import enroot_on_this_machine


def memory_scratch(timed: TimedBox) -> Path:
    """A directory in memory, seen inside the box only."""
    path = timed.directory("scratch")
    timed.box.as_root(["mount", "-t", "tmpfs", "-o", "mode=1777", "scratch", str(path)], check=True)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1, help="of the file, in GB; memory must hold three of it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repetition of 0.05 GB")
    parser.add_argument("--output", help="name of the result; nothing is written without")
    parser.add_argument("--directory", help="where the box stands (default: the temporary directory)")
    options = parser.parse_args()
    if options.quick:
        options.size, options.repeats = 0.05, 1
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
