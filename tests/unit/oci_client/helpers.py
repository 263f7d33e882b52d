# SPDX-License-Identifier: Apache-2.0
"""A client that does not really wait, and the replies the tests script."""

from __future__ import annotations

import base64

from airflow_slurm_images.core.endpoint import RegistryEndpoint
from airflow_slurm_images.hooks._oci_client import OciClient
from airflow_slurm_images.hooks._oci_http import Limits, Transport
from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import (
    REPOSITORY,
    errors,
)

SECRET = "s3cret-of-the-test"
BASIC = "Basic " + base64.b64encode(f"bob:{SECRET}".encode()).decode()


def make_client(
    host: str,
    waits: list[float],
    *,
    login: str | None = None,
    password: str | None = None,
    silence: float = 5,
    total: float = 20,
    attempts: int = 4,
    insecure: bool = True,
) -> OciClient:
    """A client whose waits between attempts are only written down."""
    endpoint = RegistryEndpoint(host=host, login=login, password=password, insecure=insecure)
    bounds = Limits(silence=silence, total=total, attempts=attempts)
    return OciClient(endpoint, transport=Transport(bounds, sleep=waits.append))


def fetch(client: OciClient) -> bytes:
    return client.manifest(REPOSITORY, "1.0").content


def wants_basic() -> Reply:
    reply = errors(401, "UNAUTHORIZED")
    reply.headers.append(("WWW-Authenticate", 'Basic realm="x"'))
    return reply


def bearer(realm: str, service: str = "s") -> Reply:
    reply = errors(401, "UNAUTHORIZED")
    reply.headers.append(("WWW-Authenticate", f'Bearer realm="{realm}",service="{service}"'))
    return reply


def to(location: str, status: int = 307) -> Reply:
    return Reply(status, b"", [("Location", location)])
