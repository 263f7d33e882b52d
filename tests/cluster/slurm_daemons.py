"""munged, slurmctld and slurmd of one box."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import procfs
from .layout import Layout
from .ports import Ports, listens
from .process import Daemon
from .space import CLEAN_ENV, ProcessSpace, end
from .template import override, render, write_config

# The one host of the box: controller, database daemon and node.
NODE = "node1"
PARTITION = "cpu"
SHORT_PARTITION = "short"  # time limit of a minute
CLOSED_PARTITION = "closed"  # down: jobs wait there for ever


@dataclass(frozen=True)
class ClusterSettings:
    """What a test may want to differ from one box to the next."""

    name: str = field(default_factory=lambda: f"asi{secrets.token_hex(4)}")
    cpus: int = 2
    memory_mb: int = 4096
    min_job_age: int = 300
    overrides: Mapping[str, str] = field(default_factory=dict)


class Munge:
    """A munged of the box's own: own key, own socket."""

    def __init__(self, layout: Layout, space: ProcessSpace) -> None:
        self._socket = layout.munge_socket
        directory = self._socket.parent
        key = directory / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        argv = ["munged", "--foreground", f"--socket={self._socket}", f"--key-file={key}"]
        argv += [f"--pid-file={directory / 'pid'}", f"--seed-file={directory / 'seed'}"]
        self.daemon = Daemon(argv, space, layout.logs)

    def start(self) -> None:
        self.daemon.start()
        self.daemon.wait_ready(self._socket.exists)


class Slurm:
    """Configuration, controller and node. `slurmdbd_port` is given when there is accounting."""

    def __init__(
        self,
        layout: Layout,
        space: ProcessSpace,
        ports: Ports,
        settings: ClusterSettings,
        slurmdbd_port: int | None,
    ) -> None:
        self._space = space
        self._slurmd_port = ports.reserve()
        values = {
            "root": layout.root,
            "munge_socket": layout.munge_socket,
            "cluster": settings.name,
            "node": NODE,
            "cpus": settings.cpus,
            "memory_mb": settings.memory_mb,
            "min_job_age": settings.min_job_age,
            "slurmctld_port": ports.reserve(),
            "slurmd_port": self._slurmd_port,
            "slurmdbd_port": slurmdbd_port,
        }
        text = render("slurm.conf.in", values)
        if slurmdbd_port is not None:
            text += render("slurm-accounting.conf.in", values)
        write_config(layout.slurm_conf, override(text, settings.overrides))
        write_config(layout.slurm / "cgroup.conf", render("cgroup.conf.in", values))
        conf = str(layout.slurm_conf)
        self._env = {"SLURM_CONF": conf}
        self.slurmctld = Daemon(["slurmctld", "-D", "-f", conf], space, layout.logs, self._env)
        self.slurmd = Daemon(["slurmd", "-D", "-N", NODE, "-f", conf], space, layout.logs, self._env)

    def start_slurmctld(self) -> None:
        self.slurmctld.start()
        self.slurmctld.wait_ready(lambda: "is UP" in self._query("scontrol", "ping"))

    def start_slurmd(self) -> None:
        self.slurmd.start()
        # The controller remembers the node's last state, so that alone does not show that slurmd is back.
        self.slurmd.wait_ready(lambda: listens(self._slurmd_port) and self._node_usable())

    def stop_slurmd(self, end_steps: bool) -> None:
        self.slurmd.stop()
        if end_steps:
            # Step daemons leave slurmd's tree on purpose: jobs survive a restart of slurmd.
            steps = self._space.pids("slurmstepd")
            end([*steps, *(pid for step in steps for pid in procfs.descendants_of(step))])

    def _node_usable(self) -> bool:
        state = self._query("sinfo", "-h", "-N", "-p", PARTITION, "-o", "%t").strip()
        return state in {"idle", "mix", "alloc"}

    def _query(self, *argv: str) -> str:
        return subprocess.run(
            self._space.enter(argv), env=CLEAN_ENV | self._env, cwd="/", capture_output=True, text=True
        ).stdout


def allow_fuse_for_users(device: Path = Path("/dev/fuse")) -> None:
    """Let ordinary users mount a .sqsh with squashfuse, as Enroot does.

    udev gives the device mode 0666; a machine without udev has it as the kernel makes it, 0600.
    """
    if device.exists() and device.stat().st_mode & 0o006 != 0o006:
        device.chmod(0o666)
