# SPDX-License-Identifier: Apache-2.0
"""A Slurm, an Enroot and a login node small enough for unit tests: real scripts run against them, without SSH."""
