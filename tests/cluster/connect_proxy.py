# SPDX-License-Identifier: Apache-2.0
"""A forward proxy that tunnels (CONNECT) to one server, whatever host it is asked for, and writes down what it saw."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from .ports import LOOPBACK


class ConnectProxy:
    """`status` other than 200: every tunnel is refused with it."""

    def __init__(self, port: int, status: int = 200) -> None:
        self.asked: list[tuple[str, Message]] = []
        self._server = ThreadingHTTPServer((LOOPBACK, 0), _handler(self, port, status))
        self._server.daemon_threads = True
        self.address = f"{LOOPBACK}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def targets(self) -> list[str]:
        return [target for target, _ in self.asked]

    def __enter__(self) -> ConnectProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(proxy: ConnectProxy, port: int, status: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            proxy.asked.append((self.path, self.headers))
            self.close_connection = True
            self.send_response(status, "Connection established")
            if status != 200:
                self.send_header("Content-Length", "0")
            self.end_headers()
            if status == 200:
                with socket.create_connection((LOOPBACK, port)) as target:
                    back = threading.Thread(target=_pump, args=(target, self.connection), daemon=True)
                    back.start()
                    _pump(self.connection, target)
                    back.join()

        def log_message(self, *_args: object) -> None:
            """Quiet: the requests are in a list."""

    return Handler


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
