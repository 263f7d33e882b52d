# SPDX-License-Identifier: Apache-2.0
"""The login challenges of the registries people use, as sent by them, and when to come back."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm_images.core.challenge import parse_challenges, pull_scope, retry_after, select

BIG_REGISTRIES = {
    "Docker Hub": (
        'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",'
        'scope="repository:library/ubuntu:pull"',
        ("https://auth.docker.io/token", "registry.docker.io", "repository:library/ubuntu:pull"),
    ),
    "GitHub": (
        'Bearer realm="https://ghcr.io/token",service="ghcr.io",scope="repository:team/app:pull"',
        ("https://ghcr.io/token", "ghcr.io", "repository:team/app:pull"),
    ),
    "Quay": (
        'Bearer realm="https://quay.io/v2/auth",service="quay.io"',
        ("https://quay.io/v2/auth", "quay.io", "repository:team/app:pull"),
    ),
    "NGC, without service and with more than reading": (
        'Bearer realm="https://nvcr.io/proxy_auth",scope="repository:nvidia/pytorch:pull,push"',
        ("https://nvcr.io/proxy_auth", None, "repository:nvidia/pytorch:pull"),
    ),
    "GitLab": (
        'Bearer realm="https://gitlab.example/jwt/auth",service="container_registry",'
        'scope="repository:team/app:pull",error="invalid_token"',
        ("https://gitlab.example/jwt/auth", "container_registry", "repository:team/app:pull"),
    ),
    "Azure": (
        'Bearer realm="https://team.azurecr.example/oauth2/token",service="team.azurecr.example",'
        'scope="repository:team/app:pull"',
        ("https://team.azurecr.example/oauth2/token", "team.azurecr.example", "repository:team/app:pull"),
    ),
    "Artifact Registry": (
        'Bearer realm="https://europe-docker.pkg.example/v2/token",service="europe-docker.pkg.example"',
        (
            "https://europe-docker.pkg.example/v2/token",
            "europe-docker.pkg.example",
            "repository:team/app:pull",
        ),
    ),
    "public ECR, with a scope of its own": (
        'Bearer realm="https://public.ecr.example/token/",service="public.ecr.example",scope="aws"',
        ("https://public.ecr.example/token/", "public.ecr.example", "aws"),
    ),
    "Harbor, with spaces": (
        'Bearer realm="https://harbor.example/service/token", service="harbor-registry", '
        'scope="repository:team/app:pull"',
        ("https://harbor.example/service/token", "harbor-registry", "repository:team/app:pull"),
    ),
    "Oracle, with an empty scope": (
        'Bearer realm="https://iad.ocir.example/20180419/docker/token",service="iad.ocir.example",scope=""',
        ("https://iad.ocir.example/20180419/docker/token", "iad.ocir.example", "repository:team/app:pull"),
    ),
    "Artifactory, with a query in the realm": (
        'Bearer realm="https://art.example/api/docker/r/v2/token?a=b&c=d",service="art.example"',
        ("https://art.example/api/docker/r/v2/token?a=b&c=d", "art.example", "repository:team/app:pull"),
    ),
    "unquoted": (
        "Bearer realm=https://reg.example/token?x=y,service=reg.example",
        ("https://reg.example/token?x=y", "reg.example", "repository:team/app:pull"),
    ),
}


@pytest.mark.parametrize(("header", "expected"), BIG_REGISTRIES.values(), ids=BIG_REGISTRIES.keys())
def test_bearer_challenges_of_the_big_registries(header: str, expected: tuple[str, str | None, str]) -> None:
    challenge = select(parse_challenges([header]))
    assert challenge is not None and challenge.scheme == "bearer"
    scope = pull_scope(challenge.params.get("scope"), "team/app")
    assert (challenge.params["realm"], challenge.params.get("service"), scope) == expected


@pytest.mark.parametrize(
    "header",
    [
        'Basic realm="https://1234.dkr.ecr.eu-west-1.aws.example/",service="ecr.aws.example"',  # private ECR
        'BASIC realm="Sonatype Nexus Repository Manager"',
        'basic realm="Registry", charset="UTF-8"',
        "Basic",
    ],
)
def test_basic_challenges_in_every_spelling(header: str) -> None:
    challenge = select(parse_challenges([header]))
    assert challenge is not None and challenge.scheme == "basic"


@pytest.mark.parametrize(
    "headers",
    [
        ['Basic realm="x"', 'Bearer realm="https://t.example/",service="s"'],
        ['Basic realm="x", Bearer realm="https://t.example/",service="s"'],
        ['Negotiate, Basic realm="x",Bearer realm="https://t.example/",service="s"'],
        ['Negotiate YIIJvwYGKwYBBQUCoA==, Bearer realm="https://t.example/",service="s"'],
    ],
)
def test_among_several_challenges_bearer_is_answered(headers: list[str]) -> None:
    challenge = select(parse_challenges(headers))
    assert challenge is not None
    assert (challenge.scheme, challenge.params["service"]) == ("bearer", "s")


def test_commas_quotes_and_escapes_inside_values_do_not_split() -> None:
    (challenge,) = parse_challenges([r'Bearer realm="https://t.example/a,b",scope="x \"y\", z",error="e"'])
    assert challenge.params == {"realm": "https://t.example/a,b", "scope": 'x "y", z', "error": "e"}


@pytest.mark.parametrize("header", ["", "Negotiate", "NTLM", 'Bearer service="s"', 'Digest realm="x"', ",,,"])
def test_what_cannot_be_answered_is_not_selected(header: str) -> None:
    assert select(parse_challenges([header])) is None


@given(st.text(max_size=300))
def test_no_header_breaks_the_parser(header: str) -> None:
    parse_challenges([header])


def test_a_huge_header_is_cut() -> None:
    assert parse_challenges(['Basic realm="x"' + 1_000_000 * " x"])[0].scheme == "basic"


@pytest.mark.parametrize(
    ("offered", "repository", "expected"),
    [
        (None, "team/app", "repository:team/app:pull"),
        ("", None, None),
        ("repository:other/name:pull,push,delete", "team/app", "repository:other/name:pull"),
        ("repository(plugin):team/app:push", "team/app", "repository(plugin):team/app:pull"),
        ("repository:host:5000/app:pull", "team/app", "repository:host:5000/app:pull"),
        ("registry:catalog:*", None, "registry:catalog:*"),
        ("repository:a/b:pull repository:c/d:pull,push", "a/b", "repository:a/b:pull repository:c/d:pull"),
    ],
)
def test_scopes_ask_for_reading_only(offered: str | None, repository: str | None, expected: str | None) -> None:
    assert pull_scope(offered, repository) == expected


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("30", 30.0), (" 0 ", 0.0), ("1.5", 1.5), ("Fri, 02 Jan 2026 03:04:15 GMT", 10.0),
        ("Fri, 02 Jan 2026 03:04:15", 10.0), ("Fri, 02 Jan 2026 03:00:00 GMT", 0.0),
        (None, None), ("", None), ("soon", None), ("-5", None), ("9999999999999", None), ("\x00", None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value: str | None, expected: float | None) -> None:
    assert retry_after(value, NOW) == expected


@given(st.text(max_size=60))
def test_no_retry_after_breaks_the_parser(value: str) -> None:
    seconds = retry_after(value, NOW)
    assert seconds is None or seconds >= 0
