# SPDX-License-Identifier: Apache-2.0
"""The one read of the file runs beside all that is done with it, and no end of that counts before it is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_slurm_images.core import failures
from tests.cluster.polling import wait_until
from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import LocalCluster, Outcome, inspect_request

HASHES = '[[ "$(readlink /proc/self/fd/0)" != /dev/null ]] || exec /usr/bin/sha256sum'  # the job asks whether it works
BOUNDED_WAIT = 'for _ in {{1..600}}; do [[ ! -e "{mark}" ]] || break; sleep 0.05; done; [[ -e "{mark}" ]] || exit 1'


NO_SPACE = "No space left on device"
WAITING = {
    "version": ("enroot", 'touch "${0%/*}/asked"; sleep 1000'),
    "hash": ("openssl", f'{HASHES}\ntouch "${{0%/*}}/asked"; sleep 1000'),
}


def waiting(cluster: LocalCluster, question: str) -> tuple[subprocess.Popen[bytes], Outcome]:
    """A job whose tool does not come back, while the shell waits for it."""
    cluster.slurm.tool(*WAITING[question])
    plan, job_id = cluster.place(inspect_request(image("plain"), name="copy", copy_to_store=True))
    process = cluster.slurm.start(job_id)
    done = Outcome(plan, job_id, 0)
    phase = done.directory / "phase"
    wanted = {"version": "check ", "hash": "hash "}[question]
    assert wait_until(lambda: (cluster.slurm.enroot / "asked").exists() and phase.read_text().startswith(wanted), 20)
    return process, done


@pytest.fixture
def small(cluster: LocalCluster) -> Iterator[Path]:
    """Scratch that is nearly full, while df does not tell."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(cluster.slurm.scratch)], check=True)
    cluster.slurm.tool("df", "exit 1")
    yield cluster.slurm.scratch
    subprocess.run(["umount", "--lazy", str(cluster.slurm.scratch)], check=True)


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
    failed = mark.with_name("failed")
    until = f'for ((i = 0; i < 300; i++)); do [[ -e "{failed}" ]] && break; sleep 0.1; done'
    cluster.slurm.tool("openssl", f'{HASHES}\n{until}\nsha256sum\ntouch "{mark}"')
    cluster.slurm.enroot_does(
        "start",
        f"""[[ -e "{mark}" ]] || {{ touch "{failed}"; echo '[ERROR] Failed to mount: image' >&2; exit 1; }}
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
    assert cluster.slurm.processes() == {}


@pytest.mark.parametrize("question", WAITING)
def test_a_signal_ends_what_runs_beside(cluster: LocalCluster, question: str) -> None:
    process, done = waiting(cluster, question)
    process.terminate()
    assert process.wait(20) == 143
    assert done.record.exit_status == 143
    assert cluster.slurm.processes() == {}
    assert list((cluster.workspace / "store/sha256").iterdir()) == []


def signal_shell_last(cluster: LocalCluster, process: subprocess.Popen[bytes]) -> int:
    """End a job as Slurm does; returns the batch script's exit status."""
    for pid in cluster.slurm.processes():
        if pid != process.pid:
            with contextlib.suppress(ProcessLookupError):  # ended by the signal to another one
                os.kill(pid, signal.SIGTERM)
    time.sleep(0.1)  # what ran ends, and the shell sees it before its own signal comes
    process.terminate()
    return process.wait(20)


@pytest.mark.parametrize("question", WAITING)
def test_a_batch_shell_that_is_signalled_last_tells_of_the_signal(cluster: LocalCluster, question: str) -> None:
    process, done = waiting(cluster, question)
    assert signal_shell_last(cluster, process) == 143
    assert done.record.exit_status == 143


@pytest.mark.parametrize("tool", ["sha256sum", "cmp", "od", "stat"])
def test_a_short_command_that_the_signal_hits_first_is_no_reason(cluster: LocalCluster, tool: str) -> None:
    cluster.slurm.tool(tool, f'touch "${{0%/*}}/asked"; sleep 5; exec /usr/bin/{tool} "$@"')
    plan, job_id = cluster.place(inspect_request(image("plain")))
    process = cluster.slurm.start(job_id)
    assert wait_until((cluster.slurm.enroot / "asked").exists, 20)
    assert signal_shell_last(cluster, process) == 143
    assert Outcome(plan, job_id, 143).record.exit_status == 143


@pytest.mark.parametrize("question", WAITING)
def test_a_batch_shell_killed_alone_leaves_nothing_beside(cluster: LocalCluster, question: str) -> None:
    process, _ = waiting(cluster, question)
    process.kill()
    process.wait(5)
    assert wait_until(lambda: not cluster.slurm.leftovers() and not cluster.slurm.processes(), 6)


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


def test_what_enroot_says_besides_its_version_is_not_kept(cluster: LocalCluster) -> None:
    cluster.slurm.tool(
        "enroot",
        f'[[ $1 != version ]] || {{ yes "{NO_SPACE}" | head -c 9000000 >&2; echo 4.1.2; yes more | head -c 9000000; }}',
    )
    done = cluster.run(inspect_request(image("plain")))
    assert failures.EXIT_CODES[done.status].reason == "tool_missing", done.output[:2000]
    assert NO_SPACE not in done.output
    assert len(done.output) < 10000


FULL = {
    "openssl": f"{HASHES}\n{{fill}}\nexec sha256sum",
    "unsquashfs": '[[ "$*" != *-cat* ]] || {fill}\nexec /usr/bin/unsquashfs "$@"',
}


@pytest.mark.parametrize("tool", FULL)
def test_scratch_that_fills_up_is_told_as_such(cluster: LocalCluster, small: Path, tool: str) -> None:
    cluster.slurm.tool(tool, FULL[tool].format(fill=f'cat /dev/zero > "{small}/fill" 2> /dev/null || true'))
    done = cluster.run(inspect_request(image("plain")))
    assert done.reason == "no_space", done.output


def test_a_copy_that_failed_is_told_as_such_also_when_the_start_failed(cluster: LocalCluster) -> None:
    cluster.slurm.tool(
        "tee",
        f"""[[ "$*" != *.partial-* ]] || {{ cat > /dev/null; echo "tee: {NO_SPACE}" >&2; exit 1; }}
        exec /usr/bin/tee "$@" """,
    )
    cluster.slurm.enroot_does("start", "exit 91")
    done = cluster.run(inspect_request(image("plain"), "client", name="copy", copy_to_store=True))
    assert (done.status, done.record.phase, done.reason) == (88, "hash", "no_space"), done.output


def test_a_file_replaced_by_an_unsafe_one_has_changed(cluster: LocalCluster, tmp_path: Path) -> None:
    path, other = tmp_path / "given.sqsh", tmp_path / "other.sqsh"
    path.write_bytes(image("plain").read_bytes())
    other.write_bytes(image("/etc is a link").read_bytes())
    cluster.slurm.tool("unsquashfs", f'[[ "$*" != *-lls* ]] || mv "{other}" "{path}"\nexec /usr/bin/unsquashfs "$@"')
    done = cluster.run(inspect_request(path, "client"))
    assert failures.EXIT_CODES[done.status].reason == "changed_during_inspection", done.output


def test_a_copy_that_is_gone_never_moves_the_given_file(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "given.sqsh"
    path.write_bytes(image("plain").read_bytes())
    after_its_size = '[[ "$*" != "-c %s -- "*.partial-* ]] || rm -f -- "${@: -1}"'
    cluster.slurm.tool("stat", f'/usr/bin/stat "$@" || exit\n{after_its_size}')
    done = cluster.run(inspect_request(path, name="copy", copy_to_store=True))
    assert failures.EXIT_CODES[done.status].reason == "store_write", done.output
    assert path.exists()
    assert list((cluster.workspace / "store/sha256").iterdir()) == []
