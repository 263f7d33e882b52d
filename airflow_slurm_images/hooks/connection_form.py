# SPDX-License-Identifier: Apache-2.0
"""The forms of our connection types, ``slurm_ssh`` from the profile's own fields; importing it loads no hook."""

from __future__ import annotations

from typing import Any

from airflow_slurm_images.core.profile import ClusterProfile

CONNECTION_TYPE = "slurm_ssh"
DEFAULT_CONN_ID = "slurm_default"
HOOK_NAME = "Slurm over SSH"
HOOK_CLASS = "airflow_slurm_images.hooks.slurm.SlurmHook"

_SSH_FIELDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "key_file": ("SSH key file", "Path of the private key on the worker.", {"type": ["string", "null"]}),
    "private_key": (
        "SSH private key",
        "The private key itself, instead of a file.",
        {"type": ["string", "null"], "format": "password"},
    ),
    "private_key_passphrase": (
        "Passphrase",
        "Passphrase of the private key.",
        {"type": ["string", "null"], "format": "password"},
    ),
    "host_key": (
        "Host key",
        "The login node's public key ('ssh-ed25519 AAAA...'); without it known_hosts decides.",
        {"type": ["string", "null"]},
    ),
}

_JSON_TYPES = {"integer": ["integer", "null"], "boolean": ["boolean", "null"], "object": ["object", "null"]}


def connection_fields() -> dict[str, Any]:
    """``conn-fields`` of the provider metadata: SSH login first, then every profile field."""
    fields = {name: _field(*parts) for name, parts in _SSH_FIELDS.items()}
    properties = ClusterProfile.model_json_schema()["properties"]
    for name, info in ClusterProfile.model_fields.items():
        kind = properties[name].get("type", "string")
        if kind == "array":
            schema: dict[str, Any] = {"type": ["array", "null"], "items": {"type": "string"}}
        else:
            schema = {"type": _JSON_TYPES.get(kind, ["string", "null"])}
        if not info.is_required() and isinstance(info.default, (str, int, bool)):
            schema["default"] = info.default
        fields[name] = _field(name.replace("_", " ").capitalize(), info.description or "", schema)
    return fields


def _field(label: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": schema}


def connection_type() -> dict[str, Any]:
    """Entry of ``connection-types``."""
    return {
        "connection-type": CONNECTION_TYPE,
        "hook-class-name": HOOK_CLASS,
        "hook-name": HOOK_NAME,
        "ui-field-behaviour": {
            "hidden-fields": ["schema"],
            "relabeling": {"host": "Login node", "login": "Account on the cluster"},
            "placeholders": {"host": "login.cluster.example", "port": "22", "login": "svc-images"},
        },
        "conn-fields": connection_fields(),
    }


REGISTRY_CONNECTION_TYPE = "oci_registry"
REGISTRY_DEFAULT_CONN_ID = "oci_default"
REGISTRY_HOOK_NAME = "OCI registry"
REGISTRY_HOOK_CLASS = "airflow_slurm_images.hooks.registry.OciRegistryHook"
REGISTRY_BEHAVIOUR: dict[str, Any] = {
    "hidden_fields": ["schema", "port"],
    "relabeling": {"host": "Registry (host[:port])", "password": "Password or token"},
    "placeholders": {"host": "registry.example:5000"},
}
"""What the hook answers; the provider metadata wants ``hidden-fields`` for ``hidden_fields``."""


def registry_connection_type() -> dict[str, Any]:
    """Entry of ``connection-types`` for registries."""
    return {
        "connection-type": REGISTRY_CONNECTION_TYPE,
        "hook-class-name": REGISTRY_HOOK_CLASS,
        "hook-name": REGISTRY_HOOK_NAME,
        "ui-field-behaviour": {name.replace("_", "-"): value for name, value in REGISTRY_BEHAVIOUR.items()},
        "conn-fields": {
            "insecure": _field(
                "Plain HTTP",
                "Speak HTTP without TLS to this registry; its login then crosses the network readably.",
                {"type": ["boolean", "null"], "default": False},
            )
        },
    }
