# SPDX-License-Identifier: Apache-2.0
"""Answers to a registry's login challenge: none, basic, or a bearer token of the token service it names.

The flow is the distribution project's "Token Authentication Specification": the password goes to the token
service and nowhere else, the token to the registry. The registry names the service, on whatever host
(``auth.docker.io`` for Docker Hub), so the rule here is TLS: a realm over plain HTTP gets nothing unless the
connection is insecure. NVIDIA's token service hands on to another host that wants the same login: of redirects only
those to the hosts of :meth:`Login._login_hosts` get it, as in ``cluster/login.sh``.

Airflow is not told the tokens: its masker forgets nothing and makes one expression of all it knows, so a token an
hour would in the end stop a triggerer. No message, log line or repr holds one instead.
"""

from __future__ import annotations

import json
import re

import httpx

from airflow_slurm_images.core.challenge import Challenge, parse_challenges, pull_scope, select
from airflow_slurm_images.core.credentials import TOKEN_HOSTS
from airflow_slurm_images.core.endpoint import RegistryEndpoint
from airflow_slurm_images.core.errors import RegistryAuthError, RegistryResponseError
from airflow_slurm_images.hooks._oci_failures import error_for, refused_login
from airflow_slurm_images.hooks._oci_http import Answer, Transport

_MAX_ANSWER = 256 * 1024  # bytes; tokens of large registries reach some 10 KiB
_SENDABLE = re.compile(r"[\x21-\x7e]+")  # what a header can carry; anything else is no token


class Login:
    """The account of one registry, ready to answer what the registry asks."""

    def __init__(self, endpoint: RegistryEndpoint, transport: Transport) -> None:
        self._endpoint = endpoint
        self._transport = transport

    def authorization(self, refusal: Answer, repository: str | None) -> str:
        """The ``Authorization`` header that answers a 401.

        Raises RegistryAuthError where the account is missing or refused, or the kind of login is unknown.
        """
        challenges = parse_challenges(refusal.headers.get_list("WWW-Authenticate"))
        challenge = select(challenges)
        if challenge is None:
            offered = ", ".join(sorted({offer.scheme for offer in challenges})) or "none at all"
            raise RegistryAuthError(
                f"the registry asks for a login of a kind that is not supported: {offered[:100]!a}",
                remedy="supported are basic and bearer logins; a proxy in between may be what asks",
            )
        if challenge.scheme == "bearer":
            return f"Bearer {self._token(challenge, repository)}"
        basic = self._basic()
        if basic is None:
            raise refused_login(self._endpoint, refusal, "the registry wants a login, none was given")
        return basic

    def realm_host(self, refusal: Answer) -> str | None:
        """Host (no port) of the token service a 401 names; ``None`` for other logins."""
        challenge = select(parse_challenges(refusal.headers.get_list("WWW-Authenticate")))
        return self._realm(challenge).host if challenge and challenge.scheme == "bearer" else None

    def _basic(self) -> str | None:
        return f"Basic {self._endpoint.basic}" if self._endpoint.basic else None

    def _token(self, challenge: Challenge, repository: str | None) -> str:
        realm = self._realm(challenge)
        scope = pull_scope(challenge.params.get("scope"), repository)
        query = [("service", challenge.params.get("service")), ("account", self._endpoint.login)]
        query += [("scope", word) for word in (scope or "").split()]
        params = httpx.QueryParams([*realm.params.multi_items(), *((k, v) for k, v in query if v)])
        basic = self._basic()
        headers = {"Accept": "application/json"} | ({"Authorization": basic} if basic else {})
        url, hosts = realm.copy_with(params=params), self._login_hosts(realm)
        answer = self._transport.send("GET", url, headers, _MAX_ANSWER, login_hosts=hosts)
        if answer.status in (400, 401, 403):
            raise refused_login(self._endpoint, answer, f"the token service {realm.host} refused the login")
        if answer.status != 200:
            raise error_for(self._endpoint, answer, f"the token service {realm.host}")
        token = _token_in(answer.content)
        if token is None:
            raise RegistryResponseError(f"the token service {realm.host} gave no token that can be used")
        return token

    def _login_hosts(self, realm: httpx.URL) -> set[str]:
        """Hosts (no ports) that a login's netrc file has lines for."""
        host = self._endpoint.host.partition(":")[0]
        return {host, realm.host, TOKEN_HOSTS.get(host, host)}

    def _realm(self, challenge: Challenge) -> httpx.URL:
        realm = challenge.params["realm"]
        problem = f"the registry's token service is no URL: {realm[:100]!a}"
        try:
            url = httpx.URL(realm)
        except httpx.InvalidURL as err:
            raise RegistryResponseError(problem) from err
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise RegistryResponseError(problem)
        if url.scheme == "http" and not self._endpoint.insecure:
            raise RegistryResponseError(
                f"the registry names the token service {url.host} over plain HTTP; no login is sent there",
                remedy="the registry is set up wrongly; its realm has to begin with https://",
            )
        return url


def _token_in(content: bytes) -> str | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    token = document.get("token") or document.get("access_token")
    return token if isinstance(token, str) and _SENDABLE.fullmatch(token) else None
