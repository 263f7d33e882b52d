# SPDX-License-Identifier: Apache-2.0
"""A misbehaving registry, a second host, and a client of the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_slurm_images.hooks._oci_client import OciClient
from tests.cluster import certificates
from tests.cluster.misbehaving_registry import (
    MisbehavingRegistry,
)

from .helpers import SECRET, make_client


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    bundles = ("ssl_cert_file", "ssl_cert_dir", "requests_ca_bundle", "curl_ca_bundle")
    for name in proxies + bundles:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def registry() -> Iterator[MisbehavingRegistry]:
    with MisbehavingRegistry() as server:
        yield server


@pytest.fixture
def elsewhere() -> Iterator[MisbehavingRegistry]:
    """Another host: same machine, another name and port."""
    with MisbehavingRegistry() as server:
        yield server


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MisbehavingRegistry]:
    """A registry over TLS whose private CA the environment trusts."""
    ca = certificates.authority("private CA of the test")
    monkeypatch.setenv("SSL_CERT_FILE", str(ca.write(tmp_path, "ca")[0]))
    with MisbehavingRegistry(certificates.server("registry", ca).write(tmp_path, "registry")) as server:
        yield server


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def client(registry: MisbehavingRegistry, waits: list[float]) -> Iterator[OciClient]:
    client = make_client(registry.address, waits, login="bob", password=SECRET)
    yield client
    client.close()
