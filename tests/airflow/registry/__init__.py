# SPDX-License-Identifier: Apache-2.0
"""Hook and operator of registries against real ones."""
