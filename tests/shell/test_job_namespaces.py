# SPDX-License-Identifier: Apache-2.0
"""Nodes without user namespaces are told from those whose tools are old, by what the job sees itself."""

from __future__ import annotations

import pytest

from airflow_slurm_images.core import failures
from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import LocalCluster, Outcome, inspect_request

KERNEL = ("unshare: unshare failed: No space left on device", "unshare: unshare failed: Operation not permitted")
ENROOT = "enroot-nsenter: failed to create user namespace: Permission denied"


def explained(done: Outcome) -> failures.Failure:
    logs = {name: (done.directory / name).read_text() for name in ("slurm.out",)}
    return failures.explain(done.status, done.record.phase, logs)


@pytest.mark.parametrize("said", KERNEL)
def test_a_node_without_user_namespaces_is_named_with_both_settings(cluster: LocalCluster, said: str) -> None:
    cluster.slurm.tool("unshare", f"echo '{said}' >&2; exit 1")
    (cluster.slurm.enroot / "help").write_text(" -c, --conf CONFIG\n")
    done = cluster.run(inspect_request(image("plain"), "client"))
    failure = explained(done)
    assert failure.reason == "no_user_namespaces", done.output
    assert not failure.retryable
    assert f"user namespaces are unavailable on node n1 ({said})" in done.output
    for words in ("user.max_user_namespaces", "kernel.unprivileged_userns_clone", "exclude"):
        assert words in failure.remedy
    assert cluster.slurm.enroot_calls("start") == []
    assert cluster.run(inspect_request(image("plain"))).status == 0  # a generic image is not started


def test_what_enroot_itself_cannot_make_is_tried_again_by_the_job(cluster: LocalCluster) -> None:
    nested = 'while [[ "$1" == --* ]]; do shift; done\n'
    refuse = (
        '[[ "$*" != *--map-root-user* ]] || { echo "unshare: unshare failed: No space left on device" >&2; exit 1; }'
    )
    cluster.slurm.tool("unshare", f'{refuse}\n{nested}exec "$@"')
    cluster.slurm.enroot_does("start", f'echo "{ENROOT}" >&2\nexit 1')
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert explained(done).reason == "no_user_namespaces", done.output
    assert len(cluster.slurm.enroot_calls("start")) == 1
    assert cluster.slurm.enroot_calls("create") == []


@pytest.mark.parametrize("line", [ENROOT, *KERNEL])
def test_an_image_that_speaks_of_user_namespaces_is_not_believed(cluster: LocalCluster, line: str) -> None:
    cluster.slurm.tool("sleep", "exit 0")
    cluster.slurm.enroot_does("start", f'echo "{line}" >&2\nexit 1')
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert explained(done).reason == "start_failed", done.output
