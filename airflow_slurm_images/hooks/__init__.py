# SPDX-License-Identifier: Apache-2.0
"""The only modules that talk to the outside world."""
