"""Talks to a registry with curl, whose exit codes, messages and netrc reading are part of Enroot's behaviour."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from . import uri
from .config import expand
from .console import Exit, complain, fail, info, status_of
from .uri import Source

_LISTS = "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.index.v1+json"
_MANIFESTS = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
# The names Enroot prints differ from Python's for these.
_PHRASES = {
    408: "Request Time-out",
    413: "Request Entity Too Large",
    414: "Request-URI Too Large",
    416: "Requested range not satisfiable",
    417: "Expectation Failed",
    504: "Gateway Time-out",
}


@dataclass(frozen=True)
class Layer:
    digest: str
    media_type: str


@dataclass(frozen=True)
class Manifest:
    config: str
    layers: tuple[Layer, ...]


def curl_options() -> list[str]:
    env = os.environ
    protocols = "=http,https" if "ENROOT_ALLOW_HTTP" in env else "=https"
    return [
        *("--proto", protocols, "--retry", env["ENROOT_TRANSFER_RETRIES"]),
        *("--connect-timeout", env["ENROOT_CONNECT_TIMEOUT"], "--max-time", env["ENROOT_TRANSFER_TIMEOUT"], "-sSL"),
    ]


def _phrase(code: int) -> str:
    if code in _PHRASES:
        return _PHRASES[code]
    return HTTPStatus(code).phrase if code in HTTPStatus.__members__.values() else ""


def request(url: str, arguments: Sequence[str], *, ignore: Sequence[int] = (), quiet: bool = False) -> str:
    """One request's body (with -I: its headers). Ends with curl's own status when curl fails."""
    body = os.memfd_create("body")
    command = ["curl", "-o", f"/proc/self/fd/{body}", "-w", "%{http_code}", *curl_options(), *arguments, "--", url]
    errors = subprocess.DEVNULL if quiet else None
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, pass_fds=[body], text=True, check=False)
        with os.fdopen(os.dup(body), "rb") as file:
            file.seek(0)
            text = file.read().decode(errors="surrogateescape")
    finally:
        os.close(body)
    code = int(done.stdout or 0)
    if code >= 400 and code not in ignore:
        if quiet:
            raise Exit(1)
        fail(f"URL {url} returned error code: {code} {_phrase(code)}")
    if code < 400 and done.returncode:
        raise Exit(status_of(done.returncode))
    return text


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        fail("Could not process JSON input")


def _netrc() -> str:
    """The credentials file, with every password that begins with `$` evaluated by a shell."""
    lines = []
    for line in uri.credentials_lines():
        words = line.split(maxsplit=5)
        evaluated = len(words) == 6 and words[5].startswith("$")
        lines.append(" ".join([*words[:5], expand(words[5])]) if evaluated else line)
    return "".join(f"{line}\n" for line in lines)


class Registry:
    """One registry and repository, with the token of this import in a file below the cache."""

    def __init__(self, source: Source) -> None:
        self.source = source
        scheme = "http" if "ENROOT_ALLOW_HTTP" in os.environ else "https"
        self.base = f"{scheme}://{source.registry}/v2/{source.image}"
        self.tokens = Path(os.environ["ENROOT_CACHE_PATH"]) / f".tokens.{os.geteuid()}"
        self.token_file = self.tokens / f"{source.registry}.{os.getpid()}"

    def forget_token(self) -> None:
        self.token_file.unlink(missing_ok=True)

    @property
    def credentials(self) -> list[str]:
        return ["-K", str(self.token_file)] if self.token_file.is_file() else []

    def authenticate(self) -> None:
        """The first request names no media type: an old registry then has no OCI manifest to show."""
        url = f"{self.base}/manifests/{self.source.tag}"
        info("Querying registry for permission grant")
        headers = request(url, ["-I"], ignore=[401])
        challenge = re.search(r"^www-authenticate:\s*(\S+)\s+(\S+)", headers, re.I | re.M)
        if challenge is None:
            info("Permission granted")
            return
        scheme, fields = challenge[1], dict(re.findall(r'(\w+)="([^",]*)', challenge[2]))
        realm = fields.pop("realm", "")
        if not realm:
            fail(f"Could not parse authentication realm from {url}")
        info(f"Authenticating with user: {self.source.user or '<anonymous>'}")
        with self._login() as login:
            token = self._token(scheme, url, realm, fields, login)
        if token:
            self._keep(f"{scheme} {token}")
            info("Authentication succeeded")

    @contextmanager
    def _login(self) -> Iterator[list[str]]:
        user, host = self.source.user, self.source.host
        known = re.compile(rf"machine\s+{re.escape(host)}\s+login\s+{re.escape(user)}\s")
        if not user:
            yield []
        elif any(map(known.match, uri.credentials_lines())):
            info(f"Using credentials from file: {uri.credentials_file()}")
            netrc = os.memfd_create("netrc")
            os.write(netrc, _netrc().encode(errors="surrogateescape"))
            os.lseek(netrc, 0, os.SEEK_SET)
            os.set_inheritable(netrc, True)
            try:
                yield ["--netrc-file", f"/proc/{os.getpid()}/fd/{netrc}"]
            finally:
                os.close(netrc)
        else:
            yield ["-u", user]

    def _token(self, scheme: str, url: str, realm: str, fields: dict[str, str], login: list[str]) -> str:
        if scheme == "Bearer":
            data = [word for name, value in fields.items() for word in ("--data-urlencode", f"{name}={value}")]
            answer = _parse(request(realm, ["-G", *data, *login]) or "{}")
            return str(answer.get("token") or answer.get("access_token") or "")
        if scheme != "Basic":
            fail(f"Unsupported authentication method {scheme}")
        return self._basic_token(url, login)

    def _basic_token(self, url: str, login: list[str]) -> str:
        """What curl sent is the token. A refusal ends the import without a word: Enroot drops that output."""
        command = ["curl", "-o", os.devnull, "-w", "%{http_code}", *curl_options(), "-G", "-v", *login, "--", url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or int(done.stdout or 0) >= 400:
            raise Exit(status_of(done.returncode) or 1)
        sent = re.search(r"Authorization: Basic (\S+)", done.stderr)
        return sent[1] if sent else ""

    def _keep(self, authorization: str) -> None:
        self.tokens.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f'header "Authorization: {authorization}"')

    def manifest_url(self, architecture: str, *, announce: bool) -> str:
        """The platform's own manifest when the tag stands for a list."""
        url = f"{self.base}/manifests/{self.source.tag}"
        if announce:
            info("Fetching image manifest list")
        text = request(url, ["-H", f"Accept: {_LISTS}", *self.credentials], ignore=[401, 404])
        try:
            entries = json.loads(text)["manifests"]
            digest = next(e["digest"] for e in entries if e["platform"]["architecture"] == architecture)
        except (ValueError, LookupError, TypeError, StopIteration):
            return url
        return f"{self.base}/manifests/{digest}"

    def manifest(self, url: str) -> Manifest:
        """The bytes are taken as they are served: nothing compares them with the digest asked for."""
        info("Fetching image manifest")
        found = _parse(request(url, ["-H", f"Accept: {_MANIFESTS}", *self.credentials]))
        try:
            config = found["config"]["digest"].removeprefix("sha256:")
            layers = [Layer(e["digest"].removeprefix("sha256:"), e["mediaType"]) for e in found["layers"]]
        except (LookupError, TypeError, AttributeError):
            config, layers = "", []
        if not config or not layers:
            fail(f"Could not parse digest information from {url}")
        return Manifest(config, tuple(reversed(layers)))

    def digest(self, url: str) -> str:
        headers = request(url, ["-H", f"Accept: {_MANIFESTS}", *self.credentials, "-I"])
        found = re.search(r"^docker-content-digest:\s*(\S+)", headers, re.I | re.M)
        if found is None:
            fail(f"Could not retrieve digest from {url}")
        return found[1]

    def download(self, digest: str) -> subprocess.Popen[bytes]:
        url = f"{self.base}/blobs/sha256:{digest}"
        command = ["curl", *curl_options(), "-f", *self.credentials, "--", url]
        try:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr)
        except OSError as error:
            complain("curl", "cannot run", error)
