# SPDX-License-Identifier: Apache-2.0
"""Airflow provider that imports, inspects and publishes Enroot images on a Slurm cluster."""

from __future__ import annotations

__version__ = "0.1.0"
