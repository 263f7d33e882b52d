"""Registries on loopback: Debian's docker-registry, and one of ours that misbehaves to order."""

from __future__ import annotations

import base64
import ctypes
import ctypes.util
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from .images import Image, write_layout

START_PATIENCE = 20.0


def _bcrypt(password: str) -> str:
    library = ctypes.CDLL(ctypes.util.find_library("crypt") or "libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    hashed: bytes = library.crypt(password.encode(), b"$2y$05$abcdefghijklmnopqrstuu")
    return hashed.decode()


@dataclass(frozen=True)
class DockerRegistry:
    """One running docker-registry."""

    address: str
    work: Path
    login: tuple[str, str] | None = None

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    def push(self, image: Image, name: str, *, form: str = "v2s2") -> str:
        """Push in the given format; the digest under which the registry has it."""
        layout = self.work / f"layout-{re.sub(r'[/:]', '-', name)}-{form}"
        write_layout(image, layout)
        digest_file = self.work / "digest"
        command = ["skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false", "--format", form]
        command += ["--digestfile", str(digest_file)]
        if self.login:
            command += ["--dest-creds", ":".join(self.login)]
        command += [f"oci:{layout}:image", f"docker://{self.address}/{name}"]
        subprocess.run(command, check=True, capture_output=True)
        return digest_file.read_text().strip()

    def uri(self, name: str) -> str:
        return f"docker://{self.address}#{name}"


def _settings(work: Path, login: tuple[str, str] | None) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "info"},
        "storage": {"filesystem": {"rootdirectory": str(work / "data")}},
        "http": {"addr": "127.0.0.1:0"},
    }
    if login:
        htpasswd = work / "htpasswd"
        htpasswd.write_text(f"{login[0]}:{_bcrypt(login[1])}\n")
        settings["auth"] = {"htpasswd": {"realm": "contract", "path": str(htpasswd)}}
    return settings


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """It chooses a free port itself and tells it in its log."""
    deadline = time.monotonic() + START_PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        match = re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text())
        if match:
            return match[1]
        time.sleep(0.05)
    raise RuntimeError(f"docker-registry did not start:\n{log.read_text()}")


@contextmanager
def docker_registry(work: Path, login: tuple[str, str] | None = None) -> Iterator[DockerRegistry]:
    work.mkdir(parents=True)
    # JSON is YAML.
    (work / "config.yml").write_text(json.dumps(_settings(work, login)))
    log = work / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(work / "config.yml")], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield DockerRegistry(_address(log, process), work, login)
    finally:
        process.terminate()
        process.wait(timeout=10)


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass
class OddRegistry:
    """Serves what it is told to under each path, and remembers what it was asked."""

    bodies: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    basic: tuple[str, str] | None = None
    bearer: str = ""  # its token service is another host: localhost for 127.0.0.1
    token_status: int = 200
    before_blob: Callable[[], object] = lambda: None
    busy: int = 0
    busiest: int = 0
    address: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, image: Image, tag: str, *, media_type: str) -> None:
        self.bodies[f"/v2/{name}/manifests/{tag}"] = (media_type, image.manifest)
        for digest, data in image.blobs.items():
            self.bodies[f"/v2/{name}/blobs/{digest}"] = ("application/octet-stream", data)

    def uri(self, name: str) -> str:
        return f"docker://{self.address}#{name}"

    def refusal(self, headers: Mapping[str, str]) -> str:
        """The challenge for a request without the right login; empty when it may pass."""
        given = headers.get("Authorization", "")
        if self.basic:
            wanted = base64.b64encode(":".join(self.basic).encode()).decode()
            return "" if given == f"Basic {wanted}" else 'Basic realm="odd"'
        if self.bearer:
            realm = f'Bearer realm="http://localhost:{self.address.rpartition(":")[2]}/token",service="odd"'
            return "" if given == f"Bearer {self.bearer}" else realm
        return ""

    def bearer_for(self, headers: Mapping[str, str]) -> str:
        """Like Docker Hub's: everybody gets a token, only a login gets one that opens anything."""
        return self.bearer if "Authorization" in headers else "worthless"


class Handler(BaseHTTPRequestHandler):
    odd: ClassVar[OddRegistry]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_CONNECT(self) -> None:
        self._note()
        self._send(502, b"", {})

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: what was asked is kept in `asked`."""

    def _note(self) -> None:
        self.odd.asked.append(Asked(self.command, self.path, dict(self.headers.items())))

    def _answer(self) -> None:
        self._note()
        path = self.path.partition("?")[0]
        if path == "/token":
            token = self.odd.bearer_for(dict(self.headers.items()))
            self._send(self.odd.token_status, json.dumps({"token": token}).encode(), {})
            return
        planned = self.odd.statuses.get(path)
        challenge = self.odd.refusal(dict(self.headers.items()))
        if challenge:
            self._send(401, b"{}", {"WWW-Authenticate": challenge})
        elif planned:
            self._send(planned.pop(0), b"{}", {})
        elif path in self.odd.bodies:
            self._serve(path)
        else:
            self._send(404, b'{"errors": []}', {})

    def _serve(self, path: str) -> None:
        media_type, data = self.odd.bodies[path]
        if "/blobs/" not in path:
            self._send(200, data, {"Content-Type": media_type})
            return
        with self.odd.lock:
            self.odd.busy += 1
            self.odd.busiest = max(self.odd.busiest, self.odd.busy)
        try:
            self.odd.before_blob()
        finally:
            with self.odd.lock:
                self.odd.busy -= 1
        self._send(200, data, {"Content-Type": media_type})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def odd_registry() -> Iterator[OddRegistry]:
    odd = OddRegistry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"odd": odd}))
    server.daemon_threads = True
    odd.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield odd
    finally:
        server.shutdown()
        server.server_close()
