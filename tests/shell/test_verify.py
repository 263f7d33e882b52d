# SPDX-License-Identifier: Apache-2.0
"""Verifying a file that is damaged or gone: drift, told with what was found; and the advice leads out of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.errors import IntegrityError, JobFailedError
from airflow_slurm_images.core.records import ImageRecord
from airflow_slurm_images.core.requests import build_inspect
from airflow_slurm_images.lifecycle import Finished, Work
from airflow_slurm_images.operators import verify
from airflow_slurm_images.operators.verify import ImageVerifyOperator
from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import import_request
from tests.shell.test_whole_story import Story, imported, story  # noqa: F401 - fixtures


class Clock:
    """Time that passes by sleeping only; ``meanwhile`` is called at every sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(verify, "time", made)
    return made


class Verification:
    """One run of the operator for the alias ``name``."""

    def __init__(self, of: Story, name: str = "tool", **options: Any) -> None:
        self.story = of
        self.operator = ImageVerifyOperator(task_id="verify", name=name, **options)
        self.operator.__dict__["_hook"] = of.cluster.new_hook
        self.work = Work(self.operator.build_request(), "e" * 32, 1, False, "lab", {})

    def finish(self) -> Finished:
        handle = self.story.begin(self.work)
        self.story.wait(handle)
        return self.story.lifecycle.finish(handle)

    def report(self) -> dict[str, Any]:
        return self.operator._ended({}, self.finish)


def overwrite(file: Path, data: bytes) -> None:
    file.chmod(0o600)
    file.write_bytes(data)
    file.chmod(0o400)


def as_a_link(file: Path) -> None:
    file.rename(file.parents[2] / "elsewhere")
    file.symlink_to(file.parents[2] / "elsewhere")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda file: overwrite(file, file.read_bytes()[:-8192]), "incomplete"),
    "no header": (lambda file: overwrite(file, bytes(4096) + file.read_bytes()[4096:]), "not a SquashFS file"),
    "empty": (lambda file: overwrite(file, b""), "not a SquashFS file"),
    "gone": (Path.unlink, "not there"),
    "a link": (as_a_link, "no regular file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_damaged_or_gone_is_drift_and_told(
    story: Story,  # noqa: F811
    imported: ImageRecord,  # noqa: F811
    clock: Clock,
    damage: str,
) -> None:
    file = Path(imported.sqsh.path)
    harm, words = DAMAGE[damage]
    harm(file)
    report = Verification(story, fail_on_drift=False).report()
    assert (report["drift"], report["sha256"], report["recorded_sha256"]) == (True, None, file.stem)
    assert (report["name"], report["number"], report["path"]) == ("tool", 1, str(file))
    assert words in "; ".join(report["notes"])
    with pytest.raises(IntegrityError, match=words) as caught:
        Verification(story).report()
    assert str(file) in caught.value.message


def test_a_file_as_recorded_is_no_drift(story: Story, imported: ImageRecord) -> None:  # noqa: F811
    report = Verification(story).report()
    assert (report["drift"], report["sha256"], report["notes"]) == (False, imported.sqsh.sha256, [])


def test_a_file_that_the_node_sees_later_is_not_gone(
    story: Story,  # noqa: F811
    imported: ImageRecord,  # noqa: F811
    clock: Clock,
) -> None:
    file, hidden = Path(imported.sqsh.path), story.cluster.workspace / "hidden"
    run = Verification(story, fail_on_drift=False)
    file.rename(hidden)
    clock.meanwhile = lambda: clock.now > 15 and hidden.exists() and hidden.rename(file)
    with pytest.raises(JobFailedError) as caught:
        run.report()
    assert caught.value.reason == "source_not_visible"
    assert clock.now > 15


def test_a_file_outside_the_store_that_nobody_sees_may_be_on_another_node(
    story: Story,  # noqa: F811
    clock: Clock,
) -> None:
    given = story.cluster.slurm.enroot / "given.sqsh"
    given.write_bytes(image("plain").read_bytes())
    handle = story.begin(story.work(build_inspect(path=str(given), name="mine", kind="generic")))
    story.wait(handle)
    story.finish(handle)
    given.unlink()
    with pytest.raises(JobFailedError) as caught:
        Verification(story, "mine", fail_on_drift=False).report()
    assert caught.value.reason == "source_not_visible"


def test_a_failure_of_the_job_itself_is_no_drift(
    story: Story,  # noqa: F811
    imported: ImageRecord,  # noqa: F811
) -> None:
    run = Verification(story, fail_on_drift=False)

    def no_tool() -> Finished:
        handle = story.begin(run.work)
        raise JobFailedError(
            "no room", reason="no_space", details={"reason": "no_space", "run_directory": handle.run_directory}
        )

    with pytest.raises(JobFailedError, match="no room"):
        run.operator._ended({}, no_tool)


@pytest.mark.parametrize("damage", ["other bytes", "cut"])
def test_the_advice_after_a_drift_leads_to_the_image_again(
    story: Story,  # noqa: F811
    imported: ImageRecord,  # noqa: F811
    damage: str,
) -> None:
    file = Path(imported.sqsh.path)
    whole, stat = file.read_bytes(), file.stat()
    overwrite(file, whole[:-1] + bytes([whole[-1] ^ 1]) if damage == "other bytes" else whole[:-8192])
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(IntegrityError) as caught:
        Verification(story).report()
    assert f"{file} is never overwritten: move it away by hand, then import" in str(caught.value.remedy)

    again = story.begin(story.work(generation=2))  # with the file still there
    with pytest.raises(IntegrityError, match="nothing was overwritten") as refused:
        story.wait(again)
    assert "move it away by hand, then import again" in str(refused.value.remedy)

    file.rename(story.cluster.workspace / "moved away")
    work = Work(import_request("client"), "d" * 32, 1, False, "lab", {})
    handle = story.begin(work)
    story.wait(handle)
    assert story.finish(handle).sqsh == imported.sqsh
    assert file.read_bytes() == whole
    assert story.import_again().record.reused
