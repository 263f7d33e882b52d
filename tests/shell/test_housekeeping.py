# SPDX-License-Identifier: Apache-2.0
"""The hook's catalog verbs and the housekeeping operators, with the real shell code behind a hook without SSH."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.housekeeping import PruneRules
from airflow_slurm_images.core.profile import ClusterProfile
from airflow_slurm_images.core.remote import RemoteResult
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.operators import housekeeping, verify
from airflow_slurm_images.operators.housekeeping import ImagePruneOperator
from airflow_slurm_images.operators.verify import ImageVerifyOperator
from tests.shell.workspace import Workspace


class LocalHook(SlurmHook):
    """Runs the verbs of the real hook here instead of over SSH."""

    ws: Workspace
    budgets: list[str]

    def __init__(self, *_: object) -> None: ...

    @property
    def profile(self) -> ClusterProfile:
        return ClusterProfile(workspace_root=str(self.ws.root))

    def run(
        self,
        verb: str,
        variables: Mapping[str, str] | None = None,
        payload: bytes = b"",
        *,
        cluster: str | None = None,
        timeout: float = 100.0,
    ) -> RemoteResult:
        constants = dict(variables or {})
        if verb == "prune" and self.budgets:
            constants["ASI_BUDGET_SECONDS"] = self.budgets.pop(0)
        result = self.ws.run(verb, constants, payload)
        result.raise_refusal()
        return result

    def close(self) -> None: ...


class TaskInstance:
    def xcom_push(self, key: str, value: Any) -> None: ...


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    ws = Workspace(tmp_path.resolve() / "ws")
    monkeypatch.setattr(LocalHook, "ws", ws, raising=False)
    monkeypatch.setattr(LocalHook, "budgets", [], raising=False)
    monkeypatch.setattr(housekeeping, "SlurmHook", LocalHook)
    for content in ("one", "two", "three"):
        ws.publish(ws.add(content))
    return ws


def prune(**arguments: Any) -> dict[str, Any]:
    return ImagePruneOperator(task_id="prune", **arguments).execute({"ti": TaskInstance()})


def test_the_hook_lists_images_and_tells_their_history(ws: Workspace) -> None:
    hook = LocalHook()
    assert [(image.name, image.number) for image in hook.list_images()] == [("vllm", 3)]
    assert hook.get_image("vllm").path == str(ws.add("three"))
    assert [image.number for image in hook.image_history("vllm")] == [3, 2, 1]


@pytest.mark.parametrize("name", ["nothing", "../etc", "-x"])
def test_an_alias_that_is_not_there_is_a_clear_error(ws: Workspace, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="alias"):
        LocalHook().get_image(name)


def test_prune_returns_what_it_did(ws: Workspace) -> None:
    one = ws.add("one")
    report = prune(keep_last="2", grace_days="0", run_days=None)
    assert report["counts"] == {"image trashed": 1, "version removed": 1}
    ws.age(ws.root / "store/.trash" / one.stem, 86400)
    report = prune(keep_last="2", run_days=None)
    assert report["counts"] == {"image removed": 1}
    assert report["freed_bytes"] == 3
    assert not ws.add("one").with_suffix(".json").exists()


@pytest.mark.parametrize("text", [True, "True", "true", "1"])
def test_a_rehearsal_removes_nothing(ws: Workspace, text: object) -> None:
    report = prune(keep_last=1, grace_days=0, run_days="", dry_run=text)
    assert report["dry_run"] is True
    assert report["counts"]["version removed"] == 2
    assert len(list(ws.store.glob("*.sqsh"))) == 3


def test_prune_comes_again_until_all_is_done(ws: Workspace) -> None:
    LocalHook.budgets = ["0", "60"]
    report = LocalHook().prune(PruneRules(keep_last=1, run_days=None))
    assert report.complete
    assert LocalHook.budgets == []


@pytest.mark.parametrize(
    "wrong", [{"keep_last": 0}, {"keep_last": "x"}, {"keep_days": -1}, {"max_cache": "much"}, {"dry_run": "perhaps"}]
)
def test_a_wrong_rule_is_refused_before_anything_is_removed(ws: Workspace, wrong: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match=next(iter(wrong))):
        prune(**wrong)
    assert len(list(ws.store.glob("*.sqsh"))) == 3


def test_the_rules_are_rendered_as_templates() -> None:
    operator = ImagePruneOperator(
        task_id="prune", keep_last="{{ 1 + 1 }}", dry_run="{{ 1 == 1 }}", run_days="{{ none }}"
    )
    operator.render_template_fields({})
    assert operator.rules().keep_last == 2
    assert operator.rules().run_days is None
    assert operator.rehearse == "True"


def test_verify_inspects_the_file_the_alias_names(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = ImageVerifyOperator(task_id="verify", name="vllm")
    monkeypatch.setattr(operator, "_hook", LocalHook)
    request = operator.build_request()
    assert (request.path, request.name, request.kind) == (str(ws.add("three")), None, "generic")


def test_the_same_bytes_are_no_drift_and_other_bytes_are(ws: Workspace) -> None:
    versions = LocalHook().image_history("vllm")
    file = ws.add("three")
    assert verify.compare(versions, str(file), file.stem)["drift"] is False
    report = verify.compare(versions, str(file), "0" * 64)
    assert (report["drift"], report["number"], report["recorded_sha256"]) == (True, 3, file.stem)


def test_a_damaged_file_is_drift_also_where_nothing_usable_was_recorded(ws: Workspace) -> None:
    file = ws.add("three")
    versions = [replace(version, record=None, problem="not JSON") for version in LocalHook().image_history("vllm")]
    assert verify.compare(versions, str(file), None, "the SquashFS file is incomplete")["drift"] is True


def test_verify_of_an_alias_that_moved_meanwhile_compares_the_file_it_hashed(ws: Workspace) -> None:
    file = ws.add("two")
    assert verify.compare(LocalHook().image_history("vllm"), str(file), file.stem)["number"] == 2
    gone = verify.compare(LocalHook().image_history("vllm"), "/elsewhere", "0" * 64)
    assert (gone["drift"], gone["number"]) == (False, None)
    assert gone["notes"]


@pytest.mark.parametrize("nothing", [None, "", "None"])
@pytest.mark.parametrize("field", ["grace_days", "trash_days"])
def test_a_grace_period_that_a_template_lost_is_not_no_grace_period(field: str, nothing: object) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        operator = ImagePruneOperator(task_id="prune")
        setattr(operator, field, nothing)  # as rendering a template leaves it
        operator.rules()


def test_the_trash_is_never_emptied_at_once() -> None:
    with pytest.raises(InvalidRequestError, match="trash_days"):
        ImagePruneOperator(task_id="prune", trash_days=0).rules()
    assert ImagePruneOperator(task_id="prune", grace_days="0").rules().grace_days == 0
