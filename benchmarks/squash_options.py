# SPDX-License-Identifier: Apache-2.0
"""What mksquashfs options cost and give: size of the file, time of the import, of a start, and of reading it.

    python -m benchmarks.squash_options [--size 1] [--repeats 3] [--quick] [--output NAME]

Enroot alone, all layers cached, so that the difference is that of the options. Each repetition takes all options in
turn. Reading is that of one of the four data layers, through the file system that a direct start mounts.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

from benchmarks import big_images, machine, results
from benchmarks.options import one_size
from benchmarks.plain_enroot import PlainEnroot
from benchmarks.timed_box import timed_box
from tests.cluster.conftest import enroot_on_this_machine

NOTHING_PACKED = "-noI -noD -noF -noX"
OPTIONS = (
    "-comp lzo -noD",
    "-comp zstd -Xcompression-level 1 -noD",
    "-comp zstd -Xcompression-level 3 -noD",
    "-comp lz4 -noD",
    "-comp gzip -Xcompression-level 1 -noD",
    NOTHING_PACKED,
    "-comp zstd -Xcompression-level 1",
    "-comp zstd -Xcompression-level 3",
    "-comp lz4",
    "-comp gzip",
    "-comp lzo",
)
READ = ("sh", "-c", "find /opt/data0 -type f -exec cat {} + > /dev/null")


def main() -> int:
    options = one_size(__doc__, "of the file without compression of data, in GB")
    document = machine.describe(enroot_on_this_machine()) | {"gigabytes": options.size}
    measured: dict[str, dict[str, list[Any]]] = {name: defaultdict(list) for name in OPTIONS}
    with timed_box(options.directory) as timed:
        image = big_images.push(timed.box.registry, options.size, timed.box.root / "making").image
        enroot = PlainEnroot(timed)
        enroot.import_image(image, NOTHING_PACKED)  # fills the layer cache
        for _ in range(options.repeats):
            for name in OPTIONS:
                found = measured[name]
                found["import"].append(round(enroot.import_image(image, name), 3))
                found["bytes"].append(enroot.file.stat().st_size)
                found["start"].append(round(min(enroot.start("true") for _ in range(3)), 3))
                found["read"].append(round(enroot.start(*READ), 3))
                found["load"].append(machine.load())
                print(name, {key: values[-1] for key, values in found.items()}, file=sys.stderr, flush=True)
            if options.output:
                results.write(options.output, document | {"options": measured})
    return 0


if __name__ == "__main__":
    sys.exit(main())
