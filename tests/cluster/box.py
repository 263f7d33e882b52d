"""A real Slurm cluster with sshd and an OCI registry, on loopback, below one directory.

    with Box(root, accounting=True) as box:
        box.as_user(["sbatch", "--wrap", "true"], check=True)
        box.squeue()

Everything runs in one process space that ends with the box, and also when the process that started it dies.
Several boxes stand beside each other; they share nothing but two ordinary users.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from . import connection, users
from .accounting import ACCOUNT, Accounting
from .commands import Commands, Job
from .errors import BoxError
from .layout import Layout
from .ports import LOOPBACK, Ports
from .registry import Registry
from .slurm_daemons import NODE, PARTITION, ClusterSettings, Munge, Slurm, allow_fuse_for_users
from .space import ProcessSpace
from .sshd import Sshd

__all__ = ["Box", "BoxError", "Job", "temporary_box"]


class Box(Commands):
    """Start it with `with`, or with `start()` and `stop()`. Not meant to be started a second time."""

    user = users.USER
    other_user = users.OTHER_USER
    group = users.GROUP  # both users are in it
    partition = PARTITION
    node = NODE
    ssh_host = LOOPBACK
    slurm_bin = Path("/usr/bin")

    def __init__(
        self,
        root: Path,
        accounting: bool,
        enroot_dir: Path | None = None,
        *,
        min_job_age: int = 300,
        cpus: int = 2,
        memory_mb: int = 4096,
        slurm_conf: Mapping[str, str] | None = None,
    ) -> None:
        """`enroot_dir` holds the executable `enroot`; `slurm_conf` overrides lines of that file."""
        self.layout = Layout(root.resolve())
        super().__init__(ProcessSpace(NODE, self.layout.logs), self.layout.slurm_conf, enroot_dir)
        self._settings = ClusterSettings(
            min_job_age=min_job_age, cpus=cpus, memory_mb=memory_mb, overrides=slurm_conf or {}
        )
        self.cluster_name = self._settings.name
        self.account = ACCOUNT if accounting else None
        self.ports = Ports()

    # -- life

    def __enter__(self) -> Box:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        try:
            self._prepare()
            self._start_daemons()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the box. Its files stay, for whoever looks into a failure."""
        self.space.stop()
        self.ports.release()

    def _prepare(self) -> None:
        users.ensure_users()
        self.layout.create()
        if self.enroot_dir:
            self.enroot_dir = self.layout.within_reach(self.enroot_dir.absolute())
        allow_fuse_for_users()
        self.space.start()
        parts = (self.layout, self.space, self.ports)
        self.munge = Munge(self.layout, self.space)
        self.oci_registry = Registry(*parts)
        self.sshd = Sshd(*parts)
        self._accounting = Accounting(*parts) if self.account else None
        slurmdbd_port = self._accounting.port if self._accounting else None
        self.slurm = Slurm(*parts, self._settings, slurmdbd_port)

    def _start_daemons(self) -> None:
        self.oci_registry.start()
        if self._accounting:
            self._accounting.start_database()
        self.munge.start()
        self.start_sshd()
        if self._accounting:
            self._accounting.start_slurmdbd()
            self._accounting.register(self.cluster_name)
        self.start_slurmctld()
        self.start_slurmd()
        self.oci_registry.wait_ready()

    # -- where things are

    @property
    def root(self) -> Path:
        return self.layout.root

    @property
    def workspace(self) -> Path:
        """An empty directory of the ordinary user's, for `workspace_root`."""
        return self.layout.workspace

    @property
    def group_workspace(self) -> Path:
        """The same, open to the group that both users are in."""
        return self.layout.group_workspace

    @property
    def ssh_port(self) -> int:
        return self.sshd.port

    @property
    def ssh_key_path(self) -> Path:
        """Private key that logs in as either user."""
        return self.sshd.client_key

    @property
    def known_host_key(self) -> str:
        return self.sshd.host_public_key

    @property
    def registry(self) -> str:
        return self.oci_registry.address

    @property
    def extra(self) -> dict[str, Any]:
        """The `extra` of an Airflow connection: how to log in, and the cluster's profile."""
        return connection.extra(self)

    @property
    def connection(self) -> dict[str, Any]:
        """The Airflow connection as a dict."""
        return connection.fields(self)

    @property
    def connection_json(self) -> str:
        """The connection as an `AIRFLOW_CONN_...` variable takes it."""
        return connection.as_json(self)

    # -- daemons, for the tests that take one away

    @property
    def accounting(self) -> Accounting:
        if self._accounting is None:
            raise BoxError("this box has no accounting")
        return self._accounting

    def repair(self) -> None:
        """Start what a test has stopped and, as it failed meanwhile, not started again."""
        stopped = [
            (self.sshd.daemon, self.start_sshd),
            (self.slurm.slurmctld, self.start_slurmctld),
            (self.slurm.slurmd, self.start_slurmd),
        ]
        if self._accounting:
            stopped.insert(0, (self._accounting.slurmdbd, self.start_slurmdbd))
        for daemon, start in stopped:
            if not daemon.running:
                start()

    def start_slurmctld(self) -> None:
        self.slurm.start_slurmctld()

    def stop_slurmctld(self) -> None:
        self.slurm.slurmctld.stop()

    def restart_slurmctld(self) -> None:
        self.stop_slurmctld()
        self.start_slurmctld()

    def start_slurmd(self) -> None:
        self.slurm.start_slurmd()

    def stop_slurmd(self, end_steps: bool = True) -> None:
        """With `end_steps` the running jobs' processes die too, as on a node that fails."""
        self.slurm.stop_slurmd(end_steps)

    def restart_slurmd(self, end_steps: bool = False) -> None:
        self.stop_slurmd(end_steps)
        self.start_slurmd()

    def start_slurmdbd(self) -> None:
        self.accounting.start_slurmdbd()

    def stop_slurmdbd(self) -> None:
        self.accounting.slurmdbd.stop()

    def restart_slurmdbd(self) -> None:
        self.stop_slurmdbd()
        self.start_slurmdbd()

    def start_sshd(self, **options: str) -> None:
        """`options` are sshd_config lines for this start, such as `MaxStartups="1:100:1"`."""
        self.sshd.start(**options)

    def stop_sshd(self) -> None:
        self.sshd.stop()

    def restart_sshd(self, **options: str) -> None:
        self.stop_sshd()
        self.start_sshd(**options)


@contextmanager
def temporary_box(accounting: bool, enroot_dir: Path | None = None, **settings: Any) -> Iterator[Box]:
    """A running box in a directory of its own, removed after; `settings` are those of `Box`."""
    # pytest's temporary directories would not do: they are closed to ordinary users.
    root = Path(tempfile.mkdtemp(prefix="asi-box-"))
    try:
        with Box(root, accounting, enroot_dir, **settings) as box:
            yield box
    finally:
        shutil.rmtree(root)
