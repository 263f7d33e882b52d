# SPDX-License-Identifier: Apache-2.0
"""A registry over TLS behind the proxy of the job's environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import certificates
from tests.cluster.connect_proxy import ConnectProxy
from tests.shell.fake_slurm.login import LocalCluster
from tests.shell.fake_slurm.registry import Registry, imported, refused, run

from .test_login import PASSWORD, basic, left_in, netrc

HOST = "localhost:1"  # nothing listens there: what arrives came through the proxy


@pytest.fixture
def secure(tmp_path: Path, cluster: LocalCluster) -> Iterator[Registry]:
    """A registry over TLS with a login, whose private CA the profile names."""
    ca = certificates.authority("private CA of the test")
    certificate = certificates.server("registry", ca).write(tmp_path, "registry")
    cluster.profile["environment"] = {"CURL_CA_BUNDLE": str(ca.write(tmp_path, "ca")[0])}
    with Registry(certificate) as server:
        server.challenge, server.accepted = 'Basic realm="x"', basic()
        yield server


def use(cluster: LocalCluster, **environment: str) -> None:
    cluster.profile["environment"] |= environment
    cluster.hook = cluster.new_hook()


def test_the_proxy_carries_tls_and_sees_no_login(cluster: LocalCluster, secure: Registry) -> None:
    with ConnectProxy(secure.port) as proxy:
        use(cluster, https_proxy=f"http://{proxy.address}", no_proxy="127.0.0.1")
        digest = secure.image()
        secure.address = HOST
        done = run(cluster, secure, digest, netrc("localhost"))
        assert done.status == 0 and imported(cluster) == [digest], done.output
    assert set(proxy.targets) == {HOST}
    assert {headers.get("Authorization") for _, headers in proxy.asked} == {None}
    assert set(secure.authorizations) == {basic()}
    assert PASSWORD not in done.output and left_in(cluster.workspace) == []


def test_no_proxy_leaves_a_registry_to_itself(cluster: LocalCluster, secure: Registry) -> None:
    with ConnectProxy(secure.port) as proxy:
        use(cluster, https_proxy=f"http://{proxy.address}", no_proxy="127.0.0.1")
        done = run(cluster, secure, secure.image(), netrc("127.0.0.1"))
        assert done.status == 0, done.output
    assert proxy.asked == []


def test_a_proxy_that_refuses_is_said_so(cluster: LocalCluster, secure: Registry, waits: object) -> None:
    with ConnectProxy(secure.port, 407) as proxy:
        use(cluster, https_proxy=f"http://{proxy.address}")
        done = run(cluster, secure, secure.image(), netrc("127.0.0.1"))
        assert "407" in refused(cluster, done, "registry_unavailable")
    assert secure.requests == []
