# SPDX-License-Identifier: Apache-2.0
"""The reference's job and ours in turn, on one cluster in a box, for images of several sizes, against the floor.

    python -m benchmarks.side_by_side [--sizes 0.2 1 4] [--repeats 5 3 1] [--quick] [--output NAME [--add]]

Measured per size: inspection of an existing file, cold import, refresh of an image of which all layers but the last
are known, import of an unchanged digest; and the floor: one read of the file, its hash, Enroot's import alone. Takes
root and Enroot on PATH (or ENROOT=...); writes benchmarks/results/NAME.json after each size. --quick is a smoke run.
"""

from __future__ import annotations

from tests.airflow import environment  # noqa: F401  # isort: skip  # settles Airflow's configuration, so it comes first

import argparse
import logging
import shutil
import sys
from collections import defaultdict
from typing import Any

from airflow_slurm_images.core.profile import ClusterProfile
from benchmarks import big_images, machine, product, results
from benchmarks.big_images import BigImage
from benchmarks.plain_enroot import PlainEnroot
from benchmarks.reference import DISTRIBUTION, VERSION, Reference
from benchmarks.timed_box import TimedBox, settle, timed_box
from tests.cluster.conftest import enroot_on_this_machine

SQUASH_OPTIONS = str(ClusterProfile.model_fields["squash_options"].default)
ENROOT_DEFAULT = "-comp lzo -noD"


class Size:
    """All measurements of one size; each repetition does everything once, the two sides in turn."""

    def __init__(self, timed: TimedBox, reference: Reference, image: BigImage) -> None:
        self.timed, self.reference, self.image = timed, reference, image
        self.measured: dict[str, list[Any]] = defaultdict(list)
        self.loads: list[float] = []
        self.file = timed.directory("existing") / "image.sqsh"

    def note(self, name: str, value: Any) -> None:
        load = machine.load()
        self.measured[name].append(value | {"load": load} if isinstance(value, dict) else value)
        self.loads.append(load)
        print(f"  {name}: {value}", file=sys.stderr, flush=True)

    def repeat(self, number: int) -> None:
        for side in (self.ours_import, self.reference_import)[:: -1 if number % 2 else 1]:
            side()
        for side in (self.ours_inspection, self.reference_inspection, self.ours_inspection):
            side()
        self.floor_of_the_file()
        self.floor_of_the_import()

    def ours_import(self) -> None:
        product.forget_everything(self.timed)
        cold, record = product.import_image(self.timed, self.image.image)
        self.note("cold.ours", cold.as_json())
        if not self.file.exists():
            shutil.copyfile(record.sqsh.path, self.file)
            shutil.chown(self.file, self.timed.box.user, self.timed.box.user)
        refresh, _ = product.import_image(self.timed, self.image.refreshed)
        self.note("refresh.ours", refresh.as_json())
        seconds, jobs = product.import_unchanged(self.timed, self.image.refreshed)
        self.note("unchanged.ours", {"whole": round(seconds, 3), "jobs": jobs})
        product.forget_everything(self.timed)

    def reference_import(self) -> None:
        self.reference.forget_everything()
        jobs = self.timed.jobs()
        cold, _ = self.reference.add(self.image.image)
        self.note("cold.reference", cold.as_json())
        refresh, _ = self.reference.add(self.image.refreshed)
        self.note("refresh.reference", refresh.as_json())
        self.note("jobs.reference", self.timed.jobs() - jobs)
        self.reference.forget_everything()

    def ours_inspection(self) -> None:
        self.note("inspect.ours", product.inspect(self.timed, self.file)[0].as_json())

    def reference_inspection(self) -> None:
        self.note("inspect.reference", self.reference.add(str(self.file))[0].as_json())

    def floor_of_the_file(self) -> None:
        settle()
        file = str(self.file)
        for name, argv in (
            ("read", ["dd", f"if={file}", "of=/dev/null", "bs=1M"]),
            ("openssl", ["openssl", "dgst", "-sha256", file]),
            ("sha256sum", ["sha256sum", file]),
        ):
            self.note(f"floor.{name}", round(self.timed.run(*argv), 3))

    def floor_of_the_import(self) -> None:
        enroot = PlainEnroot(self.timed)
        for name, image, options in (
            ("import_cold", self.image.image, SQUASH_OPTIONS),
            ("import_warm", self.image.refreshed, SQUASH_OPTIONS),
        ):
            self.note(f"floor.{name}", round(enroot.import_image(image, options), 3))
        enroot.remove()

    def as_json(self, gigabytes: float) -> dict[str, Any]:
        return {
            "gigabytes": gigabytes,
            "sqsh_bytes": self.file.stat().st_size,
            "image": {name: getattr(self.image, name) for name in ("layer_bytes", "top_bytes", "files", "layers")},
            "load": {"least": min(self.loads), "most": max(self.loads)},
            "measured": dict(self.measured),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.2, 1, 4], help="of the file, in GB")
    parser.add_argument("--repeats", type=int, nargs="+", default=[5, 3, 1], help="as many as sizes")
    parser.add_argument("--quick", action="store_true", help="one repetition of 0.05 GB")
    parser.add_argument("--output", help="name of the result; nothing is written without")
    parser.add_argument("--add", action="store_true", help="keep the sizes that the result has already")
    parser.add_argument("--directory", help="where the box stands (default: the temporary directory)")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.repeats = [0.05], [1]
    if len(options.sizes) != len(options.repeats):
        parser.error("give as many repeats as sizes")
    logging.disable(logging.INFO)
    document = machine.describe(enroot_on_this_machine())
    document["versions"][DISTRIBUTION] = VERSION
    sizes = results.read(options.output)["sizes"] if options.add else []
    document |= {"squash_options": SQUASH_OPTIONS, "reference_squash_options": ENROOT_DEFAULT, "sizes": sizes}
    with timed_box(options.directory) as timed:
        reference = Reference(timed)
        for gigabytes, repeats in zip(options.sizes, options.repeats, strict=True):
            print(f"{gigabytes} GB", file=sys.stderr, flush=True)
            image = big_images.push(timed.box.registry, gigabytes, timed.box.root / "making")
            size = Size(timed, reference, image)
            for number in range(repeats):
                size.repeat(number)
            sizes.append(size.as_json(gigabytes))
            if options.output:
                results.write(options.output, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
