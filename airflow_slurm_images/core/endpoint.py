# SPDX-License-Identifier: Apache-2.0
"""Which registry a connection means, and who asks it.

Takes the host forms people have in their connections, those of Airflow's ``docker`` connections included:
``registry.example:5000``, ``https://registry.example/v2/``, ``https://index.docker.io/v1/``. A login belongs
to one host and is never sent to another; plain HTTP needs the word ``insecure`` in the connection, a scheme
alone is not it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_slurm_images.core.author_input import flag
from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.reference import DOCKER_HUB, TagReference

_ANY = "any/repository:tag"  # lets the reference grammar judge a host and map Docker Hub's names
_LOGINS = "ECR takes the login AWS, Artifact Registry oauth2accesstoken, NGC $oauthtoken"


@dataclass(frozen=True, kw_only=True)
class RegistryEndpoint:
    """One registry host with the account that asks it."""

    host: str
    """``host[:port]`` of the API, Docker Hub always as ``registry-1.docker.io``."""
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    insecure: bool = False
    """Plain HTTP instead of HTTPS."""

    @classmethod
    def of(
        cls,
        *,
        host: str | None,
        port: int | None = None,
        login: str | None = None,
        password: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> RegistryEndpoint:
        """Read an Airflow connection's fields. Raises InvalidRequestError; no message holds the password."""
        insecure = flag("the connection's extra insecure", (extra or {}).get("insecure"))
        name, scheme = _host(host or "", port, insecure)
        if scheme == "http" and not insecure:
            raise InvalidRequestError(
                f"the connection's host {name} is written with http://, but plain HTTP is not allowed for it",
                remedy='write https:// or no scheme, or set {"insecure": true} in the connection\'s extra',
            )
        if scheme == "https" and insecure:
            raise InvalidRequestError(
                f"the connection's host {name} says https://, its extra says insecure (plain HTTP)",
                remedy="keep one of the two",
            )
        _check_login(name, login or None, password or None)
        return cls(host=name, login=login or None, password=password or None, insecure=insecure)

    @property
    def url(self) -> str:
        """Base URL without a slash at the end."""
        return f"{'http' if self.insecure else 'https'}://{self.host}"

    @property
    def is_docker_hub(self) -> bool:
        """Whether this is Docker Hub (always under its API host)."""
        return self.host == DOCKER_HUB

    @property
    def account(self) -> str:
        """Who asks, for messages."""
        return f"account {self.login}" if self.login else "no login"

    @property
    def basic(self) -> str | None:
        """Login and password as a basic login sends them; as secret as the password."""
        if self.login is None:
            return None
        return base64.b64encode(f"{self.login}:{self.password}".encode()).decode("ascii")

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no log may show."""
        return tuple(secret for secret in (self.password, self.basic) if secret)

    def serves(self, registry: str) -> bool:
        """Whether a reference's registry is this host; the scheme's default port may be written or not."""
        default = ":80" if self.insecure else ":443"
        return self.host.removesuffix(default) == registry.removesuffix(default)


def _host(text: str, port: int | None, insecure: bool) -> tuple[str, str]:
    """``host[:port]`` and the scheme (``""`` for none). What follows the host (``/v1/``) does not count."""
    written = text.strip()
    if not written:
        raise InvalidRequestError(
            "the registry connection has no host, so its login could go anywhere",
            remedy="set the host to the registry, for example registry.example:5000 or registry-1.docker.io",
        )
    scheme, _, rest = written.rpartition("://")
    netloc = re.split(r"[/?#]", rest, maxsplit=1)[0]
    scheme = scheme.lower()
    if scheme not in ("", "http", "https") or "@" in netloc:
        raise InvalidRequestError(
            "the registry connection's host must be host[:port], without another scheme, user or password",
            remedy="put the account into the connection's login and password fields",
        )
    if port is not None and ":" not in netloc:
        netloc = f"{netloc}:{port}"
    # Without a dot or port the grammar takes a name for a user of Docker Hub; as a host it needs its port.
    if "." not in netloc and ":" not in netloc and netloc != "localhost":
        netloc += ":80" if insecure else ":443"
    try:
        return TagReference.parse(f"{netloc}/{_ANY}").registry, scheme
    except InvalidRequestError as err:
        rule = err.details.get("rule", "it is not host[:port]")
        raise InvalidRequestError(
            f"the registry connection's host {netloc[:100]!a} is refused: {rule}", remedy=err.remedy
        ) from err


def _check_login(host: str, login: str | None, password: str | None) -> None:
    if (login is None) != (password is None):
        missing = "login" if login is None else "password"
        raise InvalidRequestError(
            f"the connection for {host} has no {missing}",
            remedy=f"give both, or neither for anonymous access; {_LOGINS}",
        )
    if login is not None and ":" in login:
        raise InvalidRequestError(
            f"the login of the connection for {host} holds ':', which HTTP logins cannot carry",
            remedy=f"check that login and password were not joined; {_LOGINS}",
        )
