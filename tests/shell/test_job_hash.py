# SPDX-License-Identifier: Apache-2.0
"""The one read of the file runs beside all that is done with it, and no end of that counts before it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_slurm_images.core import failures
from tests.cluster.polling import wait_until
from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import LocalCluster, Outcome, inspect_request

HASHES = '[[ "$(readlink /proc/self/fd/0)" != /dev/null ]] || exec /usr/bin/sha256sum'  # the job asks whether it works
BOUNDED_WAIT = 'for _ in {{1..600}}; do [[ ! -e "{mark}" ]] || break; sleep 0.05; done; [[ -e "{mark}" ]] || exit 1'


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


def test_the_hash_runs_while_the_file_is_listed_and_read(cluster: LocalCluster, mark: Path) -> None:
    cluster.slurm.tool("openssl", f"{HASHES}\n{BOUNDED_WAIT.format(mark=mark)}\nexec sha256sum")
    cluster.slurm.tool("unsquashfs", f'[[ "$*" != *dpkg/status* ]] || touch "{mark}"\nexec /usr/bin/unsquashfs "$@"')
    done = cluster.run(inspect_request(image("plain")))
    assert done.status == 0, done.output


def test_the_image_is_looked_into_while_its_file_is_hashed(cluster: LocalCluster, mark: Path) -> None:
    cluster.slurm.tool("openssl", f"{HASHES}\n{BOUNDED_WAIT.format(mark=mark)}\nexec sha256sum")
    cluster.slurm.enroot_does("start", f'touch "{mark}"\ncat "${{here}}/facts.json" > "${{facts}}"')
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert done.status == 0, done.output


def test_a_start_that_failed_is_judged_when_the_hash_is_known(cluster: LocalCluster, mark: Path) -> None:
    """What was started may have been another file."""
    cluster.slurm.tool("openssl", f'{HASHES}\nsleep 1\ntouch "{mark}"\nexec sha256sum')
    cluster.slurm.enroot_does("start", "exit 91")
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert failures.EXIT_CODES[done.status].reason == "inspection_failed", done.output
    assert mark.exists()


def test_a_mount_that_fails_is_tried_again_when_the_file_is_not_read_any_more(
    cluster: LocalCluster, mark: Path
) -> None:
    cluster.slurm.tool("openssl", f'{HASHES}\nsleep 1\nsha256sum\ntouch "{mark}"')
    cluster.slurm.enroot_does(
        "start",
        f"""[[ -e "{mark}" ]] || {{ echo '[ERROR] Failed to mount: image' >&2; exit 1; }}
        cat "${{here}}/facts.json" > "${{facts}}" """,
    )
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert done.status == 0, done.output
    assert len(cluster.slurm.enroot_calls("start")) == 2


def test_a_broken_file_does_not_wait_for_its_hash(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "given.sqsh"
    path.write_bytes(image("plain").read_bytes()[:-8192])
    cluster.slurm.tool("openssl", f"{HASHES}\nexec sleep 1000")
    done = cluster.run(inspect_request(path, name="copy", copy_to_store=True))
    assert failures.EXIT_CODES[done.status].reason == "broken_squashfs", done.output
    assert cluster.slurm.processes() == []


def test_a_signal_ends_the_hash_too(cluster: LocalCluster) -> None:
    cluster.slurm.tool("openssl", f"{HASHES}\nexec sleep 1000")
    plan, job_id = cluster.place(inspect_request(image("plain"), name="copy", copy_to_store=True))
    process = cluster.slurm.start(job_id)
    done = Outcome(plan, job_id, 0)
    phase = done.directory / "phase"
    assert wait_until(lambda: phase.exists() and phase.read_text().startswith("hash "), 20)
    process.terminate()
    assert process.wait(20) == 143
    assert (done.record.exit_status, done.record.phase) == (143, "hash")
    assert cluster.slurm.processes() == []
    assert list((cluster.workspace / "store/sha256").iterdir()) == []


@pytest.mark.parametrize("copy", [False, True])
def test_a_hash_that_fails_ends_the_job_with_what_it_said(cluster: LocalCluster, copy: bool) -> None:
    cluster.slurm.tool("openssl", f"{HASHES}\ncat > /dev/null\necho 'openssl: no room to count' >&2\nexit 3")
    done = cluster.run(inspect_request(image("plain"), "client", name="copy", copy_to_store=copy))
    assert failures.EXIT_CODES[done.status].reason == ("store_write" if copy else "internal"), done.output
    assert done.record.phase == "hash"
    assert "no room to count" in done.output.rpartition("asi: phase hash")[2]


def test_a_copy_does_not_stay_behind_an_inspection_that_failed(cluster: LocalCluster) -> None:
    cluster.slurm.enroot_does("start", 'ls -A "${here}" > /dev/null\nexit 91')
    done = cluster.run(inspect_request(image("plain"), "client", name="copy", copy_to_store=True))
    assert failures.EXIT_CODES[done.status].reason == "inspection_failed", done.output
    assert list((cluster.workspace / "store/sha256").iterdir()) == []
