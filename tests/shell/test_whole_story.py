# SPDX-License-Identifier: Apache-2.0
"""The lifecycle from begin to publication on the fake cluster: every shell file and parser, no stand-ins between."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images import submitting
from airflow_slurm_images.core.decide import Limits
from airflow_slurm_images.core.errors import (
    ClusterUnavailableError,
    ConflictError,
    IntegrityError,
    JobFailedError,
    NotVisibleError,
    SubmissionUnknownError,
)
from airflow_slurm_images.core.records import ImageRecord, JobHandle
from airflow_slurm_images.core.remote import TruncatedAnswerError
from airflow_slurm_images.core.requests import ImportRequest, InspectRequest, build_import
from airflow_slurm_images.hooks import ssh_exchange
from airflow_slurm_images.lifecycle import Finished, Lifecycle, Work
from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import (
    CREDENTIALS,
    REFERENCE,
    RUN_KEY,
    LocalCluster,
    import_request,
    inspect_request,
    plain_image,
    secrets_in,
)

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
LOG = logging.getLogger("tests.story")


class Story:
    """A lifecycle whose time passes by sleeping only; ``meanwhile`` is called at every sleep."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.meanwhile: Callable[[], object] = lambda: None
        self.handles: list[JobHandle] = []
        self.lifecycle = Lifecycle(
            cluster.hook, LOG, sleep=self._sleep, clock=lambda: self.now, started=self.handles.append
        )

    def _sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.1)
        self.meanwhile()

    def work(
        self, request: ImportRequest | InspectRequest | None = None, *, retry: bool = False, generation: int = 1
    ) -> Work:
        given = request or import_request("client")
        return Work(given, RUN_KEY, generation, retry, "lab", {}, if_present="reimport")

    def import_again(self, name: str = "tool", run: str = "f", kind: str = "client", **options: Any) -> Finished:
        """Another run that asks for the same image and needs no job."""
        request = build_import(image=REFERENCE, name=name, kind=kind)
        finished = self.lifecycle.begin(Work(request, run * 32, 1, False, "lab", {}, **options))
        assert isinstance(finished, Finished)
        return finished

    def begin(self, work: Work) -> JobHandle:
        """Begin something that needs a job."""
        begun = self.lifecycle.begin(work)
        assert isinstance(begun, JobHandle)
        return begun

    def finish(self, handle: JobHandle) -> ImageRecord:
        """The record at the end."""
        return self.lifecycle.finish(handle).record

    def run_jobs(self) -> None:
        """Start every pending job, as a cluster with room does."""
        for job in self.cluster.slurm.jobs():
            if job["state"] == "PENDING":
                self.cluster.slurm.run(job["id"])

    def wait(self, handle: JobHandle, **limits: float) -> None:
        self.lifecycle.wait(handle, Limits(**limits), 30, "try1")


@pytest.fixture
def story(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Story:
    monkeypatch.setattr(submitting, "LOOK_UP_SECONDS", 12.0)  # three looks are enough here
    made = Story(cluster)
    made.meanwhile = made.run_jobs
    return made


def test_an_import_ends_with_an_alias_and_its_record(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    handle = story.begin(story.work())
    assert story.handles == [handle]
    story.wait(handle)
    record = story.finish(handle)
    alias = story.cluster.workspace / "aliases/tool.sqsh"
    assert alias.resolve() == Path(record.sqsh.path)
    assert record.sqsh.alias_path == str(alias)
    assert record.inspection.sqsh_sha256 == record.sqsh.sha256
    published = json.loads((story.cluster.workspace / "aliases/tool.json").read_bytes())
    assert published["sqsh"]["sha256"] == record.sqsh.sha256
    assert record.source is not None
    assert record.source.oci_digest == "sha256:" + "a" * 64
    phases = [message for message in caplog.messages if message.startswith("asi: phase import")]
    assert len(phases) == 1  # each phase once


def test_a_lost_answer_of_sbatch_ends_with_one_job_adopted(story: Story) -> None:
    story.cluster.slurm.next_answer("sbatch", rc=1, err=TIMED_OUT, effect=True)
    handle = story.begin(story.work())
    story.wait(handle)
    story.finish(handle)
    assert [job["id"] for job in story.cluster.slurm.jobs()] == [handle.job_id]
    assert len(story.cluster.slurm.calls("sbatch")) == 1


def test_a_submission_that_did_not_happen_is_made_once_more(story: Story) -> None:
    story.cluster.slurm.next_answer("sbatch", rc=1, err=TIMED_OUT)
    handle = story.begin(story.work())
    assert story.now >= submitting.LOOK_UP_SECONDS
    assert len(story.cluster.slurm.calls("sbatch")) == 2
    assert [job["id"] for job in story.cluster.slurm.jobs()] == [handle.job_id]


def test_a_submission_that_stays_in_doubt_is_left_alone_and_told(story: Story) -> None:
    story.cluster.slurm.next_answer("sbatch", rc=1, err=TIMED_OUT)
    story.cluster.slurm.next_answer("sbatch", rc=1, err=TIMED_OUT)
    with pytest.raises(SubmissionUnknownError) as caught:
        story.begin(story.work())
    assert f"squeue --states=all --name=asi-{RUN_KEY}" in (caught.value.remedy or "")
    assert Path(caught.value.details["run_directory"], "plan.json").exists()


def test_an_ended_job_of_a_lost_answer_long_ago_is_not_taken_for_the_new_one(story: Story) -> None:
    story.cluster.slurm.next_answer("sbatch", rc=1, err=TIMED_OUT, effect=True)
    first = story.begin(story.work())
    Path(first.run_directory, "job_id").unlink(missing_ok=True)
    story.cluster.slurm.change(first.job_id, state="CANCELLED")
    story.cluster.slurm.next_answer("sbatch", rc=1, err=TIMED_OUT)
    second = story.begin(story.work(generation=2))
    assert second.job_id != first.job_id


def test_a_running_job_is_adopted_by_the_next_try(story: Story) -> None:
    first = story.begin(story.work())
    again = story.begin(story.work(retry=True))
    assert (again.job_id, again.attempt, again.token) == (first.job_id, first.attempt, first.token)
    story.wait(again)
    assert story.finish(again).job.job_id == first.job_id
    assert len(story.cluster.slurm.jobs()) == 1


def test_a_finished_attempt_is_collected_by_a_retry_and_not_by_a_cleared_task(story: Story) -> None:
    first = story.begin(story.work())
    story.wait(first)
    assert story.begin(story.work(retry=True)).attempt == first.attempt
    assert len(story.cluster.slurm.jobs()) == 1
    assert story.begin(story.work(generation=2)).attempt != first.attempt
    assert len(story.cluster.slurm.jobs()) == 2


def test_a_job_of_another_request_is_cancelled_and_gone_before_the_new_one(story: Story) -> None:
    first = story.begin(story.work())
    second = story.begin(story.work(import_request("generic"), retry=True))
    assert second.job_id != first.job_id
    assert story.cluster.slurm.job(first.job_id)["state"] == "CANCELLED"
    assert story.cluster.slurm.run(first.job_id) == 72
    story.wait(second)
    assert story.finish(second).inspection.inspection.kind == "generic"


@pytest.mark.parametrize("retry", [True, False], ids=["after a failure", "cleared after a success"])
def test_a_job_that_is_still_completing_is_seen_gone_before_the_new_one(story: Story, retry: bool) -> None:
    """A slow epilog must not cost the retries, nor give a cleared task the old result."""
    if retry:
        story.cluster.slurm.enroot_does("import", "exit 1")
    first = story.begin(story.work())
    story.run_jobs()
    story.cluster.slurm.change(first.job_id, state="COMPLETING", in_queue=True, accounted=False)
    plain_image(story.cluster)
    story.cluster.slurm.enroot_does("import", 'cp -- "${here}/image.sqsh" "${output}"')
    second = story.begin(story.work(retry=retry, generation=1 if retry else 2))
    assert second.job_id != first.job_id
    assert story.cluster.slurm.job(first.job_id)["state"] == "CANCELLED"
    story.wait(second)
    assert story.finish(second).job.job_id == second.job_id


def test_a_queue_that_cannot_be_read_submits_nothing(story: Story) -> None:
    story.cluster.slurm.next_answer("squeue", rc=1, err="slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(ClusterUnavailableError, match=r"nothing was submitted|queue cannot be read"):
        story.begin(story.work())
    assert story.cluster.slurm.calls("sbatch") == []


def test_a_failed_job_tells_phase_reason_output_and_place(story: Story) -> None:
    line = "[ERROR] URL https://reg.example/v2/acme/tool/manifests/x returned error code: 429"
    story.cluster.slurm.enroot_does("import", f'echo "{line}" >&2\nexit 1')
    handle = story.begin(story.work())
    with pytest.raises(Exception, match="limits the rate") as caught:
        story.wait(handle)
    text = str(caught.value)
    for words in ("phase import", "429", handle.run_directory, "n1", "What to do"):
        assert words in text
    assert story.cluster.slurm.calls("scancel") == []


def test_an_outage_is_warned_about_and_survived(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    handle = story.begin(story.work())
    story.meanwhile = lambda: None
    polls = 0

    def look_again() -> None:
        nonlocal polls
        polls += 1
        if polls == 6:
            story.cluster.slurm.change(handle.job_id, state="RUNNING")
        if polls == 7:
            story.cluster.slurm.run(handle.job_id)

    story.cluster.slurm.next_answer("squeue", 5, rc=1, err="Unable to contact slurm controller (connect failure)")
    story.meanwhile = look_again
    story.wait(handle)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in warnings if "poll failed" in text]) == 5
    assert story.cluster.slurm.calls("scancel") == []


def test_a_duplicate_that_claimed_the_attempt_is_followed(story: Story) -> None:
    story.meanwhile = lambda: None
    handle = story.begin(story.work())
    plan_directory = Path(handle.run_directory)
    duplicate = story.cluster.slurm.submit(plan_directory / "job.sbatch")
    assert story.cluster.slurm.run(duplicate) == 0
    assert story.cluster.slurm.run(handle.job_id) == 72
    story.wait(handle)
    assert story.finish(handle).job.job_id == duplicate


def test_a_pending_timeout_cancels_the_job_and_sees_it_gone(story: Story) -> None:
    story.meanwhile = lambda: None
    handle = story.begin(story.work())
    with pytest.raises(JobFailedError, match="pending_timeout"):
        story.wait(handle, pending_timeout=600)
    assert story.cluster.slurm.job(handle.job_id)["state"] == "CANCELLED"


# --- the login of an attempt without a job


def aged(directory: str | Path, minutes: float) -> None:
    """Make all of a directory older."""
    for path in [Path(directory), *Path(directory).rglob("*")]:
        os.utime(path, (path.stat().st_mtime - 60 * minutes,) * 2)


def test_the_login_goes_with_the_next_try_where_the_worker_died_after_staging(story: Story) -> None:
    """That try finds the image in the store and stages nothing; a late sbatch of the first one does nothing."""
    first = story.begin(story.work())
    story.wait(first)
    story.finish(first)
    plan, staged = story.cluster.stage(import_request("client"), CREDENTIALS)
    assert isinstance(story.lifecycle.begin(replace(story.work(generation=2), if_present="skip")), Finished)
    assert secrets_in(story.cluster.workspace) == []
    late = story.cluster.hook.submit(plan, staged).job
    assert late is not None and story.cluster.slurm.run(late.job_id) == 72


def test_a_look_for_the_job_leaves_an_attempt_alone_that_may_be_submitted_yet(story: Story) -> None:
    plan, staged = story.cluster.stage(import_request("client"), CREDENTIALS)
    aged(plan.attempt_directory, 600)
    story.cluster.hook.prepare(RUN_KEY)
    assert secrets_in(story.cluster.workspace) != []
    job = story.cluster.hook.submit(plan, staged).job
    assert job is not None and story.cluster.slurm.run(job.job_id) == 0


@pytest.mark.parametrize(("minutes", "gone"), [(60, False), (130, True)])
def test_the_login_of_a_submission_in_doubt_goes_when_no_job_was_seen_for_hours(
    story: Story, minutes: float, gone: bool
) -> None:
    plan, staged = story.cluster.stage(import_request("client"), CREDENTIALS)
    story.cluster.slurm.next_answer("sbatch", rc=1, err=TIMED_OUT)
    assert story.cluster.hook.submit(plan, staged).job is None
    aged(plan.attempt_directory, minutes)
    story.cluster.slurm.next_answer("squeue", rc=1, err="Unable to contact slurm controller")
    story.cluster.hook.prepare(RUN_KEY)
    assert secrets_in(story.cluster.workspace) != []
    story.cluster.hook.prepare(RUN_KEY)
    assert (secrets_in(story.cluster.workspace) == []) is gone
    late = story.cluster.hook.submit(plan, staged).job
    assert late is not None and story.cluster.slurm.run(late.job_id) == (72 if gone else 0)


@pytest.mark.parametrize(
    ("how", "before", "after"),
    [
        ("cut", b"", b""),
        ("changed", b"ASI_STAGED_SHA256='", b"ASI_STAGED_SHA256='0"),
        ("given up", b"    if [[ -e claim ]]; then", b"    mkdir claim\n    if [[ -e claim ]]; then"),
    ],
)
def test_what_was_not_staged_to_its_end_leaves_no_login(
    story: Story, monkeypatch: pytest.MonkeyPatch, how: str, before: bytes, after: bytes
) -> None:
    story.cluster.cut = 20_000 if how == "cut" else 0
    whole = ssh_exchange.exchange

    def exchange(login: Any, command: str, stdin: bytes, *rest: Any) -> bytes:
        return whole(login, command, stdin.replace(before, after) if before else stdin, *rest)

    monkeypatch.setattr(ssh_exchange, "exchange", exchange)
    with pytest.raises((ClusterUnavailableError, ConflictError, IntegrityError)):
        story.cluster.stage(import_request("client"), CREDENTIALS)
    assert secrets_in(story.cluster.workspace) == []


# --- unchanged is free


@pytest.fixture
def imported(story: Story) -> ImageRecord:
    """What a first run made of the image; the cluster counts its commands from now on."""
    handle = story.begin(story.work())
    story.wait(handle)
    record = story.finish(handle)
    story.cluster.commands.clear()
    return record


def test_an_unchanged_image_costs_one_round_trip(story: Story, imported: ImageRecord) -> None:
    again = story.import_again()
    assert len(story.cluster.commands) == 1
    assert (again.moved, again.record.reused, again.record.sqsh) == (False, True, imported.sqsh)
    assert len(story.cluster.slurm.jobs()) == 1


def test_an_alias_that_means_something_else_is_moved_without_a_job(story: Story, imported: ImageRecord) -> None:
    again = story.import_again("other")
    assert len(story.cluster.commands) == 2
    assert (again.moved, again.record.name, again.record.sqsh.sha256) == (True, "other", imported.sqsh.sha256)
    assert (story.cluster.workspace / "aliases/other.sqsh").resolve() == Path(imported.sqsh.path)
    assert len(story.cluster.slurm.jobs()) == 1


@pytest.mark.parametrize("suffix", ["sqsh", "json"])
def test_a_link_that_was_removed_comes_back(story: Story, imported: ImageRecord, suffix: str) -> None:
    link = story.cluster.workspace / f"aliases/tool.{suffix}"
    link.unlink()
    assert story.import_again().moved is False
    assert link.exists()


def test_an_alias_that_is_elsewhere_is_refused_when_the_author_said_so(story: Story, imported: ImageRecord) -> None:
    given = story.cluster.slurm.enroot / "given.sqsh"
    given.write_bytes(image("plain").read_bytes())
    handle = story.begin(story.work(inspect_request(given, name="other"), generation=2))
    story.wait(handle)
    story.finish(handle)
    with pytest.raises(ConflictError, match=r"'other' means another image.*\n?.*on_conflict") as caught:
        story.import_again("other", on_conflict="fail")
    assert caught.value.remedy
    assert (story.cluster.workspace / "aliases/other.sqsh").resolve() == given


def test_a_move_whose_answer_was_lost_is_told_to_the_retry_and_not_to_the_next_run(
    story: Story, imported: ImageRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ssh_exchange.exchange

    def lost(client: Any, command: str, stdin: bytes, timeout: float, where: str) -> bytes:
        answer = whole(client, command, stdin, timeout, where)
        return answer[: len(answer) // 2] if b"asi::commit" in stdin else answer

    with monkeypatch.context() as patch, pytest.raises(TruncatedAnswerError):
        patch.setattr(ssh_exchange, "exchange", lost)
        story.import_again("other", run="e")
    assert story.import_again("other", run="e").moved is True
    assert story.import_again("other", run="d").moved is False


def test_another_kind_is_inspected_and_not_imported(story: Story, imported: ImageRecord) -> None:
    client = import_request("generic")
    handle = story.lifecycle.begin(Work(client, "e" * 32, 1, False, "lab", {}))
    assert isinstance(handle, JobHandle)
    story.wait(handle)
    finished = story.lifecycle.finish(handle)
    assert (finished.moved, finished.record.sqsh) == (False, imported.sqsh)
    assert finished.record.inspection.inspection.kind == "generic"
    assert "phase import" not in Path(handle.run_directory, "slurm.out").read_text()


def test_verify_hashes_the_file_in_a_job_and_imports_nothing(story: Story, imported: ImageRecord) -> None:
    file = Path(imported.sqsh.path)
    work = Work(import_request("client"), "e" * 32, 1, False, "lab", {}, if_present="verify")
    handle = story.lifecycle.begin(work)
    assert isinstance(handle, JobHandle)
    story.wait(handle)
    assert story.finish(handle).sqsh == imported.sqsh
    assert "phase import" not in Path(handle.run_directory, "slurm.out").read_text()

    stat, data = file.stat(), bytearray(file.read_bytes())
    data[-1] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    handle = story.begin(replace(work, run_key="d" * 32))
    with pytest.raises(IntegrityError, match="holds other bytes than its name says") as caught:
        story.wait(handle)
    assert file.name in str(caught.value)
    assert caught.value.remedy
    assert file.read_bytes() == data


# --- something else is there already


@pytest.mark.parametrize("kind", ["garbage", "link", "directory"])
def test_a_foreign_or_corrupt_file_at_the_destination_is_an_error_and_stays(
    story: Story, imported: ImageRecord, kind: str
) -> None:
    file, home = Path(imported.sqsh.path), story.cluster.workspace.parent / "home"
    file.rename(home)
    if kind == "garbage":
        file.write_text("garbage")
    elif kind == "link":
        file.symlink_to(home)
    else:
        file.mkdir()
    before = file.lstat()
    handle = story.begin(story.work(generation=2))
    with pytest.raises(IntegrityError, match="nothing was overwritten") as caught:
        story.wait(handle)
    assert str(file) in caught.value.message
    assert caught.value.remedy
    assert (file.lstat().st_ino, file.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []
    assert (story.cluster.workspace / "aliases/tool.sqsh").readlink() == Path("tool.d/current/image.sqsh")


def test_something_foreign_at_the_alias_is_a_conflict_and_stays(story: Story) -> None:
    handle = story.begin(story.work())
    story.wait(handle)
    alias = story.cluster.workspace / "aliases/tool.sqsh"
    alias.write_text("mine")
    with pytest.raises(ConflictError, match="not a link of ours; nothing was overwritten") as caught:
        story.finish(handle)
    assert str(alias) in caught.value.message
    assert caught.value.remedy
    assert alias.read_text() == "mine"


# --- what is not visible yet


def test_a_store_file_that_the_login_node_sees_later_is_waited_for(story: Story) -> None:
    handle = story.begin(story.work())
    story.wait(handle)
    there, hidden = story.cluster.workspace / "store/sha256", story.cluster.workspace / "hidden"
    there.rename(hidden)
    there.mkdir(mode=0o700)

    def appears() -> None:
        if story.now > 15:
            there.rmdir()
            hidden.rename(there)
            story.meanwhile = lambda: None

    story.now, story.meanwhile = 0.0, appears
    record = story.finish(handle)
    assert story.now > 15
    assert (story.cluster.workspace / "aliases/tool.sqsh").resolve() == Path(record.sqsh.path)


def test_a_store_file_that_stays_invisible_is_named(story: Story) -> None:
    handle = story.begin(story.work())
    story.wait(handle)
    (file,) = (story.cluster.workspace / "store/sha256").glob("*.sqsh")
    file.unlink()
    begun = story.now
    with pytest.raises(NotVisibleError, match="gone, or not visible") as caught:
        story.finish(handle)
    assert str(file) in caught.value.message
    assert caught.value.remedy
    assert caught.value.details["reason"] == "not_visible"
    assert handle.record_wait <= story.now - begun < handle.record_wait + 10
    assert not (story.cluster.workspace / "aliases/tool.sqsh").is_symlink()


@pytest.mark.parametrize("name", ["plan.json", "completion.json", "output/facts.json"])
def test_records_changed_after_the_job_are_not_published(story: Story, name: str) -> None:
    handle = story.begin(story.work())
    story.wait(handle)
    path = Path(handle.run_directory, name)
    path.write_text(path.read_text().replace('"', "'", 1))
    with pytest.raises((IntegrityError, JobFailedError)):
        story.finish(handle)
    assert not (story.cluster.workspace / "aliases/tool.sqsh").exists()
