# SPDX-License-Identifier: Apache-2.0
"""A registry that does what registries, mirrors and proxies do on bad days, and remembers what it was sent.

It holds one healthy single-platform image, `team/app:1.0`; tests script what happens instead, by path.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Literal

from .http_servers import RecordingServer, Reply, Request

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
REPOSITORY = "team/app"

Fault = Literal["none", "truncated", "silent", "dripping", "closed", "unannounced", "headers", "undelimited"]


@dataclass
class BadReply(Reply):
    """`truncated` announces too much, `unannounced` nothing; `silent` never begins, `dripping` never ends, nor do
    `headers` and `undelimited`, a body whose end is that of the connection."""

    fault: Fault = "none"


class MisbehavingRegistry(RecordingServer):
    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        super().__init__(tls)
        self.config = document({"architecture": "amd64", "os": "linux"})
        self.manifest = document(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": descriptor(CONFIG, self.config),
                "layers": [{"mediaType": LAYER, "digest": "sha256:" + 64 * "1", "size": 1234}],
            }
        )
        self.digest = digest_of(self.manifest)
        self._script: dict[str, list[Reply]] = {}

    @property
    def tag_path(self) -> str:
        return f"/v2/{REPOSITORY}/manifests/1.0"

    @property
    def config_path(self) -> str:
        return f"/v2/{REPOSITORY}/blobs/{digest_of(self.config)}"

    @property
    def image(self) -> str:
        return f"{self.address}/{REPOSITORY}:1.0"

    def script(self, path: str, *replies: Reply) -> None:
        """What to answer for a path, one reply after the other; the last one stays."""
        self._script[path] = list(replies)

    def healthy(self, path: str) -> Reply:
        """What a good registry answers."""
        if path in (self.tag_path, f"/v2/{REPOSITORY}/manifests/{self.digest}"):
            headers = [("Content-Type", MANIFEST), ("Docker-Content-Digest", self.digest)]
            return Reply(200, self.manifest, headers)
        if path == self.config_path:
            return Reply(200, self.config)
        if path == f"/v2/{REPOSITORY}/tags/list":
            return Reply(200, document({"name": REPOSITORY, "tags": ["0.9", "1.0", "1.0-cuda"]}))
        if path == "/v2/":
            return Reply(200, b"{}")
        return errors(404, "MANIFEST_UNKNOWN" if path.startswith(f"/v2/{REPOSITORY}/") else "NAME_UNKNOWN")

    def reply(self, request: Request) -> Reply:
        scripted = self._script.get(request.path)
        if not scripted:
            return self.healthy(request.path)
        return scripted.pop(0) if len(scripted) > 1 else scripted[0]

    def send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        fault = reply.fault if isinstance(reply, BadReply) else "none"
        if fault == "none":
            super().send(handler, reply)
            return
        handler.close_connection = True
        if fault == "silent":
            self.stopping.wait(30)
            return
        if fault == "closed":
            return
        handler.send_response(reply.status)
        if fault == "headers":
            handler.flush_headers()
            handler.wfile.write(b"X-Slow: ")
            self._drip(handler)
            return
        if fault not in ("unannounced", "undelimited"):
            handler.send_header("Content-Length", str(len(reply.body) + 1_000_000))
        handler.end_headers()
        handler.wfile.write(reply.body)
        if fault in ("dripping", "undelimited"):
            self._drip(handler)

    def _drip(self, handler: BaseHTTPRequestHandler) -> None:
        try:
            while not self.stopping.wait(0.02):
                handler.wfile.write(b" ")
                handler.wfile.flush()
        except OSError:
            return  # the client has had enough


def document(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(media_type: str, content: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content), **more}


def errors(status: int, code: str, message: str = "no") -> Reply:
    """The error document of the distribution specification."""
    body = document({"errors": [{"code": code, "message": message}]})
    return Reply(status, body, [("Docker-Distribution-Api-Version", "registry/2.0")])
