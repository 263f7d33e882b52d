# SPDX-License-Identifier: Apache-2.0
"""What a registry answers on bad days, and how often the job asks again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_slurm_images.core import failures
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import REPOSITORY, BadReply, errors
from tests.shell.fake_slurm.login import LocalCluster
from tests.shell.fake_slurm.registry import Registry, refused, run


@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, "registry_auth"), (404, "registry_not_found"), (410, "import_failed"), (501, "registry_unavailable")],
)
def test_a_refusal_is_told_apart_and_not_repeated(
    cluster: LocalCluster, registry: Registry, status: int, reason: str
) -> None:
    digest = registry.image()
    registry.script(f"/v2/{REPOSITORY}/manifests/{digest}", errors(status, "NO"))
    output = refused(cluster, run(cluster, registry, digest), reason)
    assert f"registry {registry.address}, repository {REPOSITORY}, account (none)" in output
    assert len(registry.requests) == 1


@pytest.mark.parametrize(
    ("bad", "wait"),
    [(Reply(500), "2"), (Reply(429, headers=[("Retry-After", "7")]), "7"), (BadReply(fault="closed"), "2")],
)
def test_what_passes_by_itself_is_asked_again(
    cluster: LocalCluster, registry: Registry, waits: Callable[[], list[str]], bad: Reply, wait: str
) -> None:
    digest = registry.image()
    path = f"/v2/{REPOSITORY}/manifests/{digest}"
    registry.script(path, bad, registry.now(path))
    done = run(cluster, registry, digest)
    assert done.status == 0, done.output
    assert [request.path for request in registry.requests].count(path) == 2
    assert waits() == [wait]


@pytest.mark.parametrize(
    ("bad", "reason", "meant"),
    [
        (Reply(503), "registry_unavailable", ["2", "4"]),
        (Reply(429, headers=[("Retry-After", "3600")]), "rate_limited", []),
        (BadReply(200, b"{", fault="truncated"), "registry_unavailable", ["2", "4"]),
    ],
)
def test_what_does_not_pass_may_be_retried_later(
    cluster: LocalCluster,
    registry: Registry,
    waits: Callable[[], list[str]],
    bad: Reply,
    reason: str,
    meant: list[str],
) -> None:
    digest = registry.image()
    registry.script(f"/v2/{REPOSITORY}/manifests/{digest}", bad)
    done = run(cluster, registry, digest)
    refused(cluster, done, reason)
    explained = failures.explain(done.status, done.record.phase, {"slurm.out": done.output})
    assert explained.error.retryable and waits() == meant


def test_a_registry_that_is_down_is_named(
    cluster: LocalCluster, registry: Registry, waits: Callable[[], list[str]]
) -> None:
    with Registry() as down:
        assert isinstance(down, Registry)
        digest = down.image()
    done = run(cluster, down, digest, insecure=True)
    assert down.address in refused(cluster, done, "registry_unavailable") and waits()
