# SPDX-License-Identifier: Apache-2.0
"""OciImportOperator through ``dag.test()`` on a real cluster: record, log, mapping, templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Param

from airflow_slurm_images.core.records import ImageRecord
from airflow_slurm_images.operators.images import OciImportOperator
from tests.airflow.dag_runs import DagRunner, Run
from tests.cluster.box import Box
from tests.cluster.image_recipes import CLIENT_DISTRIBUTIONS, VLLM_EXECUTABLE, VLLM_VERSION
from tests.cluster.slurm_daemons import CLOSED_PARTITION

KINDS = {"client": ("client", 0), "serving": ("serving", 1), "generic": ("nopython", 2)}
PHASES = ["verify", "claim", "space", "manifest", "import", "check", "examine", "inspect", "hash", "store", "done"]


@pytest.fixture
def imports(run_dag: DagRunner, images: dict[str, str], kept_runs: dict[str, Run]) -> Run:
    """One mapped task: an image of each kind."""
    if "imports" not in kept_runs:
        with DAG("imports", schedule=None) as dag:
            OciImportOperator.partial(task_id="task", if_present="reimport", poll_interval=1).expand_kwargs(
                [{"image": images[image], "name": f"my-{kind}", "kind": kind} for kind, (image, _) in KINDS.items()]
            )
        kept_runs["imports"] = run_dag(dag)
    return kept_runs["imports"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_has_exactly_the_keys_of_the_contract(
    imports: Run, images: dict[str, str], box: Box, kind: str
) -> None:
    image, index = KINDS[kind]
    record = imports.record(map_index=index)
    assert list(record) == [
        *("schema_version", "operation", "name", "cluster", "source"),
        *("sqsh", "inspection", "image", "job", "reused"),
    ]
    reference, digest = images[image], images[image].partition("@")[2]
    expected = {
        "reference": reference,
        "registry": box.registry,
        "repository": f"images/{image}",
        "requested_tag": "latest",
        "oci_digest": digest,
    }
    assert expected.items() <= record["source"].items()  # what was verified of the manifest may follow
    sqsh = record["sqsh"]
    assert sqsh == {
        "path": f"{box.workspace}/store/sha256/{sqsh['sha256']}.sqsh",
        "alias_path": f"{box.workspace}/aliases/my-{kind}.sqsh",
        "sha256": sqsh["sha256"],
        "size_bytes": Path(sqsh["path"]).stat().st_size,
        "managed": True,
    }
    assert set(record["inspection"]) == {"schema_version", "inspector_version", "sqsh_sha256", "inspection"}
    assert record["inspection"]["sqsh_sha256"] == sqsh["sha256"]
    job = record["job"]
    assert set(job) == {"job_id", "cluster", "node", "state", "elapsed_seconds", "run_directory"}
    assert (job["node"], job["state"], job["cluster"]) == (box.node, "COMPLETED", box.cluster_name)
    assert (record["operation"], record["name"], record["reused"]) == ("import_oci", f"my-{kind}", False)
    assert record["cluster"] == box.cluster_name
    assert record["image"]["architecture"] == "amd64"


def test_the_facts_of_each_kind(imports: Run) -> None:
    client, serving, generic = (imports.record(map_index=index)["inspection"]["inspection"] for index in range(3))
    assert set(client) == {
        *("kind", "python_implementation", "python_version", "python_abi"),
        *("distributions", "installer_path", "installer_version"),
    }
    assert {"name": "tinylib", "version": CLIENT_DISTRIBUTIONS["tinylib"]} in client["distributions"]
    assert serving == {
        "kind": "serving",
        "server_type": "vllm",
        "runtime_version": VLLM_VERSION,
        "executable_path": VLLM_EXECUTABLE,
    }
    assert generic == {"kind": "generic"}


def test_the_xcom_is_plain_json_that_reads_back_strictly(imports: Run) -> None:
    for index in range(3):
        record = imports.record(map_index=index)
        assert "__classname__" not in json.dumps(record)
        assert ImageRecord.model_validate_json(json.dumps(record)).model_dump(mode="json") == record


def test_each_mapped_image_has_a_job_and_an_alias_of_its_own(imports: Run, box: Box) -> None:
    assert imports.states() == {f"task[{index}]": "success" for index in range(3)}
    records = [imports.record(map_index=index) for index in range(3)]
    assert len({record["job"]["job_id"] for record in records}) == 3
    assert len({Path(record["job"]["run_directory"]).parent for record in records}) == 3
    for record in records:
        alias = Path(record["sqsh"]["alias_path"])
        assert alias.resolve() == Path(record["sqsh"]["path"])
        published = json.loads(alias.with_suffix(".json").read_text())
        assert {key: published[key] for key in record} == record


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_tells_plan_job_phases_and_result(imports: Run, images: dict[str, str], kind: str) -> None:
    image, index = KINDS[kind]
    record, log = imports.record(map_index=index), imports.log_of(map_index=index)
    assert imports.phases_of(map_index=index) == [phase for phase in PHASES if phase != "inspect" or kind != "generic"]
    plan = log.index(f"Plan: import_oci {images[image]}")
    submitted = log.index(f"Submitted job {record['job']['job_id']}")
    running = log.index("asi: phase verify")
    result = log.index(f"Image: {record['sqsh']['path']}")
    assert plan < submitted < running < result
    assert f"kind {kind}, alias my-{kind}, workspace" in log[plan:submitted]
    assert f"run directory {record['job']['run_directory']}" in log[plan:submitted]
    summary = log[result:]
    assert f"SHA-256 {record['sqsh']['sha256']}" in summary
    assert f"alias {record['sqsh']['alias_path']}" in summary
    assert {"client": "Python 3.", "serving": f"vllm {VLLM_VERSION}", "generic": "amd64"}[kind] in summary


# -- templates


def test_template_fields_are_those_of_the_contract() -> None:
    assert set(OciImportOperator.template_fields) == {
        *("image", "name", "kind", "profile", "required_distributions"),
        *("slurm_conn_id", "registry_conn_id", "arch"),
    }


@pytest.fixture
def submitted_plan(run_dag: DagRunner, box: Box) -> Callable[..., dict[str, Any]]:
    """The plan of what a DAG's one task submits; the job itself never starts."""

    def submit(dag: DAG, conf: dict[str, Any] | None = None) -> dict[str, Any]:
        job = run_dag(dag, conf).record()
        box.as_user(["scancel", f"--name={job['job_name']}"], check=True)
        plan = json.loads((Path(job["run_directory"]) / "plan.json").read_text())
        assert isinstance(plan, dict)
        return plan

    return submit


def test_all_template_fields_are_rendered(
    submitted_plan: Callable[..., dict[str, Any]],
    images: dict[str, str],
    box: Box,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", box.connection_json)
    params = {"image": Param(type="string"), "kind": "client", "arch": "amd64", "needs": "tinylib>=1", "memory": "900M"}
    with DAG("templates", schedule=None, params=params) as dag:
        OciImportOperator(
            task_id="task",
            image="{{ params.image }}",
            name="{{ dag.dag_id }}-{{ task.task_id }}",
            kind="{{ params.kind }}",
            profile={
                "partition": CLOSED_PARTITION,
                "memory": "{{ params.memory }}",
                "cpus_per_task": "{{ 1 + 1 }}",
                "path_prepend": ["/opt/{{ 1 }}"],
            },
            required_distributions=["{{ params.needs }}", "pip"],
            slurm_conn_id="{{ 'other' }}",
            registry_conn_id="{{ '' }}",
            arch="{{ params.arch }}",
            if_present="reimport",
            wait_for_completion=False,
        )
    plan = submitted_plan(dag, {"image": images["client"]})
    expected = {
        "operation": "import_oci",
        "image": images["client"],
        "name": "templates-task",
        "kind": "client",
        "arch": "x86_64",
        "required_distributions": ["tinylib>=1", "pip"],
    }
    assert {key: plan["request"][key] for key in expected} == expected
    profile = plan["profile"]
    assert (profile["memory"], profile["cpus_per_task"], profile["path_prepend"]) == ("900M", 2, ["/opt/1"])
    assert profile["insecure_registries"] == [box.registry]  # what is not overridden is the connection's


def test_one_template_may_render_the_whole_profile_and_a_list(
    submitted_plan: Callable[..., dict[str, Any]], images: dict[str, str]
) -> None:
    """Jinja makes text of everything: Python's way, or JSON with ``tojson``."""
    params = {
        "profile": {"partition": CLOSED_PARTITION, "memory": "900M", "inspect_timeout": 60},
        "needs": ["tinylib", "pip>=1"],
    }
    with DAG("whole_profile", schedule=None, params=params) as dag:
        OciImportOperator(
            task_id="task",
            image=images["client"],
            name="whole",
            profile="{{ params.profile }}",
            required_distributions="{{ params.needs | tojson }}",
            if_present="reimport",
            wait_for_completion=False,
        )
    plan = submitted_plan(dag)
    assert (plan["profile"]["memory"], plan["profile"]["inspect_timeout"]) == ("900M", 60)
    assert plan["request"]["required_distributions"] == ["tinylib", "pip>=1"]
