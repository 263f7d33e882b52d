# SPDX-License-Identifier: Apache-2.0
"""From a registry connection to the login of one import, as Enroot reads it.

The registry is asked which token service it names, because Enroot needs a line for that host too. The cluster may
reach registries that the worker does not, so no answer is no error: what is known by heart is used then.
"""

from __future__ import annotations

from airflow_slurm_images.core import credentials
from airflow_slurm_images.core.errors import RegistryError
from airflow_slurm_images.core.reference import ImageReference
from airflow_slurm_images.hooks._oci_client import OciClient
from airflow_slurm_images.hooks._oci_http import Limits, Transport
from airflow_slurm_images.hooks.registry import OciRegistryHook

_QUICK = Limits(connect=5, silence=10, total=20, attempts=2)


def import_login(hook: OciRegistryHook, image: str) -> bytes:
    """Netrc lines for the registry of ``image`` with the account of ``hook``; empty for a connection without login.

    Raises InvalidRequestError where the connection is for another registry or its login cannot be carried.
    """
    reference = ImageReference.parse(image)
    endpoint = hook.endpoint_for(reference)
    if endpoint.login is None or endpoint.password is None:
        return b""
    credentials.netrc(endpoint.host, endpoint.login, endpoint.password)  # refuse before anybody is asked
    token_host: str | None = None
    client = OciClient(endpoint, transport=Transport(_QUICK))
    try:
        token_host = client.token_realm_host(reference.repository)
    except RegistryError as err:
        known = credentials.TOKEN_HOSTS.get(endpoint.host.partition(":")[0])
        hook.log.warning(
            "The worker cannot ask %s for its token service, so the job gets a login for %s only: %s",
            endpoint.host,
            f"the registry and {known}" if known else "the registry",
            err.message,
        )
    finally:
        client.close()
    return credentials.netrc(endpoint.host, endpoint.login, endpoint.password, token_host)
