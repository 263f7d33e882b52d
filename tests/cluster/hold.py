"""Start a box, print its root and its Airflow connection, and hold it until interrupted or terminated.

python -m tests.cluster.hold [--accounting]
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

from .box import temporary_box


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), temporary_box(accounting="--accounting" in sys.argv[1:]) as box:
        print(box.root, flush=True)
        print(box.connection_json, flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
