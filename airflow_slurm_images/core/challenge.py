# SPDX-License-Identifier: Apache-2.0
"""What registries say in HTTP headers: login challenges, token scopes, when to come back.

Grammar of ``WWW-Authenticate``: RFC 9110, section 11.6.1. Meaning of the bearer parameters: distribution
project, "Token Authentication Specification". Reading is lenient where known registries are sloppy (scheme in
capitals, unquoted URLs, a missing ``service`` or ``scope``) and never raises: what cannot be read is no
challenge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from types import MappingProxyType

_MAX_HEADER = 8192  # characters; more is no challenge but an attack
_WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_SCHEME = re.compile(rf"[\s,]*({_WORD})(?=[\s,]|$)")
_TOKEN68 = re.compile(r"[ \t]+[A-Za-z0-9._~+/-]+=*[ \t]*(?=,|$)")
_PARAM = re.compile(rf'[\s,]*({_WORD})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))(?=[\s,]|$)')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Challenge:
    """One login a server offers: ``scheme`` and parameter names in lower case, values as sent."""

    scheme: str
    params: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """All challenges of the ``WWW-Authenticate`` headers, in the order sent.

    >>> parse_challenges(['Bearer realm="https://auth.example/token"'])[0].params["realm"]
    'https://auth.example/token'
    """
    return tuple(challenge for header in headers for challenge in _parse(header[:_MAX_HEADER]))


def _parse(header: str) -> Iterable[Challenge]:
    position = 0
    while scheme := _SCHEME.match(header, position):
        position = scheme.end()
        if token68 := _TOKEN68.match(header, position):
            position = token68.end()
        params: dict[str, str] = {}
        while param := _PARAM.match(header, position):
            name, quoted, plain = param.groups()
            params.setdefault(name.lower(), plain if quoted is None else _ESCAPE.sub(r"\1", quoted))
            position = param.end()
        yield Challenge(scheme.group(1).lower(), MappingProxyType(params))


def select(challenges: Iterable[Challenge]) -> Challenge | None:
    """The challenge to answer: bearer with a realm before basic; ``None`` where neither is offered."""
    offered = list(challenges)
    for challenge in offered:
        if challenge.scheme == "bearer" and challenge.params.get("realm"):
            return challenge
    return next((challenge for challenge in offered if challenge.scheme == "basic"), None)


def pull_scope(offered: str | None, repository: str | None) -> str | None:
    """The scope to ask a token for: the registry's own, reduced to reading; else pull of the repository.

    >>> pull_scope("repository:nvidia/cuda:pull,push", "nvidia/cuda"), pull_scope(None, "team/app")
    ('repository:nvidia/cuda:pull', 'repository:team/app:pull')
    """
    words = (offered or "").split()
    if not words:
        return f"repository:{repository}:pull" if repository else None
    return " ".join(_reading(word) for word in words)


def _reading(scope: str) -> str:
    kind, _, rest = scope.partition(":")
    name, _, _actions = rest.rpartition(":")
    return f"{kind}:{name}:pull" if kind.startswith("repository") and name else scope


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds to wait by ``Retry-After`` (RFC 9110, 10.2.3): a number or a date; ``None`` for neither."""
    text = (value or "").strip()
    try:
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
            return float(text)
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - now).total_seconds())
