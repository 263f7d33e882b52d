# SPDX-License-Identifier: Apache-2.0
"""The job at a registry."""
