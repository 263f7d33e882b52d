"""The Airflow connection that leads into a box."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .box import Box


def extra(box: Box) -> dict[str, Any]:
    """SSH settings and the cluster's profile, under the names the provider documents."""
    login = {
        "key_file": str(box.ssh_key_path),
        "host_key": box.known_host_key,
        "no_host_key_check": False,
    }
    profile = {
        "workspace_root": str(box.workspace),
        "slurm_conf": str(box.slurm_conf),
        "slurm_bin": str(box.slurm_bin),
        "partition": box.partition,
        # The defaults of the profile are made for clusters, not for two cores.
        "cpus_per_task": 1,
        "memory": "1G",
        "time_limit": "00:10:00",
        "insecure_registries": [box.registry],
    }
    if box.account:
        profile["account"] = box.account
    if box.enroot_dir:
        profile |= {"enroot_bin": str(box.enroot_dir), "path_prepend": [str(box.enroot_dir)]}
    return login | profile


def fields(box: Box) -> dict[str, Any]:
    return {
        "conn_type": "slurm_ssh",
        "host": box.ssh_host,
        "login": box.user,
        "port": box.ssh_port,
        "extra": extra(box),
    }


def as_json(box: Box) -> str:
    return json.dumps(fields(box))
