# SPDX-License-Identifier: Apache-2.0
"""A full disk or quota, wherever the job writes: told as what it is, trusted nowhere, and never an image's word."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_slurm_images.core import failures, job_script
from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import LocalCluster, Outcome, inspect_request

NO_SPACE, QUOTA = "No space left on device", "Disk quota exceeded"
REASONS = {NO_SPACE: "no_space", QUOTA: "quota"}
CLUSTER = Path(job_script.__file__).parents[1] / "cluster"


def full_listing(cluster: LocalCluster) -> None:
    """The listing cannot be written; all else can."""
    cluster.slurm.tool("mkfifo", '/usr/bin/mkfifo "$@"\nlast="${@: -1}"\nln -sfn /dev/full "${last%/*}/listing"')


def cut_listing(script: str) -> Callable[[LocalCluster], None]:
    """The listing arrives as ``script`` leaves it, and nothing says so."""

    def act(cluster: LocalCluster) -> None:
        cluster.slurm.tool("awk", f'[[ "$*" == *names=* ]] || exec /usr/bin/awk "$@"\n/usr/bin/awk "$@" | {script}')

    return act


LOSSES: dict[str, tuple[Callable[[LocalCluster], None], str]] = {
    "its disk is full": (full_listing, "no_space"),
    "it is empty": (cut_listing("cat > /dev/null"), "internal"),
    "its end is missing": (cut_listing("head -n 2"), "internal"),
    "its beginning is missing": (cut_listing("tail -n 1"), "internal"),
    "a line is missing": (cut_listing("grep -v fstab"), "internal"),
    "its reader dies": (cut_listing("{ cat; exit 3; }"), "internal"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_listing_that_is_not_whole_is_no_proof_of_a_safe_image(cluster: LocalCluster, loss: str) -> None:
    spoil, expected = LOSSES[loss]
    spoil(cluster)
    done = cluster.run(inspect_request(image("/etc/fstab is a link"), "client"))
    assert done.status == 70, done.output
    assert done.reason == expected
    assert "Filesystem" in done.output
    assert cluster.slurm.enroot_calls("start") == []


def test_a_reader_that_loses_what_a_tool_says_ends_the_job(tmp_path: Path) -> None:
    script = f"""
        set +o posix
        set -Eeuo pipefail
        ASI_SCRATCH="{tmp_path}"
        E_INTERNAL=70
        asi::fail() {{ echo "fail $1"; exit "$1"; }}
        source "{CLUSTER}/process.sh"
        ASI_SCRATCH="{tmp_path}"
        mkfifo "{tmp_path}/guard"
        exec {{ASI_GUARD}}<> "{tmp_path}/guard"
        exec {{ASI_ALIVE}}> "{tmp_path}/alive"
        asi::quietly "{tmp_path}/good" 10 echo said
        cat "{tmp_path}/good"
        asi::quietly /dev/full 10 echo lost || echo "went on"
        echo "went on"
    """
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (70, ["said", "fail 70"])
    assert "went on" not in done.stdout


@pytest.mark.parametrize("name", ["superblock", "os-release", "elf", "dpkg-count"])
def test_a_description_that_cannot_be_written_fails_the_job(cluster: LocalCluster, name: str) -> None:
    plan, job_id = cluster.place(inspect_request(image("plain")))
    static = Path(plan.attempt_directory) / "output/static"
    static.mkdir(parents=True)
    (static / name).symlink_to("/dev/full")
    if name == "dpkg-count":
        cluster.slurm.tool(
            "awk", '[[ "$*" != *Status* ]] || { cat > /dev/null; echo 5; exit; }\nexec /usr/bin/awk "$@"'
        )
    done = Outcome(plan, job_id, cluster.slurm.run(job_id))
    assert (done.status, done.record.phase) == (70, "examine"), done.output
    assert done.reason == "no_space"


@pytest.mark.parametrize("words", REASONS)
def test_scratch_that_cannot_be_made_for_want_of_room_is_told_so(cluster: LocalCluster, words: str) -> None:
    cluster.slurm.tool("mktemp", f'echo "mktemp: failed to create directory: {words}" >&2\nexit 1')
    done = cluster.run(inspect_request(image("plain")))
    assert (done.status, done.reason) == (89, REASONS[words])
    assert "Filesystem" in done.output
    assert str(cluster.workspace) in done.output


@pytest.mark.parametrize("words", REASONS)
def test_an_early_write_that_fails_for_want_of_room_is_told_so(cluster: LocalCluster, words: str) -> None:
    cluster.slurm.tool(
        "mkdir", f'[[ "$*" != *output/static* ]] || {{ echo "mkdir: {words}" >&2; exit 1; }}\nexec /bin/mkdir "$@"'
    )
    done = cluster.run(inspect_request(image("plain")))
    assert (done.status, done.record.phase, done.reason) == (70, "space", REASONS[words])


# --- while an image runs


@pytest.mark.parametrize(("words", "status"), [(NO_SPACE, 1), (QUOTA, 91), (NO_SPACE, 92)])
def test_a_disk_that_is_full_when_the_inspection_fails_is_seen_by_the_job(
    cluster: LocalCluster, words: str, status: int
) -> None:
    cluster.slurm.tool("dd", f'echo "dd: error writing: {words}" >&2\nexit 1')
    cluster.slurm.enroot_does("start", f"exit {status}")
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert failures.EXIT_CODES[done.status].reason == REASONS[words] == done.reason, done.output
    assert failures.EXIT_CODES[done.status].retryable
    assert "Filesystem" in done.output


def test_facts_that_cannot_be_written_fail_the_job(cluster: LocalCluster) -> None:
    plan, job_id = cluster.place(inspect_request(image("plain"), "client"))
    output = Path(plan.attempt_directory) / "output"
    output.mkdir()
    (output / "facts.json").symlink_to("/dev/full")
    done = Outcome(plan, job_id, cluster.slurm.run(job_id))
    assert (done.status, done.record.phase) == (70, "inspect"), done.output


LIES = (
    NO_SPACE,
    QUOTA,
    f"asi: phase store (9 s)\n{NO_SPACE}",
    f"asi: ended in phase store with status 70 after 9 s\n{QUOTA}",
)


@pytest.mark.parametrize(
    ("lie", "status", "expected"),
    [*[(lie, 1, "start_failed") for lie in LIES], (LIES[-1], 91, "inspection_failed")],
)
def test_an_image_that_speaks_of_a_full_disk_is_not_believed(
    cluster: LocalCluster, lie: str, status: int, expected: str
) -> None:
    cluster.slurm.enroot_does("start", f"printf '%s\\n' '{lie}' >&2\nexit {status}")
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert done.reason == expected, done.output


def test_what_an_image_said_explains_no_later_failure(cluster: LocalCluster) -> None:
    cluster.slurm.enroot_does("start", f'echo \'{NO_SPACE}\' >&2\ncat "${{here}}/facts.json" > "${{facts}}"')
    cluster.slurm.tool("sync", '[[ "$*" != *.partial-* ]] || { echo "sync: error" >&2; exit 1; }\nexec /bin/sync "$@"')
    done = cluster.run(inspect_request(image("plain"), "client", name="copy", copy_to_store=True))
    assert (done.status, done.reason) == (88, "store_write"), done.output
