# SPDX-License-Identifier: Apache-2.0
"""The command line of the benchmarks that measure one size of file."""

from __future__ import annotations

import argparse


def one_size(description: str | None, size: str) -> argparse.Namespace:
    """Size in GB, repeats, output and directory; ``size`` is what --help says of the first."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1, help=size)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repetition of 0.05 GB")
    parser.add_argument("--output", help="name of the result; nothing is written without")
    parser.add_argument("--directory", help="where the box stands (default: the temporary directory)")
    options = parser.parse_args()
    if options.quick:
        options.size, options.repeats = 0.05, 1
    return options
