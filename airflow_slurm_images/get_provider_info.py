# SPDX-License-Identifier: Apache-2.0
"""Provider metadata, as Airflow's own schemas want it."""

from __future__ import annotations

from typing import Any

from airflow_slurm_images import __version__
from airflow_slurm_images.hooks.connection_form import connection_type, registry_connection_type

DISTRIBUTION = "airflow-provider-slurm-images"
_INTEGRATION = "Slurm images"


def get_provider_info() -> dict[str, Any]:
    """Entry point ``apache_airflow_provider``; imports no hook."""
    return {
        "package-name": DISTRIBUTION,
        "name": "Slurm images",
        "description": "Import, inspect and publish Enroot container images on a Slurm cluster.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://slurm.schedmd.com/",
                "tags": ["service"],
            }
        ],
        "operators": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_slurm_images.operators.images"]}],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_slurm_images.sensors.images"]}],
        "hooks": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_slurm_images.hooks.slurm", "airflow_slurm_images.hooks.registry"],
            }
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_slurm_images.triggers.images", "airflow_slurm_images.triggers.registry"],
            }
        ],
        "connection-types": [connection_type(), registry_connection_type()],
        "asset-uris": [
            {
                "schemes": ["sqsh"],
                "handler": "airflow_slurm_images.assets.sanitize_uri",
                "factory": "airflow_slurm_images.assets.create_asset",
                "to_openlineage_converter": "airflow_slurm_images.assets.convert_asset_to_openlineage",
            }
        ],
        "config": {
            "slurm_images": {
                "description": "Settings of the Slurm images provider.",
                "options": {
                    "deployment_id": {
                        "description": "Name of this Airflow deployment; part of every run key, so that two "
                        "deployments with the same DAGs never take each other's jobs. Default: derived from "
                        "the API base URL.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "prod-eu",
                        "default": "",
                    }
                },
            }
        },
    }
