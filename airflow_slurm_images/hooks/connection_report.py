# SPDX-License-Identifier: Apache-2.0
"""The report behind "test connection": one line a check, each failed one with its remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_slurm_images.core.errors import ConflictError, IntegrityError, InvalidRequestError
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.remote import RemoteResult

if TYPE_CHECKING:
    from airflow_slurm_images.hooks.slurm import SlurmHook

_BUSY = re.compile(
    r"nodes are busy|unable to allocate resources: connection timed out|temporarily unavailable|"
    r"job \S+ has been revoked|allocation revoked|job submit limit|MaxSubmit",
    re.IGNORECASE,
)
"""What ``srun --immediate`` says when nothing is wrong but the moment."""
_TIMED_OUT = ("124", "137")

_WHERE = ("partition", "account", "qos", "reservation", "constraint", "exclude")
"""What decides on which node a job of the profile runs, and so the quick one."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def report(hook: SlurmHook) -> tuple[bool, str]:
    """Run the checks; one that fails hides no other. Errors of profile and connection are raised."""
    profile = hook.profile
    workspace = _workspace(hook)
    node_path = [*profile.path_prepend, *([profile.enroot_bin] if profile.enroot_bin else []), _SYSTEM_PATH]
    result = hook.run(
        "probe",
        {
            **{f"ASI_{name.upper()}": getattr(profile, name) or "" for name in _WHERE},
            "ASI_NODE_PATH": ":".join(node_path),
        },
    )
    checks = [
        (True, f"login: {result.text('login')} on {result.text('host')}"),
        workspace,
        _slurm(result),
        _partition(result, profile),
        _enroot(result),
    ]
    return all(good for good, _ in checks), "\n".join(f"{'ok' if good else 'FAILED'} - {text}" for good, text in checks)


def _workspace(hook: SlurmHook) -> tuple[bool, str]:
    try:
        state = hook.prepare("")
    except (InvalidRequestError, IntegrityError, ConflictError) as err:
        return False, f"workspace: {err.message}. {err.remedy or 'Look at it on the login node.'}"
    if state.closed:
        return False, f"workspace: {'; '.join(state.closed)}"
    return True, f"workspace: {state.workspace} is usable"


def _slurm(result: RemoteResult) -> tuple[bool, str]:
    version = result.text("slurm").strip()
    if version:
        return True, f"Slurm: {version}"
    return False, "Slurm: sbatch was not found. Name its directory in slurm_bin."


def _partition(result: RemoteResult, profile: ClusterProfile) -> tuple[bool, str]:
    if result.text("sinfo.rc") != "0":
        return (
            False,
            f"partition: sinfo failed ({result.text('sinfo.err').strip()}). Check slurm_conf and the controller.",
        )
    rows = [line.split() for line in result.text("sinfo.out").splitlines() if len(line.split()) == 4]
    names = sorted({row[0] for row in rows})
    wanted = profile.partition
    if wanted is None:
        return True, f"partition: the cluster's default (there are: {', '.join(names)})"
    if wanted not in names:
        return False, f"partition: '{wanted}' does not exist. Use one of: {', '.join(names)}."
    if not any(row[0] == wanted and row[1] == "up" for row in rows):
        return False, f"partition: '{wanted}' is not up. Choose another one or ask the cluster's operators."
    return True, f"partition: {wanted} is up"


def _enroot(result: RemoteResult) -> tuple[bool, str]:
    output, errors = result.text("enroot.out").strip(), result.text("enroot.err").strip()
    if result.text("enroot.rc") == "0" and output:
        return True, f"Enroot on a compute node: {output}"
    if "No such file or directory" in errors or "not found" in errors:
        return (
            False,
            "Enroot: not found on the compute node. Install it there or name its directory in enroot_bin.",
        )
    if _BUSY.search(errors) or result.text("enroot.rc") in _TIMED_OUT:
        return True, f"Enroot: not checked, no node was free for a quick job ({errors or 'no answer'})"
    return (
        False,
        f"Enroot: a quick job could not run ({errors or 'no message'}). Correct account, partition or qos "
        "(reservation, constraint, exclude) in the profile, or ask the cluster's operators for the right to use them.",
    )
