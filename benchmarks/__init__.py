# SPDX-License-Identifier: Apache-2.0
"""Measurements behind docs/performance.md; each module with a command line says how it is called."""
