# SPDX-License-Identifier: Apache-2.0
"""Sensors for jobs that an operator only submitted."""
