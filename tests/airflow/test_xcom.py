# SPDX-License-Identifier: Apache-2.0
"""What an image says of itself travels through Airflow's XCom as data: it builds no object and breaks no task."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.bases.xcom import BaseXCom

from airflow_slurm_images.core.image_record import assemble
from tests.unit import records

ORDERS = [
    {"__type": "airflow.sdk.definitions.asset.Asset", "__var": {"uri": "x://y"}},
    {"__classname__": "airflow.sdk.definitions.asset.Asset", "__version__": 1, "__data__": {"uri": "x://y"}},
]


def through_xcom(value: Any) -> Any:
    stored = json.loads(json.dumps(BaseXCom.serialize_value(value)))
    return BaseXCom.deserialize_value(SimpleNamespace(value=stored))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_airflow_acts_on_such_keys(order: dict[str, Any]) -> None:
    """Otherwise there would be nothing to leave out."""
    try:
        arrived = through_xcom({"labels": order})
    except (AttributeError, TypeError, ValueError):
        return
    assert arrived != {"labels": order}


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_the_record_arrives_as_it_was_sent(order: dict[str, Any]) -> None:
    labels = {key: str(value) for key, value in order.items()}
    lines = "".join(f"{key}={value}\n" for key, value in labels.items())
    static = {"environment": lines.encode(), "oci-config": json.dumps({"labels": labels}).encode()}
    facts = {
        "facts_version": 1,
        "inspector_version": "1.0.0",
        "kind": "serving",
        "inspection": {"kind": "serving", "server_type": "vllm", "runtime_version": "1", "executable_path": "/vllm"},
        "image": {"warnings": [], **order, "deeper": order},
    }
    plan = records.plan(records.import_request(kind="serving"))
    sent = assemble(plan, records.completion(), json.dumps(facts).encode(), static).model_dump(mode="json")
    assert through_xcom(sent) == sent
    assert "airflow.sdk.definitions" not in json.dumps(sent)
