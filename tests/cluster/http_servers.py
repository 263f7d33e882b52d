# SPDX-License-Identifier: Apache-2.0
"""HTTP servers in threads of the test, which write down every request they get."""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from .ports import LOOPBACK

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    """As in the request line: a path, or a whole URL when we are somebody's proxy."""
    headers: Message

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> list[tuple[str, str]]:
        return parse_qsl(urlsplit(self.target).query)

    @property
    def authorization(self) -> str | None:
        return self.headers.get("Authorization")


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)


class RecordingServer:
    """Answers with :meth:`reply` on a free port; over TLS when given certificate and key."""

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self._server = ThreadingHTTPServer((LOOPBACK, 0), _handler(self))
        self._server.daemon_threads = True
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        self.address = f"{LOOPBACK}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def reply(self, request: Request) -> Reply:
        raise NotImplementedError

    def send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        """Put a reply on the wire; the place to do it badly."""
        handler.send_response(reply.status)
        for name, value in reply.headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(reply.body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(reply.body)

    @property
    def authorizations(self) -> list[str]:
        """The Authorization headers that arrived."""
        return [request.authorization for request in self.requests if request.authorization]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _handler(server: RecordingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            request = Request(self.command, self.path, self.headers)
            server.requests.append(request)
            server.send(self, server.reply(request))

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_args: object) -> None:
            """Quiet: the requests are in a list."""

    return Handler
