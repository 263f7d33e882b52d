# SPDX-License-Identifier: Apache-2.0
"""The main job, told in a few lines: import and inspect a real image on a local cluster, through Airflow.

Run by `make demo`. The cluster lives as long as the run; its files and the Airflow home stay for looking at, in a
directory that the next run of this checkout replaces.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import images
from .box import Box
from .conftest import enroot_on_this_machine

CHECKOUT = Path(__file__).resolve().parents[2]
LAST_RUN = CHECKOUT / ".cache" / "demo"


def main() -> int:
    started = time.monotonic()
    home = _fresh_directory()
    enroot = enroot_on_this_machine()
    _say("Building the test image (kept between runs) and starting a one-node Slurm cluster, sshd and a registry")
    layouts = images.build_all()
    with Box(home / "cluster", accounting=False, enroot_dir=enroot) as box:
        digest = images.push_layout(box.registry, layouts["client"], "demo/client", "1.0")
        image = f"{box.registry}/demo/client:1.0@{digest}"
        _say(f"Cluster {box.cluster_name} is up, Enroot is {enroot / 'enroot'}")
        _say(f"Triggering the example DAG with image {image}")
        record = _run_dag(home, box, {"image": image, "name": "demo", "kind": "client"})
    if record is None:
        _say("The run failed; the log above says why")
        return 1
    print(json.dumps(record, indent=2))
    _say(f"Done in {time.monotonic() - started:.0f} s")
    _say(f"The alias is {record['sqsh']['alias_path']} -> {record['sqsh']['path']}")
    _say("To look at the run and its XComs in the Airflow UI, start this and log in as admin; Ctrl-C stops it")
    print(
        "    (the password is printed at the first start and stays in $AIRFLOW_HOME, in\n"
        "    simple_auth_manager_passwords.json.generated; task logs are not kept):"
    )
    print(
        f"    AIRFLOW_HOME={home / 'airflow'} AIRFLOW__CORE__LOAD_EXAMPLES=False "
        f"AIRFLOW__CORE__DAGS_FOLDER={CHECKOUT / 'dags_examples'} "
        f"{Path(sys.executable).parent / 'airflow'} api-server --host 127.0.0.1 --port 8080\n"
        "    then open http://127.0.0.1:8080/dags/import_image"
    )
    return 0


def _fresh_directory() -> Path:
    """Replace the last run's directory; ordinary users must be able to enter it, so it is not in the checkout."""
    LAST_RUN.parent.mkdir(exist_ok=True)
    if LAST_RUN.is_symlink():
        shutil.rmtree(LAST_RUN.resolve(), ignore_errors=True)
        LAST_RUN.unlink()
    home = Path(tempfile.mkdtemp(prefix="asi-demo-", dir="/var/tmp"))
    home.chmod(0o755)
    LAST_RUN.symlink_to(home)
    return home


def _run_dag(home: Path, box: Box, conf: dict[str, Any]) -> dict[str, Any] | None:
    """Run the example DAG in this process, on a metadata database of its own; returns the record from XCom."""
    os.environ |= {
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags_examples"),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": _bundles(),
        "PYTHONWARNINGS": "ignore",
        "AIRFLOW_CONN_SLURM_DEFAULT": box.connection_json,
    }
    # Airflow reads its configuration when it is imported.
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    bag = DagBag(dag_folder=str(CHECKOUT / "dags_examples" / "import_image.py"))
    if bag.import_errors:
        raise SystemExit(f"the example DAG does not load: {bag.import_errors}")
    with create_session() as session:
        session.merge(DagBundleModel(name="demo"))
    sync_bag_to_db(bag, "demo", "1")
    run = bag.dags["import_image"].test(run_conf=conf)
    return _record(run)


def _bundles() -> str:
    return json.dumps(
        [
            {
                "name": "demo",
                "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                "kwargs": {"path": str(CHECKOUT / "dags_examples")},
            }
        ]
    )


def _record(run: Any) -> dict[str, Any] | None:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(run_id=run.run_id, key="return_value", dag_ids=run.dag_id)
        for row in session.scalars(query):
            value = XComModel.deserialize_value(row)
            if isinstance(value, dict) and "sqsh" in value:
                return value
    return None


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
