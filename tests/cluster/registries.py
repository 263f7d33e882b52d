# SPDX-License-Identifier: Apache-2.0
"""The real registry (Debian's docker-registry) in four set-ups over one store, on loopback.

    with Registries(directory) as registries:
        registries.bearer.address

What is pushed to `open` is there in all of them: `open` asks for nothing, `basic` for a login by HTTP,
`bearer` for a token of the token service on another port, `tls` for nothing but trust in a private CA.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import bcrypt

from . import certificates
from .ports import Ports, listens
from .process import Daemon
from .space import ProcessSpace
from .token_server import TokenServer

LOGIN = "robot"


@dataclass(frozen=True)
class Server:
    """One registry; `address` is its `host:port`."""

    address: str
    daemon: Daemon


class Registries:
    def __init__(self, root: Path) -> None:
        """`root`: an empty directory; its files are private to the caller."""
        self._root = root
        root.chmod(0o700)
        self._ports = Ports()
        self._space = ProcessSpace("registries", root)
        self.login = LOGIN
        self.password = secrets.token_urlsafe(24)
        self.tokens = TokenServer(LOGIN, self.password)
        ca = certificates.authority("private CA of the tests")
        self.ca_file, _ = ca.write(root, "ca")
        certificate, key = certificates.server("registry", ca).write(root, "registry")
        self.open = self._server("open", {})
        self.basic = self._server("basic", {"auth": {"htpasswd": self._htpasswd()}})
        self.bearer = self._server("bearer", {"auth": self.tokens.registry_settings(root)})
        tls = {"certificate": str(certificate), "key": str(key)}
        self.tls = self._server("tls", {}, tls=tls)

    @property
    def all(self) -> tuple[Server, ...]:
        return self.open, self.basic, self.bearer, self.tls

    def start(self) -> None:
        try:
            self.tokens.start()
            self._space.start()
            for server in self.all:
                server.daemon.start()
            for server in self.all:
                server.daemon.wait_ready(partial(listens, int(server.address.rpartition(":")[2])))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for server in self.all:
            server.daemon.stop()
        self._space.stop()
        self.tokens.stop()
        self._ports.release()

    def __enter__(self) -> Registries:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _server(self, name: str, settings: dict[str, Any], tls: dict[str, str] | None = None) -> Server:
        address = f"127.0.0.1:{self._ports.reserve()}"
        directory = self._root / name
        directory.mkdir()
        http = {"addr": address, "secret": secrets.token_hex(16)} | ({"tls": tls} if tls else {})
        config = {
            "version": "0.1",
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(self._root / "data")}},
            "http": http,
        }
        path = directory / "config.yml"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config | settings))  # JSON is YAML
        return Server(address, Daemon(["docker-registry", "serve", str(path)], self._space, directory))

    def _htpasswd(self) -> dict[str, str]:
        path = self._root / "htpasswd"
        path.touch(mode=0o600)
        hashed = bcrypt.hashpw(self.password.encode(), bcrypt.gensalt(rounds=5)).decode()
        path.write_text(f"{LOGIN}:{hashed}\n")
        return {"realm": "tests", "path": str(path)}
