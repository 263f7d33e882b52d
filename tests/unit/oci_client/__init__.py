# SPDX-License-Identifier: Apache-2.0
"""The registry client against a registry that misbehaves, on loopback."""
