# SPDX-License-Identifier: Apache-2.0
"""What Airflow learns about the package: metadata, connection forms, public names, no warnings."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow
import pytest
from jsonschema.validators import validator_for

from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.get_provider_info import get_provider_info

PUBLIC = {
    "airflow_slurm_images.operators.images": ["OciImportOperator", "SqshInspectOperator", "OciResolveOperator"],
    "airflow_slurm_images.sensors.images": ["SlurmJobSensor"],
    "airflow_slurm_images.triggers.images": ["SlurmJobTrigger"],
    "airflow_slurm_images.hooks.slurm": ["SlurmHook"],
    "airflow_slurm_images.hooks.registry": ["OciRegistryHook"],
    "airflow_slurm_images.core.records": ["ImageRecord", "InspectionRecord", "ClusterProfile", "LifecyclePlan"],
    "airflow_slurm_images.core.reference": ["ImageReference"],
}


def schema(name: str) -> Any:
    return json.loads((Path(airflow.__file__).parent / name).read_text())


def validate(value: Any, rules: Any) -> None:
    validator_for(rules)(rules).validate(value)


def in_a_fresh_interpreter(code: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_metadata_fits_airflows_schemas() -> None:
    info = get_provider_info()
    validate(info, schema("provider_info.schema.json"))
    rules = schema("provider.yaml.schema.json")["properties"]
    for key in ("connection-types", "config", "integrations", "operators", "sensors", "hooks", "triggers"):
        validate(info[key], {**rules[key], "definitions": schema("provider.yaml.schema.json").get("definitions", {})})
    json.dumps(info)


def test_every_module_and_class_of_the_metadata_exists() -> None:
    info = get_provider_info()
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for entry in info[kind]:
            assert entry["integration-name"] in {item["integration-name"] for item in info["integrations"]}
            for module in entry["python-modules"]:
                importlib.import_module(module)
    for connection in info["connection-types"]:
        module, _, name = connection["hook-class-name"].rpartition(".")
        hook = getattr(importlib.import_module(module), name)
        assert (hook.conn_type, hook.hook_name) == (connection["connection-type"], connection["hook-name"])


def test_airflow_lists_the_provider_and_its_connection_types() -> None:
    code = (
        "from airflow.providers_manager import ProvidersManager as M; m = M();"
        "p = m.providers['airflow-provider-slurm-images'];"
        "print('ANSWER', p.version, p.data['name'], *sorted(t for t in ('slurm_ssh', 'oci_registry') if t in m.hooks))"
    )
    assert "Slurm images oci_registry slurm_ssh" in in_a_fresh_interpreter(code)


def test_the_command_line_lists_the_provider() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "list", "--output", "json"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    names = [row["package_name"] for row in json.loads(done.stdout[done.stdout.index("[{") :])]
    assert "airflow-provider-slurm-images" in names


def test_the_form_asks_for_every_profile_field_and_loads_no_hook() -> None:
    code = (
        "import json, sys; from airflow_slurm_images.get_provider_info import get_provider_info as g; i = g();"
        "print(json.dumps([i['connection-types'][0], sorted(m for m in sys.modules if '.hooks.' in m)]))"
    )
    form, modules = json.loads(in_a_fresh_interpreter(code))
    assert "airflow_slurm_images.hooks.slurm" not in modules and "airflow.providers.ssh.hooks.ssh" not in modules
    fields = form["conn-fields"]
    assert set(ClusterProfile.model_fields) < set(fields)
    for name, field in fields.items():
        assert field["label"] and len(field["description"]) > 10, name
    assert {name for name, field in fields.items() if field["schema"].get("format") == "password"} == {
        *("private_key", "private_key_passphrase")
    }


def test_what_the_form_shows_as_defaults_are_the_defaults() -> None:
    """A user who saves the form untouched must get the same profile as one who writes no field at all."""
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    shown = {name: field["schema"]["default"] for name, field in fields.items() if "default" in field["schema"]}
    untouched = {name: shown.get(name) for name in fields} | {"workspace_root": "/ws"}
    assert ClusterProfile.from_author(untouched) == ClusterProfile.from_author({"workspace_root": "/ws"})


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_there(module: str) -> None:
    found = importlib.import_module(module)
    for name in PUBLIC[module]:
        assert getattr(found, name).__doc__


def test_no_import_warns_on_this_airflow() -> None:
    imports = "; ".join(f"from {module} import {', '.join(names)}" for module, names in PUBLIC.items())
    in_a_fresh_interpreter(f"{imports}; import airflow_slurm_images.get_provider_info", "-W", "error")
