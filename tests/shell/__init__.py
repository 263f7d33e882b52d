# SPDX-License-Identifier: Apache-2.0
"""The shell files of ``cluster/``, run for real on a fake Slurm, without SSH."""
