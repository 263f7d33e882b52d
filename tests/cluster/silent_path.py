# SPDX-License-Identifier: Apache-2.0
"""A way to a server that can go silent: what is on it is swallowed from then on, without an end; new ways are good."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

from .ports import LOOPBACK


class SilentPath:
    """Forwards a loopback port to a server; ``connections`` counts what came."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self._silent = 0
        self._ends: list[socket.socket] = []

    def go_silent(self) -> None:
        """Swallow all bytes of the connections that are open now, in both directions."""
        self._silent = self.connections

    def __enter__(self) -> SilentPath:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._ends += [near, far]
                self.connections += 1
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink, self.connections), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, number: int) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if number > self._silent:
                    sink.sendall(data)
            if number > self._silent:
                sink.shutdown(socket.SHUT_WR)
