# SPDX-License-Identifier: Apache-2.0
"""Operators: thin, parameters to request to lifecycle to XCom."""
