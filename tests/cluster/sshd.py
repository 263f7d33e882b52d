"""An sshd of the box's own, with its own host key and its own list of authorised keys."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import users
from .layout import Layout
from .ports import Ports, listens
from .process import Daemon
from .space import ProcessSpace
from .template import render, write_config


class Sshd:
    """`start(MaxStartups="1:100:1")` takes sshd_config options, which win over ours until the next start."""

    def __init__(self, layout: Layout, space: ProcessSpace, ports: Ports) -> None:
        self.port = ports.reserve()
        self._directory = layout.root / "ssh"
        self.client_key = _generate(self._directory / "client_key")
        host_key = _generate(self._directory / "host_key")
        self.host_public_key = _public_part(host_key)
        self._authorise()
        self._config = self._directory / "sshd_config"
        # sshd executes itself again for every connection, so it wants its absolute path.
        self.daemon = Daemon(["/usr/sbin/sshd", "-D", "-e", "-f", str(self._config)], space, layout.logs)

    def _authorise(self) -> None:
        directory = self._directory / "authorized_keys"
        directory.mkdir(exist_ok=True)
        public = self.client_key.with_suffix(".pub").read_text()
        for user in (users.USER, users.OTHER_USER):
            (directory / user).write_text(public)
            (directory / user).chmod(0o644)  # sshd reads it as that user

    def start(self, **options: str) -> None:
        # Compiled in; the package's service, which we do without, would make it.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        # The first value of an option is the one that counts.
        extra = "\n".join(f"{name} {value}" for name, value in options.items())
        values = {"extra": extra, "port": self.port, "directory": self._directory}
        write_config(self._config, render("sshd_config.in", values))
        self.daemon.start()
        self.daemon.wait_ready(lambda: listens(self.port))

    def stop(self) -> None:
        """Also ends the open sessions, as a node that goes away would."""
        self.daemon.stop(with_descendants=True)

    def logins(self) -> int:
        """How many logins were accepted since the box started."""
        return self.daemon.log.read_text(errors="replace").count("Accepted publickey")


def _generate(key: Path) -> Path:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "box", "-f", str(key)]
    subprocess.run(argv, check=True)
    return key


def _public_part(key: Path) -> str:
    """`ssh-ed25519 AAAA...`, without the comment."""
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])
