"""slurmdbd on a MariaDB of the box's own."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import users
from .errors import BoxError
from .layout import Layout
from .ports import Ports, listens
from .process import Daemon, tail
from .space import CLEAN_ENV, ProcessSpace
from .template import render, write_config

ACCOUNT = "lab"


class Accounting:
    """The two daemons; `register` makes the cluster and its users known before slurmctld starts."""

    def __init__(self, layout: Layout, space: ProcessSpace, ports: Ports) -> None:
        self.port = ports.reserve()
        self._database_port = ports.reserve()
        self._layout = layout
        self._space = space
        self._env = {"SLURM_CONF": str(layout.slurm_conf)}
        values = {
            "root": layout.root,
            "munge_socket": layout.munge_socket,
            "hostname": space.hostname,
            "slurmdbd_port": self.port,
            "database_port": self._database_port,
            "database_password": secrets.token_hex(16),
        }
        # slurmdbd refuses a configuration that others can read.
        write_config(layout.slurm / "slurmdbd.conf", render("slurmdbd.conf.in", values), mode=0o600)
        directory = layout.root / "database"
        directory.mkdir(mode=0o700)
        # Not the shared /tmp: names there go by pid, and two process spaces have the same pids.
        self._temporary = directory / "tmp"
        self._temporary.mkdir()
        write_config(directory / "init.sql", render("database.sql.in", values), mode=0o600)
        self.database = Daemon(self._database_argv(directory), space, layout.logs)
        self.slurmdbd = Daemon(["slurmdbd", "-D"], space, layout.logs, self._env)

    def _database_argv(self, directory: Path) -> list[str]:
        return [
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={directory / 'data'}",
            f"--tmpdir={self._temporary}",
            f"--socket={directory / 'socket'}",
            f"--pid-file={directory / 'pid'}",
            f"--init-file={directory / 'init.sql'}",
            "--bind-address=127.0.0.1",
            f"--port={self._database_port}",
            "--skip-name-resolve",
            # Small and fast: the data live no longer than the box.
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=16M",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-lock-wait-timeout=900",
        ]

    def start_database(self) -> None:
        self._install_database()
        self.database.start()

    def _install_database(self) -> None:
        data = self._layout.root / "database" / "data"
        argv = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--tmpdir={self._temporary}"]
        argv += ["--user=root", "--skip-test-db", "--auth-root-authentication-method=socket"]
        _run(self._space.enter(argv), CLEAN_ENV)

    def start_slurmdbd(self) -> None:
        self.database.wait_ready(lambda: listens(self._database_port))
        self.slurmdbd.start()
        self.slurmdbd.wait_ready(lambda: listens(self.port))

    def register(self, cluster: str) -> None:
        self._sacctmgr("add", "cluster", cluster)
        self._sacctmgr("add", "account", ACCOUNT, f"cluster={cluster}")
        self._sacctmgr("add", "user", f"{users.USER},{users.OTHER_USER}", f"account={ACCOUNT}")

    def _sacctmgr(self, *argv: str) -> None:
        try:
            _run(self._space.enter(["sacctmgr", "--immediate", *argv]), CLEAN_ENV | self._env)
        except BoxError as err:
            raise BoxError(f"{err}\n{tail(self.slurmdbd.log)}") from err


def _run(argv: Sequence[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise BoxError(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
