# SPDX-License-Identifier: Apache-2.0
"""HTTP as a registry client needs it: bounded in time, size, redirects and retries; knows nothing of logins.

Built on httpx, which Airflow's task SDK itself requires. Weighed against it:

* ``oras`` (oras-py) is the one registry client in Python that is kept up. It hands out parsed JSON without
  comparing the bytes with a digest, has no choice of platform, no limits of size and time and no
  ``Retry-After``, and reads logins from ``~/.docker/config.json`` by itself: nearly all that matters here
  would be written around it.
* ``requests`` attaches what it finds in ``~/.netrc`` to any host as soon as it also heeds the environment's
  proxies; a worker's own login could then reach a registry, its token service or the storage behind a
  redirect.

Redirects are followed here one at a time, so that none may leave HTTPS; httpx drops ``Authorization`` when
the host changes, and only a host that the caller names gets it again. Cookies are never kept: some registries
take their presence for a browser.
"""

from __future__ import annotations

import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any
from weakref import WeakSet

import httpx

from airflow_slurm_images import __version__
from airflow_slurm_images.core.challenge import retry_after
from airflow_slurm_images.core.errors import (
    InvalidRequestError,
    RegistryError,
    RegistryResponseError,
    RegistryTlsError,
    RegistryUnavailableError,
)
from airflow_slurm_images.core.fields import whole_number

USER_AGENT = f"airflow-provider-slurm-images/{__version__}"
_AGAIN = frozenset({429, 500, 502, 503, 504})
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""A TLS connection that ended in the middle: the network or a busy server, as after a reset."""
_CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one call, in seconds and counts."""

    connect: float = 10.0
    silence: float = 30.0
    """Longest wait for the next bytes."""
    total: float = 120.0
    """The whole call with its retries and waits; stops an answer that drips, its headers included."""
    attempts: int = 4
    first_wait: float = 1.0
    """Doubled for each further attempt, with a quarter of jitter."""
    longest_wait: float = 60.0
    """A ``Retry-After`` beyond this is reported to the caller instead of slept."""
    redirects: int = 5


@dataclass(frozen=True)
class Answer:
    """A complete response; ``url`` is where it came from in the end."""

    status: int
    url: httpx.URL
    headers: httpx.Headers
    content: bytes = field(repr=False)
    """A token service's holds the token."""
    authorization: str = field(default="", repr=False)
    """What the request was sent with; an answer may repeat it."""


class Transport:
    """One pooled client; may be used from several threads."""

    def __init__(self, limits: Limits | None = None, *, sleep: Callable[[float], None] | None = None) -> None:
        self._limits = limits or Limits()
        self._sleep = sleep or time.sleep
        self._streams: WeakSet[Any] = WeakSet()
        timeout = httpx.Timeout(self._limits.silence, connect=self._limits.connect)
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}  # the bytes as stored are hashed
        try:
            self._client = httpx.Client(
                headers=headers, cookies=no_cookies, timeout=timeout, verify=_trust(), trust_env=True
            )
        except (ImportError, ValueError, httpx.InvalidURL) as err:
            raise InvalidRequestError(
                "the proxy settings of the worker's environment cannot be used",
                remedy="check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY; SOCKS proxies need httpx[socks]",
            ) from err

    def close(self) -> None:
        """Close the pooled connections."""
        self._client.close()

    def send(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        max_bytes: int,
        *,
        login_hosts: Container[str] = (),
    ) -> Answer:
        """Send until there is an answer worth returning; 429 and 5xx are returned once retries are used up.

        ``login_hosts`` (no ports) get the request's ``Authorization`` also where a redirect leads to them.

        Raises RegistryUnavailableError (``retryable`` false for an unknown host), RegistryTlsError,
        RegistryResponseError for too much data or a forbidden redirect.
        """
        deadline = time.monotonic() + self._limits.total
        watchdog = threading.Timer(self._limits.total, self._cut)
        watchdog.daemon = True
        watchdog.start()
        try:
            return self._persist(method, url, headers, max_bytes, deadline, login_hosts)
        finally:
            watchdog.cancel()

    def _persist(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        max_bytes: int,
        deadline: float,
        login_hosts: Container[str],
    ) -> Answer:
        for attempt in range(1, self._limits.attempts + 1):
            wait = self._limits.first_wait * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)  # noqa: S311
            try:
                request = self._client.build_request(method, url, headers=headers, extensions={"trace": self._note})
                answer = self._once(request, max_bytes, deadline, login_hosts)
                asked = retry_after(answer.headers.get("Retry-After"), datetime.now(timezone.utc))
                wait = wait if asked is None else asked
                if answer.status not in _AGAIN or not self._may_wait(attempt, wait, deadline):
                    return answer
            except RegistryUnavailableError as err:
                if not err.retryable or not self._may_wait(attempt, wait, deadline):
                    raise
            self._sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _note(self, event: str, info: Mapping[str, Any]) -> None:
        """Remember each connection that is opened; httpx reports them so."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._streams.add(info["return_value"])

    def _cut(self) -> None:
        """End all waiting for bytes: httpx bounds each wait, not their number."""
        for stream in list(self._streams):
            with suppress(OSError):  # closed meanwhile; not SSLSocket's own, which changes what the reader holds
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)

    def _too_slow(self, url: httpx.URL) -> RegistryUnavailableError:
        return RegistryUnavailableError(f"{_where(url)} sends too slowly; given up after {self._limits.total:.0f} s")

    def _may_wait(self, attempt: int, wait: float, deadline: float) -> bool:
        in_time = wait <= self._limits.longest_wait and time.monotonic() + wait < deadline
        return attempt < self._limits.attempts and in_time

    def _once(self, request: httpx.Request, max_bytes: int, deadline: float, login_hosts: Container[str]) -> Answer:
        authorization = request.headers.get("Authorization")
        for _ in range(self._limits.redirects + 1):
            try:
                with closing(self._client.send(request, stream=True, follow_redirects=False)) as response:
                    if response.next_request is None:
                        content = _read(response, max_bytes)
                        if time.monotonic() >= deadline:  # what was cut off may look whole
                            raise self._too_slow(request.url)
                        sent_with = request.headers.get("Authorization", "")
                        return Answer(response.status_code, request.url, response.headers, content, sent_with)
            except httpx.RequestError as err:
                if time.monotonic() >= deadline:
                    raise self._too_slow(request.url) from err
                raise _failure(err, request.url) from err
            request = _checked(request.url, response.next_request)
            if authorization and request.url.host in login_hosts:
                request.headers["Authorization"] = authorization
        problem = f"more than {self._limits.redirects} redirects, the last to {_where(request.url)}"
        raise RegistryResponseError(problem)


def _trust() -> ssl.SSLContext:
    """The CA bundle the environment names; else the system's certificates together with certifi's."""
    for name in _CA_VARIABLES:
        if value := os.environ.get(name):
            path = Path(value)
            try:
                if path.is_dir():
                    return ssl.create_default_context(capath=value)
                return ssl.create_default_context(cafile=value)
            except (OSError, ssl.SSLError) as err:
                raise InvalidRequestError(
                    f"the CA bundle {value} named by {name} cannot be read: {err}",
                    remedy=f"point {name} of the worker at a PEM file or directory",
                ) from err
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context


def _read(response: httpx.Response, max_bytes: int) -> bytes:
    announced = response.headers.get("Content-Length", "")
    if response.request.method == "HEAD":
        return b""
    if (whole_number(announced) or 0) > max_bytes:
        raise _too_large(response.url, max_bytes)
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > max_bytes:
            raise _too_large(response.url, max_bytes)
    return bytes(content)


def _checked(origin: httpx.URL, target: httpx.Request) -> httpx.Request:
    """A redirect may go to another host, but never from HTTPS to anything else."""
    if target.url.scheme == "https" or (target.url.scheme == "http" and origin.scheme == "http"):
        return target
    raise RegistryResponseError(
        f"{_where(origin)} redirects to {_where(target.url)} without TLS; not followed",
        remedy="the registry or a proxy in front of it is set up wrongly; it has to redirect to https",
    )


def _where(url: httpx.URL) -> str:
    """Scheme and host only: paths and queries of storage URLs carry signatures."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _too_large(url: httpx.URL, max_bytes: int) -> RegistryResponseError:
    return RegistryResponseError(
        f"{_where(url)} sends more than {max_bytes} bytes where a manifest or config was asked for",
        remedy="this is no ordinary image; look at it with `skopeo inspect --raw`",
        details={"limit_bytes": max_bytes},
    )


def _failure(err: httpx.RequestError, url: httpx.URL) -> RegistryError:
    """What went wrong below HTTP, in words; the httpx error stays the cause."""
    where = _where(url)
    causes = list(_chain(err))
    tls = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    if tls is not None and not isinstance(tls, _CUT_OFF):
        return _tls_failure(tls, where)
    name = next((cause for cause in causes if isinstance(cause, socket.gaierror)), None)
    if name is not None:
        failure = RegistryUnavailableError(
            f"the host name of {where} cannot be resolved ({name.strerror})",
            remedy="check the spelling of the registry and the worker's DNS",
        )
        failure.retryable = name.errno == socket.EAI_AGAIN
        return failure
    if isinstance(err, httpx.ProxyError):
        return RegistryUnavailableError(
            f"{where} cannot be reached through the proxy of the worker's environment: {_text(err)}",
            remedy="check HTTPS_PROXY, HTTP_PROXY and NO_PROXY of the worker",
        )
    if isinstance(err, (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.DecodingError)):
        return RegistryResponseError(f"{where} answered with something that cannot be followed or read")
    if isinstance(err, httpx.TimeoutException):
        return RegistryUnavailableError(f"{where} did not answer in time ({type(err).__name__})")
    return RegistryUnavailableError(
        f"{where} cannot be reached or broke off: {_text(err)}",
        remedy="check that the registry is up and reachable",
    )


def _tls_failure(err: ssl.SSLError, where: str) -> RegistryTlsError:
    if isinstance(err, ssl.SSLCertVerificationError):
        problem = f"the certificate of {where} is not trusted: {err.verify_message}"
        remedy = f"let one of {', '.join(_CA_VARIABLES)} of the worker name the CA bundle of your site"
    else:
        problem = f"no TLS connection with {where}: {err.reason or err}"
        remedy = 'if the registry speaks plain HTTP, set {"insecure": true} in the extra of its connection'
    return RegistryTlsError(problem, remedy=remedy)


def _chain(err: BaseException | None) -> Iterator[BaseException]:
    while err is not None:
        yield err
        err = err.__cause__ or err.__context__


def _text(err: Exception) -> str:
    return f"{str(err) or type(err).__name__:.200}"
