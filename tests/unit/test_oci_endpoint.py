# SPDX-License-Identifier: Apache-2.0
"""Connections as people have them, read into one registry host and account."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_slurm_images.core.endpoint import RegistryEndpoint
from airflow_slurm_images.core.errors import InvalidRequestError

SECRET = "s3cret-of-the-test"


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "registry.example:5000"}, "https://registry.example:5000"),
        ({"host": "Registry.Example"}, "https://registry.example"),
        ({"host": "registry.example", "port": 5000}, "https://registry.example:5000"),
        ({"host": "https://registry.example/v2/"}, "https://registry.example"),
        ({"host": "https://registry.example:5000/v2/?x=y"}, "https://registry.example:5000"),
        ({"host": "https://index.docker.io/v1/"}, "https://registry-1.docker.io"),
        ({"host": "docker.io"}, "https://registry-1.docker.io"),
        ({"host": "index.docker.io"}, "https://registry-1.docker.io"),
        ({"host": "localhost:5000", "extra": {"insecure": True}}, "http://localhost:5000"),
        ({"host": "http://localhost:5000", "extra": {"insecure": "true"}}, "http://localhost:5000"),
        ({"host": "registry"}, "https://registry:443"),
        ({"host": "registry", "extra": {"insecure": "yes"}}, "http://registry:80"),
        (
            {"host": "registry.example", "extra": {"insecure": "False", "reauth": True}},
            "https://registry.example",
        ),
    ],
)
def test_host_forms(fields: dict[str, Any], url: str) -> None:
    assert RegistryEndpoint.of(**fields).url == url


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"host": ""}, "no host"),
        ({"host": None}, "no host"),
        ({"host": "http://registry.example"}, "plain HTTP is not allowed"),
        ({"host": "https://registry.example", "extra": {"insecure": True}}, "insecure"),
        ({"host": "ftp://registry.example"}, "another scheme"),
        ({"host": f"bob:{SECRET}@registry.example"}, "user or password"),
        ({"host": "[::1]:5000"}, "IPv6"),
        ({"host": "a b.example"}, "white space"),
        ({"host": "registry.example:port"}, "is not a number"),
        ({"host": "docker.io:443"}, "without a port"),
        ({"host": "registry.example", "login": "bob"}, "no password"),
        ({"host": "registry.example", "password": SECRET}, "no login"),
        ({"host": "registry.example", "login": "bob:x", "password": SECRET}, "holds ':'"),
        ({"host": "registry.example", "extra": {"insecure": "maybe"}}, "must be true or false"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_the_secret(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        RegistryEndpoint.of(**fields)
    assert reason in caught.value.message
    assert SECRET not in str(caught.value) + repr(caught.value.details)


def test_the_password_is_in_no_representation() -> None:
    endpoint = RegistryEndpoint.of(host="registry.example", login="bob", password=SECRET)
    assert SECRET not in repr(endpoint) + endpoint.account
    assert endpoint.account == "account bob"


def test_a_login_serves_its_own_host_only() -> None:
    endpoint = RegistryEndpoint(host="registry.example")
    assert endpoint.serves("registry.example") and endpoint.serves("registry.example:443")
    assert not endpoint.serves("registry.example:5000")
    assert not endpoint.serves("evil.registry.example")
    assert RegistryEndpoint(host="localhost:80", insecure=True).serves("localhost")
