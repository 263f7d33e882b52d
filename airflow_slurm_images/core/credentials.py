# SPDX-License-Identifier: Apache-2.0
"""The login of one import in the form Enroot reads: netrc lines, and what such lines cannot carry.

Enroot looks for ``machine HOST login LOGIN`` (host without port) in ``$ENROOT_CONFIG_PATH/.credentials`` with
``grep``, evaluates a password that begins with ``$`` in a shell, and hands the file to curl, which splits at white
space, unquotes what begins with ``"``, takes ``#`` for a comment and reads lines of at most 4095 bytes (256 before
curl 7.61). [measured on Enroot 4.1.2 with curl 7.88; curl issues 2676 and 15513]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.reference import DOCKER_HUB

LONGEST_LINE = 4095
"""Bytes of a line, its end included."""

TOKEN_HOSTS: Mapping[str, str] = {DOCKER_HUB: "auth.docker.io", "nvcr.io": "authn.nvidia.com"}
"""Registry -> host of the token service that needs a line of its own, whatever the challenge says."""

_NGC_LOGIN = "$oauthtoken"
_ELSEWHERE = "use a token or an account without it, or put the login into the cluster user's own Enroot credentials"


def netrc(registry: str, login: str, password: str, token_host: str | None = None) -> bytes:
    """Text of the credentials file: a line for the registry, and for its token service where that is another host.

    :param registry: ``host[:port]``; the port does not belong into the file.
    :param token_host: host that the registry's login challenge names.

    Raises InvalidRequestError for what the file cannot carry; no message holds the secret.
    """
    check("login", login)
    check("password", password)
    host = registry.partition(":")[0]
    hosts = dict.fromkeys([host, *_given(token_host), *_given(TOKEN_HOSTS.get(host))])
    lines = [f"machine {name} login {login} password {password}\n".encode() for name in hosts]
    longest = max(len(line) for line in lines)
    if longest > LONGEST_LINE:
        raise InvalidRequestError(
            f"the password of the connection for {registry} is too long: its line has {longest} bytes, curl reads "
            f"{LONGEST_LINE}",
            remedy="use a shorter token, for example one for fewer repositories",
        )
    return b"".join(lines)


def _given(host: str | None) -> Iterable[str]:
    return () if host is None else (host,)


def check(field: str, value: str) -> None:
    """Refuse a login or password that would not arrive as written; the message names the reason, not the value."""
    if not value:
        _refuse(field, "is empty")
    if any(character.isspace() for character in value):
        _refuse(field, "holds white space")
    if not value.isprintable():
        _refuse(field, "holds a control or other unprintable character")
    if value[0] == "$" and not (field == "login" and value == _NGC_LOGIN):
        _refuse(field, "begins with '$', which Enroot would evaluate in a shell")
    if value[0] in '"#':
        _refuse(field, f"begins with {value[0]!r}, which curl would take for a quote or a comment")
    if field == "login" and any(character in value for character in "\\[*"):
        _refuse(field, "holds one of \\ [ *, by which Enroot does not find it again")


def _refuse(field: str, reason: str) -> NoReturn:
    raise InvalidRequestError(
        f"the {field} of the registry connection {reason}; Enroot's credentials file cannot carry it",
        remedy=_ELSEWHERE,
        details={"field": field},
    )
