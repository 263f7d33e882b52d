# SPDX-License-Identifier: Apache-2.0
"""OciRegistryHook: the only module through which DAGs talk to a registry.

Thin: connection to endpoint, reference to documents, documents to one platform's digest. HTTP and logins are
in ``_oci_http.py`` and ``_oci_client.py``, the reading of documents in ``core/oci.py``.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_slurm_images.core import oci
from airflow_slurm_images.core.endpoint import RegistryEndpoint
from airflow_slurm_images.core.errors import InvalidRequestError, RegistryResponseError, SlurmImagesError
from airflow_slurm_images.core.oci import ResolvedImage
from airflow_slurm_images.core.platform import Platform
from airflow_slurm_images.core.reference import ImageReference, TagReference
from airflow_slurm_images.hooks._oci_client import OciClient, RawManifest, TagState
from airflow_slurm_images.hooks.connection_form import (
    REGISTRY_BEHAVIOUR,
    REGISTRY_CONNECTION_TYPE,
    REGISTRY_DEFAULT_CONN_ID,
    REGISTRY_HOOK_NAME,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection

Reference = str | TagReference | ImageReference


def endpoint_of(connection: Connection) -> RegistryEndpoint:
    """Read a connection (``oci_registry`` or ``docker``).

    Asks nobody, so that triggers may call it anywhere; ``extra_dejson`` would tell the supervisor what to mask.
    """
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        extra = {}
    return RegistryEndpoint.of(
        host=connection.host,
        port=connection.port,
        login=connection.login,
        password=connection.password,
        extra=extra if isinstance(extra, dict) else {},
    )


def serving(
    endpoint: RegistryEndpoint | None, ref: TagReference | ImageReference, conn_id: str | None
) -> RegistryEndpoint:
    """Host and account that serve a reference; InvalidRequestError where the connection is for another host."""
    if endpoint is None:
        return RegistryEndpoint(host=ref.registry)
    if not endpoint.serves(ref.registry):
        raise InvalidRequestError(
            f"the image is at {ref.registry}, connection {conn_id} is for {endpoint.host}; "
            "its login is not sent elsewhere",
            remedy=f"write {endpoint.host}/{ref.repository}, or name the connection of {ref.registry}",
            details={"registry": ref.registry, "connection_host": endpoint.host},
        )
    return endpoint


class OciRegistryHook(BaseHook):
    """Reads image registries: tags to digests, for one platform, every byte hashed.

    :param registry_conn_id: a connection of type ``oci_registry`` (or ``docker``): host, login, password,
        extra ``{"insecure": true}`` for plain HTTP. Its login is sent to its host only. ``None``: anonymous,
        any registry.

    Proxies (``HTTPS_PROXY``, ``NO_PROXY`` ...) and CA bundles (``SSL_CERT_FILE``, ``SSL_CERT_DIR``,
    ``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE``) are those of the worker's environment.
    """

    conn_name_attr = "registry_conn_id"
    default_conn_name = REGISTRY_DEFAULT_CONN_ID
    conn_type = REGISTRY_CONNECTION_TYPE
    hook_name = REGISTRY_HOOK_NAME

    def __init__(self, registry_conn_id: str | None = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.registry_conn_id = registry_conn_id
        self._endpoint: RegistryEndpoint | None = None
        self._clients: dict[str, OciClient] = {}

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """How the connection form looks."""
        return dict(REGISTRY_BEHAVIOUR)

    def __enter__(self) -> OciRegistryHook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close pooled connections; the hook can be used again."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def get_conn(self) -> OciClient:
        """The client of the connection's registry; InvalidRequestError for a hook without connection."""
        endpoint = self.endpoint
        if endpoint is None:
            raise InvalidRequestError("an anonymous hook has no registry of its own; name a connection")
        return self._client(endpoint)

    @property
    def endpoint(self) -> RegistryEndpoint | None:
        """Host and account of the connection, read once; ``None`` for an anonymous hook."""
        if self._endpoint is None and self.registry_conn_id is not None:
            self._endpoint = endpoint_of(self.get_connection(self.registry_conn_id))
            _mask(self._endpoint)
        return self._endpoint

    def resolve(
        self, reference: Reference, *, arch: str, os: str = "linux", variant: str | None = None
    ) -> ResolvedImage:
        """Find the digest a tag stands for on one platform.

        :param reference: ``[registry/]repository:tag`` or the same with ``@sha256:...``; the digest then
            decides.
        :param arch: OCI (``amd64``, ``arm64``) or ``uname -m`` name (``x86_64``, ``aarch64``).
        :param variant: such as ``v7``; without it the architecture's usual one.

        Raises InvalidRequestError, IntegrityError, RegistryAuthError, RegistryNotFoundError (unknown
        repository, tag, platform), RegistryResponseError (no image, schema 1, too large),
        RegistryRateLimitedError, RegistryTlsError or RegistryUnavailableError. ``retryable`` says whether asking
        again later can help.
        """
        ref = _parse(reference)
        wanted = Platform.requested(arch, os=os, variant=variant)
        client = self._client_for(ref)
        with client.about(ref.repository):
            return resolve_with(client, ref, wanted)

    def manifest(self, reference: Reference) -> RawManifest:
        """The bytes of the index or manifest that a reference names, compared with its digest."""
        ref = _parse(reference)
        return self._client_for(ref).manifest(ref.repository, _name(ref))

    def head(self, reference: Reference, known: TagState | None = None) -> TagState:
        """Whether a tag moved since ``known``; costs no pull where the registry counts them."""
        ref = _parse(reference)
        return self._client_for(ref).head(ref.repository, _name(ref), known)

    def token_realm_host(self, repository: str, registry: str | None = None) -> str | None:
        """Host of the token service that the registry names for a repository, for a netrc's second line.

        ``None`` where the registry uses basic logins or none. ``registry`` is needed for an anonymous hook
        only.
        """
        host = registry or self.get_conn().endpoint.host
        ref = TagReference(registry=host, repository=repository, tag="latest", digest=None)
        return self._client_for(ref).token_realm_host(ref.repository)

    def test_connection(self) -> tuple[bool, str]:
        """Ask the registry with the login; what the form's test button shows."""
        try:
            client = self.get_conn()
            return True, f"{client.endpoint.host} {client.ping()}"
        except SlurmImagesError as err:
            return False, str(err)
        finally:
            self.close()

    def _client_for(self, ref: TagReference) -> OciClient:
        return self._client(self.endpoint_for(ref))

    def endpoint_for(self, ref: TagReference | ImageReference) -> RegistryEndpoint:
        """Host and account that serve a reference; InvalidRequestError where the connection is for another host."""
        return serving(self.endpoint, ref, self.registry_conn_id)

    def _client(self, endpoint: RegistryEndpoint) -> OciClient:
        if endpoint.host not in self._clients:
            self._clients[endpoint.host] = OciClient(endpoint)
        return self._clients[endpoint.host]


def resolve_with(client: OciClient, ref: TagReference, wanted: Platform) -> ResolvedImage:
    """What :meth:`OciRegistryHook.resolve` does, for callers that have the client."""
    raw = client.manifest(ref.repository, _name(ref))
    document = raw.parse()
    index_digest: str | None = None
    stated: Platform | None = None
    if isinstance(document, oci.ImageIndex):
        index_digest, entry = raw.digest, oci.choose(document, wanted)
        stated = entry.platform
        raw = client.manifest(ref.repository, entry.digest)
        document = raw.parse()
    if isinstance(document, oci.ImageIndex):
        raise RegistryResponseError("the index points at another index; which image is meant is not clear")
    # The config is asked as well: an index may be put together wrongly, a single image tells nothing else.
    own = oci.config_platform(client.blob(ref.repository, document.config))
    oci.check_platform(own, stated or wanted, from_index=stated is not None)
    return ResolvedImage(
        reference=ref.pin(raw.digest).canonical,
        registry=ref.registry,
        repository=ref.repository,
        tag=ref.tag,
        index_digest=index_digest,
        platform_digest=raw.digest,
        media_type=document.media_type,
        platform=str(stated or own),
        size=document.size,
    )


def _parse(reference: Reference) -> TagReference:
    """Read text when it is used, never earlier: templates are rendered by then."""
    return reference if isinstance(reference, TagReference) else TagReference.parse(str(reference))


def _name(ref: TagReference) -> str:
    """What stands in the URL: the digest where there is one."""
    name = ref.digest or ref.tag
    assert name is not None  # TagReference refuses a reference with neither
    return name


def _mask(endpoint: RegistryEndpoint) -> None:
    """Keep the password out of every log, also in the form the basic login sends it."""
    for secret in endpoint.secrets:
        mask_secret(secret)
