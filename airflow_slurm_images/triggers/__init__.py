# SPDX-License-Identifier: Apache-2.0
"""Triggers for deferred waiting."""
