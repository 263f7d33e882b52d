"""A login node that sees a directory as it was, as behind a file server's attribute cache.

The stale view lies over the directory for everything in the box. Looking at single files in it changes nothing; only a
listing of the directory, once its time is over, shows what is really there.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .box import Box
from .works import as_operator

IN_ACCESS = 0x00000001
IN_ISDIR = 0x40000000
FOR_EVER = 3600.0


class StaleView:
    """Made by :func:`stale`; ``revealed`` says whether a listing has ended it."""

    def __init__(self, box: Box, directory: Path, copy: Path, seconds: float) -> None:
        self._box, self._directory, self._copy = box, directory, copy
        self._until = time.monotonic() + seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.revealed = False

    def start(self) -> None:
        as_operator(self._box, "mount", "--bind", str(self._copy), str(self._directory))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if not self.revealed:
            self._unmount()

    def _unmount(self) -> None:
        as_operator(self._box, "umount", "--lazy", str(self._directory))

    def _watch(self) -> None:
        """End the view at the first listing after its time."""
        self._stop.wait(self._until - time.monotonic())
        libc = ctypes.CDLL(None, use_errno=True)
        watcher = libc.inotify_init1(os.O_CLOEXEC)
        try:
            if libc.inotify_add_watch(watcher, os.fsencode(self._copy), IN_ACCESS) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch")
            while not self._stop.is_set():
                if select.select([watcher], [], [], 0.1)[0] and _a_listing_is_in(os.read(watcher, 65536)):
                    self._unmount()
                    self.revealed = True
                    return
        finally:
            os.close(watcher)


def _a_listing_is_in(events: bytes) -> bool:
    """Of the directory itself: such an event has no name."""
    offset = 0
    while offset < len(events):
        _, mask, _, length = struct.unpack_from("iIII", events, offset)
        if mask & IN_ISDIR and not length:
            return True
        offset += 16 + length
    return False


@contextmanager
def stale(box: Box, directory: Path, *without: str, seconds: float = FOR_EVER) -> Iterator[StaleView]:
    """Show everybody in the box ``directory`` without some of its entries until it is listed after ``seconds``."""
    copy = Path(tempfile.mkdtemp(prefix="stale-", dir=box.root))
    as_operator(box, "cp", "-a", f"{directory}/.", str(copy))
    for name in without:
        as_operator(box, "rm", "-rf", str(copy / name))
    view = StaleView(box, directory, copy, seconds)
    view.start()
    try:
        yield view
    finally:
        view.stop()
        shutil.rmtree(copy)
