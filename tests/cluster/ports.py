"""Free loopback ports, reserved against other boxes for as long as the reservation lives.

Binding to port 0 and closing again would let two boxes, or any outgoing connection, take the same number
before a daemon binds it. So the numbers lie below the ephemeral range and each is guarded by a locked file.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
from pathlib import Path

from . import procfs
from .errors import BoxError

LOCKS = Path("/run/lock/airflow-slurm-images")
CANDIDATES = range(20000, 30000)
LOOPBACK = "127.0.0.1"


class Ports:
    """Reserved ports; the kernel drops the locks when the process ends, however it ends."""

    def __init__(self) -> None:
        LOCKS.mkdir(parents=True, exist_ok=True)
        self._locks: list[int] = []
        self.numbers: list[int] = []

    def reserve(self) -> int:
        for port in random.sample(CANDIDATES, 500):
            lock = os.open(LOCKS / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _locked(lock) and _bindable(port):
                self._locks.append(lock)
                self.numbers.append(port)
                return port
            os.close(lock)
        raise BoxError("found no free loopback port")

    def release(self) -> None:
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def listens(port: int) -> bool:
    """True once something listens. Not tried by connecting: daemons log that, and sshd counts it."""
    return bool(procfs.listening_addresses(port))
