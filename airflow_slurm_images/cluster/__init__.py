# SPDX-License-Identifier: Apache-2.0
"""Files that run on the cluster: constant bytes, checked by SHA-256."""
