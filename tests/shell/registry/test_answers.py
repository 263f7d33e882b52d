# SPDX-License-Identifier: Apache-2.0
"""What a registry answers on bad days, and how often the job asks again."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import formatdate
from pathlib import Path

import pytest

from airflow_slurm_images.core import failures
from airflow_slurm_images.core.challenge import retry_after
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import REPOSITORY, BadReply, errors
from tests.shell.fake_slurm.login import LocalCluster
from tests.shell.fake_slurm.registry import Registry, refused, run

from .functions import call


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


@pytest.mark.parametrize("value", ["7", "007", "999999999", "1764000000", "soon", "yesterday, GMT", "", None])
def test_the_time_to_come_back_is_read_as_the_worker_reads_it(tmp_path: Path, value: str | None) -> None:
    headers = [] if value is None else [f"retry-AFTER: {value}"]
    asked = call("asi::retry_after", headers=headers, directory=tmp_path)
    assert (float(asked) if asked else None) == retry_after(value, datetime.now(timezone.utc))


@pytest.mark.parametrize("seconds", [-50, 50, 10**9])
def test_the_time_to_come_back_may_be_a_date(tmp_path: Path, seconds: int) -> None:
    date = formatdate(time.time() + seconds, usegmt=True)
    asked = int(call("asi::retry_after", headers=[f"Retry-After: {date}"], directory=tmp_path))
    assert max(0, seconds - 30) <= asked <= max(0, seconds)


@pytest.mark.parametrize(
    ("bad", "reason", "meant"),
    [
        (Reply(503), "registry_unavailable", ["2", "4"]),
        (Reply(429, headers=[("Retry-After", "3600")]), "rate_limited", []),
        (Reply(429, headers=[("Retry-After", "Fri, 31 Dec 2100 23:59:59 GMT")]), "rate_limited", []),
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
