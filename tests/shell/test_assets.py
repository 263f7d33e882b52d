# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.providers.common.compat.sdk import DAG, BaseOperator

from airflow_slurm_images import assets
from airflow_slurm_images.core.records import ImageRecord
from tests.shell.workspace import DIGEST, Workspace


@pytest.fixture
def record(tmp_path: Any) -> ImageRecord:
    ws = Workspace(tmp_path / "ws")
    return ImageRecord.model_validate_json(ws.record(ws.add("one"), kind="client"))


class Outlets(dict[Any, Any]):
    """Collects what is emitted."""

    def __getitem__(self, outlet: Any) -> Outlets:
        return self.setdefault(outlet.name, Outlets())  # type: ignore[no-any-return]

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        self.update(event=(asset.uri, extra))


def test_an_image_has_one_uri_whatever_the_case_of_the_cluster() -> None:
    assert assets.image_uri("Lab", "vLLM") == "sqsh://lab/vLLM"
    assert assets.image_asset("Lab", "vLLM").uri == "sqsh://lab/vLLM"
    assert assets.image_uri("", "a") == "sqsh://default/a"


@pytest.mark.parametrize(
    "uri",
    ["sqsh://lab", "sqsh://lab/", "sqsh:///a", "sqsh://lab/a/b", "sqsh://lab/a?x=1", "sqsh://l ab/a", "sqsh://lab/.a"],
)
def test_any_other_form_of_uri_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="sqsh://<cluster>/<alias>"):
        assets.sanitize_uri(urlsplit(uri))


def test_the_event_tells_identities_kind_and_versions(record: ImageRecord) -> None:
    extra = assets.event_extra(record)
    assert (extra["oci_digest"], extra["sha256"], extra["kind"]) == (DIGEST, record.sqsh.sha256, "client")
    assert extra["versions"] == {"python": "3.12.1", "installer": "24.0"}


@pytest.mark.parametrize(
    ("moved", "unchanged", "emitted"), [(True, False, True), (False, False, False), (False, True, True)]
)
def test_only_a_moved_alias_emits_unless_asked(
    record: ImageRecord, moved: bool, unchanged: bool, emitted: bool
) -> None:
    context = {"outlet_events": Outlets()}
    outlet = assets.task_outlet(BaseOperator(task_id="import_image"))
    assert assets.emit(context, outlet, record, moved=moved, unchanged=unchanged) is emitted
    if emitted:
        uri, extra = context["outlet_events"][outlet].get("event", ("", {}))
        assert (uri, extra["sha256"]) == ("sqsh://lab/vllm", record.sqsh.sha256)


def test_tasks_of_two_dags_have_aliases_of_their_own() -> None:
    with DAG("first", schedule=None):
        first = BaseOperator(task_id="task")
    second = BaseOperator(task_id="task", dag=DAG("second", schedule=None))
    names = [assets.task_outlet(task).name for task in (first, second, BaseOperator(task_id="task"))]
    assert names == ["slurm-images:first.task", "slurm-images:second.task", "slurm-images:task"]


def test_openlineage_takes_the_cluster_as_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow.providers.common.compat.openlineage.facet.Dataset", SimpleNamespace)
    dataset = assets.convert_asset_to_openlineage(assets.image_asset("lab", "vllm"), None)
    assert (dataset.namespace, dataset.name) == ("sqsh://lab", "vllm")
