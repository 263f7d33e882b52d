# SPDX-License-Identifier: Apache-2.0
"""Pure core: no Airflow, no input or output, no clock."""
