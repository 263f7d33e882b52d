# SPDX-License-Identifier: Apache-2.0
"""A private Airflow for one test process: importing this settles all configuration, so it comes before Airflow.

Everything lives below one temporary directory that is removed at exit; nothing of the caller's Airflow counts.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path


def _settle() -> Path:
    if "airflow.settings" in sys.modules:
        raise RuntimeError("airflow was imported before tests.airflow.environment: its own configuration would count")
    home = Path(tempfile.mkdtemp(prefix="asi-airflow-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "dags").mkdir()
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        del os.environ[name]
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__CORE__FERNET_KEY": "",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "AIRFLOW__SLURM_IMAGES__DEPLOYMENT_ID": "tests",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    return home


HOME = _settle()
