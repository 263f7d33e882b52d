# SPDX-License-Identifier: Apache-2.0
"""Made-up Python environments for the inspector's tests: prefixes, site-packages, console scripts."""
