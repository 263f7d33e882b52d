# SPDX-License-Identifier: Apache-2.0
"""A reading client of the OCI distribution API: logins, manifests, config blobs; every byte hashed.

The library beneath is httpx; ``_oci_http.py`` says what else was weighed. One client belongs to one registry
and one account. It never calls Airflow, so that triggers may use it from a thread (3.1's triggerer breaks
otherwise).

The answer to a login challenge is remembered per repository; a 401 with it means expired and is answered
once. A challenge counts only from the registry itself: a host behind a redirect gets no login, whatever it
asks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from airflow_slurm_images.core import oci
from airflow_slurm_images.core.digest import is_sha256, require_sha256, sha256_digest, verify
from airflow_slurm_images.core.endpoint import RegistryEndpoint
from airflow_slurm_images.core.errors import (
    RegistryError,
    RegistryNotFoundError,
    SlurmImagesError,
)
from airflow_slurm_images.core.reference import is_tag
from airflow_slurm_images.hooks._oci_failures import error_codes, error_for, not_found
from airflow_slurm_images.hooks._oci_http import Answer, Transport
from airflow_slurm_images.hooks._oci_login import Login

_TAGS_SHOWN = 100
_NO_HEAD = frozenset({405, 501})
"""A gateway in front of the registry that lets only GET through."""
_SENDABLE_ETAG = re.compile(r"[\x20-\x7e]{1,1024}")


@dataclass(frozen=True)
class RawManifest:
    """An index or manifest as served: ``content`` hashes to ``digest`` (``sha256:<hex>``)."""

    content: bytes
    digest: str
    content_type: str

    def parse(self) -> oci.ImageIndex | oci.ImageManifest:
        """See :func:`airflow_slurm_images.core.oci.parse_manifest`."""
        return oci.parse_manifest(self.content, self.content_type)


@dataclass(frozen=True)
class TagState:
    """What a conditional look at a tag told; keep it and hand it back at the next look."""

    digest: str
    """``sha256:<hex>`` as the registry's header says: good for noticing a change, never for pinning."""
    etag: str | None
    changed: bool
    """False where the digest is the one of the state handed in."""


class OciClient:
    """Reads one registry as one account. May be shared between threads; :meth:`close` it at the end."""

    def __init__(self, endpoint: RegistryEndpoint, *, transport: Transport | None = None) -> None:
        self.endpoint = endpoint
        self._transport = transport or Transport()
        self._login = Login(endpoint, self._transport)
        self._authorization: dict[str | None, str] = {}

    def close(self) -> None:
        """Close the pooled connections."""
        self._transport.close()

    def manifest(self, repository: str, reference: str) -> RawManifest:
        """Fetch the index or manifest that a tag or digest names; its bytes are hashed and compared."""
        with self.about(repository):
            if ":" in reference:
                require_sha256(reference, "the manifest")
            answer = self._ask("GET", repository, f"manifests/{reference}", {"Accept": oci.ACCEPT})
            self._expect(answer, repository, reference)
            content_type = answer.headers.get("Content-Type", "")
            oci.refuse_schema_1(content_type)
            digest = sha256_digest(answer.content)
            if ":" in reference:
                verify(answer.content, reference, "the manifest")
            if (stated := answer.headers.get("Docker-Content-Digest", "")).startswith("sha256:"):
                verify(answer.content, stated, "the manifest, as the registry's own header says,")
            return RawManifest(answer.content, digest, content_type)

    def blob(self, repository: str, descriptor: oci.Descriptor) -> bytes:
        """Fetch a small blob (an image config), hashed and compared; it may come from another host."""
        with self.about(repository):
            require_sha256(descriptor.digest, "the image's config")
            answer = self._ask("GET", repository, f"blobs/{descriptor.digest}", {})
            if answer.status == 404:
                raise RegistryNotFoundError(f"the manifest names a config that is not there: {descriptor.digest}")
            self._expect(answer, repository, descriptor.digest)
            verify(answer.content, descriptor.digest, "the image's config")
            return answer.content

    def head(self, repository: str, reference: str, known: TagState | None = None) -> TagState:
        """Look whether a tag moved, as cheaply as the registry allows (HEAD, conditional after an ETag)."""
        with self.about(repository):
            headers = {"Accept": oci.ACCEPT}
            if known is not None and known.etag and _SENDABLE_ETAG.fullmatch(known.etag):
                headers["If-None-Match"] = known.etag
            answer = self._ask("HEAD", repository, f"manifests/{reference}", headers)
            if answer.status == 304 and known is not None:
                return TagState(known.digest, known.etag, changed=False)
            if answer.status not in _NO_HEAD:
                self._expect(answer, repository, reference)
            digest = answer.headers.get("Docker-Content-Digest", "")
        if answer.status in _NO_HEAD or not is_sha256(digest):  # optional in the specification; then the bytes tell
            digest = self.manifest(repository, reference).digest
        return TagState(digest, answer.headers.get("ETag"), changed=known is None or digest != known.digest)

    def ping(self) -> str:
        """Ask the API's root with the login; returns a sentence on what that proves."""
        with self.about(None):
            if self.endpoint.login is None:
                answer = self._send("GET", "/v2/", {})
                if answer.status == 401 and self._is_own(answer):
                    return "answers; without a login only public repositories can be read"
            else:
                answer = self._ask("GET", None, "", {})
            if answer.status == 404 or "html" in answer.headers.get("Content-Type", ""):
                raise not_found(self.endpoint, answer, None, "", tags=None)
            self._raise_unless_ok(answer, "its API")
            if self.endpoint.login is None:
                return "answers and asks for no login"
            scheme = self._authorization.get(None, "").partition(" ")[0].lower()
            if not scheme:
                return "answers and asks for no login, so the password was not checked"
            account = self.endpoint.account
            return f"answers and accepts {account} ({scheme} login); this says nothing of rights to a repository"

    def token_realm_host(self, repository: str) -> str | None:
        """Host (no port) of the token service named for a repository; None where there is none.

        For the second line of a netrc file: clients such as Enroot log in at that host.
        """
        with self.about(repository):
            path = f"/v2/{repository}/manifests/latest"
            answer = self._send("HEAD", path, {"Accept": oci.ACCEPT})
            if answer.status in _NO_HEAD:
                answer = self._send("GET", path, {"Accept": oci.ACCEPT})
            if answer.status in (401, 403) and self._is_own(answer):
                return self._login.realm_host(answer)
            if answer.status != 404:
                self._raise_unless_ok(answer, f"repository {repository}")
            return None

    # -- requests -------------------------------------------------------------------------------------------

    def _ask(self, method: str, repository: str | None, path: str, headers: dict[str, str]) -> Answer:
        """Send with the login that the registry asks for."""
        full = f"/v2/{repository}/{path}" if repository else f"/v2/{path}"
        before = self._authorization.get(repository)
        answer = self._send(method, full, headers | ({"Authorization": before} if before else {}))
        if answer.status != 401 or not self._is_own(answer):
            return answer
        authorization = self._login.authorization(answer, repository)
        if authorization == before:
            return answer
        self._authorization[repository] = authorization
        answer = self._send(method, full, headers | {"Authorization": authorization})
        if answer.status == 401:
            del self._authorization[repository]
        return answer

    def _send(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        return self._transport.send(method, httpx.URL(self.endpoint.url + path), headers, oci.MAX_DOCUMENT)

    def _is_own(self, answer: Answer) -> bool:
        own = httpx.URL(self.endpoint.url)
        return (own.scheme, own.netloc) == (answer.url.scheme, answer.url.netloc)

    # -- failures -------------------------------------------------------------------------------------------

    def _expect(self, answer: Answer, repository: str, reference: str) -> None:
        if answer.status == 404 and self._is_own(answer):
            raise not_found(self.endpoint, answer, repository, reference, tags=self._tags(repository, answer))
        self._raise_unless_ok(answer, reference)

    def _raise_unless_ok(self, answer: Answer, what: str) -> None:
        if answer.status == 200:
            return
        if not self._is_own(answer):
            host = answer.url.netloc.decode("ascii", "replace")
            what = f"{what} from {host}, where the registry keeps it"
        raise error_for(self.endpoint, answer, what, own=self._is_own(answer))

    def _tags(self, repository: str, answer: Answer) -> list[str] | None:
        """Some tags of the repository, to tell an unknown tag from an unknown repository (None)."""
        if "NAME_UNKNOWN" in error_codes(answer.content):
            return None
        try:
            listing = self._ask("GET", repository, f"tags/list?n={_TAGS_SHOWN}", {})
        except RegistryError:
            return []
        if listing.status == 404:
            return None
        tags = (_json_object(listing.content) if listing.status == 200 else {}).get("tags")
        return [tag for tag in tags if isinstance(tag, str) and is_tag(tag)] if isinstance(tags, list) else []

    @contextmanager
    def about(self, repository: str | None) -> Iterator[None]:
        """Let every error name registry and repository really asked, and the account (never the secret)."""
        try:
            yield
        except SlurmImagesError as err:
            if "registry" not in err.details:
                host, account = self.endpoint.host, self.endpoint.login
                asked = f"registry {host}" + (f", repository {repository}" if repository else "")
                err.message = f"{err.message} [{asked}, {self.endpoint.account}]"
                err.details |= {"registry": host, "repository": repository, "account": account}
            raise


def _json_object(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
