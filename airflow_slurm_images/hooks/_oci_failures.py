# SPDX-License-Identifier: Apache-2.0
"""What a registry's refusals mean, in words a person can act on: HTTP statuses to our errors."""

from __future__ import annotations

import base64
import difflib
import json
from datetime import datetime, timezone
from typing import Any

from airflow_slurm_images.core.challenge import retry_after
from airflow_slurm_images.core.endpoint import RegistryEndpoint
from airflow_slurm_images.core.errors import (
    RegistryAuthError,
    RegistryError,
    RegistryNotFoundError,
    RegistryRateLimitedError,
    RegistryResponseError,
    RegistryUnavailableError,
)
from airflow_slurm_images.hooks._oci_http import Answer

_SAID = 200  # characters of a registry's own words that a message repeats
_CLOSE = 8
_NVIDIA = ("nvcr.io", "authn.nvidia.com")


def error_for(endpoint: RegistryEndpoint, answer: Answer, what: str, *, own: bool = True) -> RegistryError:
    """The error for a status that is neither success nor 404; ``own`` false for a host behind a redirect."""
    status = answer.status
    details: dict[str, Any] = {"status": status}
    if not own and status in (401, 403):
        return RegistryResponseError(
            f"status {status} for {what}",
            remedy="the storage behind the registry refused; a firewall or proxy in between often does so",
            details=details,
        )
    if status in (401, 403):
        return refused_login(endpoint, answer, f"the registry refuses to show {what} (status {status})")
    if status == 429:
        after = retry_after(answer.headers.get("Retry-After"), datetime.now(timezone.utc))
        wait = "" if after is None else f"; it asks to wait {after:.0f} s"
        return RegistryRateLimitedError(
            f"too many requests, says the registry about {what}{wait}{_said(answer)}",
            remedy="ask less often, log in (limits are higher then), or use a mirror",
            details=details | {"retry_after": after},
        )
    if status >= 500:
        details["retry_after"] = retry_after(answer.headers.get("Retry-After"), datetime.now(timezone.utc))
        return RegistryUnavailableError(f"status {status} for {what}{_said(answer)}", details=details)
    if status == 407:
        remedy = "put the proxy's login into HTTPS_PROXY or HTTP_PROXY of the worker"
        return RegistryUnavailableError(f"the proxy wants a login, asked for {what}", remedy=remedy, details=details)
    if status == 400 and endpoint.insecure:
        remedy = "if the registry speaks HTTPS, remove insecure from its connection"
        return RegistryResponseError(f"status 400 for {what}{_said(answer)}", remedy=remedy, details=details)
    return RegistryResponseError(f"unexpected status {status} for {what}{_said(answer)}", details=details)


def refused_login(endpoint: RegistryEndpoint, answer: Answer, problem: str) -> RegistryAuthError:
    """401 or 403, or no login for a registry that wants one. The secret is in no message."""
    causes = ["the repository does not exist (several registries answer the same then)"]
    if endpoint.login is None:
        causes.insert(0, "the repository is private: name a connection with a login")
    else:
        causes[:0] = [
            "login or password is wrong, or a token has expired",
            "the account may not read this repository",
        ]
    host = endpoint.host.partition(":")[0]
    if host in _NVIDIA:
        causes.append(
            "NGC takes the login $oauthtoken with an API key as password; Enroot's own credentials file "
            f"needs two lines, for {' and '.join(_NVIDIA)}"
        )
    if endpoint.is_docker_hub:
        causes.append("a token handed out by auth.docker.io does not prove that the password was right")
    return RegistryAuthError(
        f"{problem}{_said(answer)}",
        remedy="usual causes: " + "; ".join(causes),
        details={"status": answer.status, "asked": answer.url.host},
    )


def not_found(
    endpoint: RegistryEndpoint,
    answer: Answer,
    repository: str | None,
    reference: str,
    *,
    tags: list[str] | None,
) -> RegistryNotFoundError:
    """404, told apart: no registry, unknown repository, unknown digest, unknown tag (with similar ones)."""
    is_registry = "Docker-Distribution-Api-Version" in answer.headers or bool(error_codes(answer.content))
    if answer.content and not is_registry:
        return RegistryNotFoundError(
            f"{endpoint.host} answers, but not as a container registry does",
            remedy="check the host of the image and of the connection",
        )
    if tags is None:
        return RegistryNotFoundError(
            f"unknown repository {repository}" if repository else f"{endpoint.host} has no registry API (/v2/)",
            remedy="check its spelling, and whether the account may see it",
        )
    if ":" in reference:
        remedy = "it may have been deleted, or belong to another repository; resolve the tag again"
        return RegistryNotFoundError(f"no manifest {reference} in repository {repository}", remedy=remedy)
    close = difflib.get_close_matches(reference, tags, n=_CLOSE, cutoff=0.4) or tags[:_CLOSE]
    remedy = f"some of the tags there: {', '.join(close)}" if close else "list the tags with `skopeo list-tags`"
    return RegistryNotFoundError(f"unknown tag {reference} in repository {repository}", remedy=remedy)


def error_codes(content: bytes) -> list[str]:
    """Codes of the registry's error document (distribution specification, "Error Codes"); empty for none."""
    return [str(error["code"]) for error in _errors(content) if error.get("code")]


def _errors(content: bytes) -> list[dict[str, Any]]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return []
    errors = document.get("errors") if isinstance(document, dict) else None
    return [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []


def _said(answer: Answer) -> str:
    """The registry's own words, as one printable line, without the login if it repeats that."""
    errors = _errors(answer.content)
    words = "; ".join(f"{error.get('code', '')} {error.get('message', '')}".strip() for error in errors)
    for secret in _secrets(answer.authorization):
        words = words.replace(secret, "***")
    return f" (it says: {ascii(words[:_SAID])[1:-1]})" if words else ""


def _secrets(authorization: str) -> list[str]:
    """The parts of an ``Authorization`` header, which we made, that are secret."""
    scheme, _, value = authorization.partition(" ")
    pair = base64.b64decode(value).decode() if scheme == "Basic" else ""
    return [secret for secret in (value, pair.partition(":")[2]) if secret]
