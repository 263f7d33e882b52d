"""An OCI registry of the box's own: open, plain HTTP, files below the box."""

from __future__ import annotations

import secrets

from .layout import Layout
from .ports import Ports, listens
from .process import Daemon
from .space import ProcessSpace
from .template import render, write_config


class Registry:
    def __init__(self, layout: Layout, space: ProcessSpace, ports: Ports) -> None:
        self._port = ports.reserve()
        self.address = f"127.0.0.1:{self._port}"
        directory = layout.root / "registry"
        config = directory / "config.yml"
        values = {"directory": directory, "port": self._port, "secret": secrets.token_hex(16)}
        write_config(config, render("registry.yml.in", values), mode=0o600)
        self.daemon = Daemon(["docker-registry", "serve", str(config)], space, layout.logs)

    def start(self) -> None:
        self.daemon.start()

    def wait_ready(self) -> None:
        self.daemon.wait_ready(lambda: listens(self._port))
