# SPDX-License-Identifier: Apache-2.0
"""The real registry in four set-ups, with images, and connections to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_slurm_images.triggers import registry as trigger_module
from airflow_slurm_images.triggers.registry import OciTagTrigger
from tests.cluster import multiplatform
from tests.cluster.registries import Registries, Server

from .watching import INTERVAL, Registry, Store

PLATFORMS = ["linux/amd64", "linux/arm64/v8", "linux/arm/v6", "linux/arm/v7"]


@pytest.fixture(scope="session")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registries]:
    """Everything pushed once: an OCI and a Docker index, the same in public/, and a single image."""
    files = tmp_path_factory.mktemp("images")
    with Registries(tmp_path_factory.mktemp("registries")) as registries:
        index = multiplatform.write_index(files / "index", PLATFORMS)
        multiplatform.write_image(files / "single", "arm64")
        address = registries.open.address
        multiplatform.push(address, index, "team/app", "oci")
        multiplatform.push(address, index, "team/app", "docker", "--format=v2s2")
        multiplatform.push(address, index, "public/app", "oci")
        multiplatform.push(address, files / "single" / "layout", "team/app", "single")
        yield registries


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, registries: Registries) -> Any:
    """Make the connection `images`; gives its id."""

    def make(server: Server | str, login: bool = False, conn_type: str = "oci_registry", **fields: Any) -> str:
        host = server if isinstance(server, str) else server.address
        account = {"login": registries.login, "password": registries.password} if login else {}
        extra = {} if server is registries.tls else {"insecure": True}
        document = {"conn_type": conn_type, "host": host, "extra": extra, **account, **fields}
        monkeypatch.setenv("AIRFLOW_CONN_IMAGES", json.dumps(document))
        return "images"

    return make


@pytest.fixture
def server() -> Iterator[Registry]:
    with Registry() as running:
        yield running


@pytest.fixture
def trigger(server: Registry, connect: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., OciTagTrigger]:
    """Make a trigger for the tag; another one with the same store is the one of a restarted triggerer."""
    monkeypatch.setattr(trigger_module, "HANDED_OVER", 0.01)
    conn_id = connect(server.address)

    def make(store: Store | None = None, **arguments: Any) -> OciTagTrigger:
        arguments = {"image": server.image, "registry_conn_id": conn_id, "poll_interval": INTERVAL, **arguments}
        path, serialized = OciTagTrigger(**arguments).serialize()
        assert path == "airflow_slurm_images.triggers.registry.OciTagTrigger"
        made = OciTagTrigger(**json.loads(json.dumps(serialized)))
        made.asset_state_store = store  # type: ignore[assignment]
        return made

    return make
