# SPDX-License-Identifier: Apache-2.0
"""Images whose Python is an enemy: whatever it does, it cannot publish, hang, outlive the job, or reach the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.errors import JobFailedError

from .box import Box
from .oci import Tree
from .remains import left_by
from .sqsh import changed, false_python, place, squash, tree_of
from .works import Task, inspect_task, outcomes, reasons, sha256

HOME = f"/home/{Box.user}"
SHORTEST_LIMIT = 10  # seconds; of `inspect_timeout`
KEPT = 8 * 1024 * 1024  # bytes of a tool's output
FACTS = {
    "facts_version": 1,
    "inspector_version": "1.0.0",
    "kind": "client",
    "inspection": {
        "kind": "client",
        "python_implementation": "cpython",
        "python_version": "3.11.2",
        "python_abi": "cp311",
        "distributions": [{"name": "pip", "version": "23.0.1"}],
        "installer_path": "/usr/bin/pip",
        "installer_version": "23.0.1",
    },
    "image": {},
}


@pytest.fixture(scope="module")
def base(image_layouts: dict[str, Path]) -> Tree:
    return tree_of(image_layouts["nopython"])


def attacked(box: Box, base: Tree, name: str, body: str, **options: Any) -> Task:
    """A task for an image whose Python does `body`."""
    file = squash(changed(base, false_python(body)), place(box, name))
    return inspect_task(box, file, name=name, **options)


def write_facts(**changes: Any) -> str:
    """Shell text that writes what the inspector would."""
    return f"cat > /asi/facts <<'END'\n{json.dumps(FACTS | changes)}\nEND\n"


def refused(box: Box, task: Task, *reasons: str) -> JobFailedError:
    """The task fails for one of `reasons`, publishes nothing and leaves nothing."""
    with pytest.raises(JobFailedError) as caught:
        task.run()
    assert caught.value.reason in reasons
    assert not (box.workspace / "aliases" / f"{task.work.request.name}.sqsh").is_symlink()
    assert left_by(box, task) == []
    return caught.value


def all_refused(box: Box, base: Tree, bodies: dict[str, str], reason: tuple[str, str]) -> list[Task]:
    """The same for several images at once."""
    tasks = {name: attacked(box, base, f"attack-{number}", body) for number, (name, body) in enumerate(bodies.items())}
    assert reasons(outcomes(tasks)) == dict.fromkeys(bodies, reason)
    for number, task in enumerate(tasks.values()):
        assert left_by(box, task) == []
        assert not (box.workspace / "aliases" / f"attack-{number}.sqsh").is_symlink()
    return list(tasks.values())


# -- lies

LIES = {
    "another kind": {"kind": "serving", "inspection": {"kind": "serving", "server_type": "vllm"}},
    "its own digest": {"inspection": FACTS["inspection"] | {"sqsh_sha256": "f" * 64}},  # type: ignore[operator]
    "an unknown version": {"facts_version": 2},
    "a wrong type": {"inspection": FACTS["inspection"] | {"python_version": 3}},  # type: ignore[operator]
    "a path that is none": {"inspection": FACTS["inspection"] | {"installer_path": "pip"}},  # type: ignore[operator]
    "an error with success": {"error": {"code": "x", "message": "y"}},
    "2 MiB": {"image": {"x": "a" * 2 * 1024 * 1024}},
}


def test_facts_that_break_the_rules_are_refused(box_plain: Box, home: Path, base: Tree) -> None:
    bodies = {lie: write_facts(**changes) + "exit 0" for lie, changes in LIES.items()}
    all_refused(box_plain, base, bodies, ("JobFailedError", "facts_invalid"))


def test_what_the_job_saw_itself_stands_over_what_the_image_says(box_plain: Box, home: Path, base: Tree) -> None:
    lies = {"architecture": "arm64", "compression": "lzo", "sqsh_sha256": "f" * 64, "debian_packages": 7}
    task = attacked(box_plain, base, "liar", write_facts(image=lies) + "exit 0")
    found = task.run()
    assert found.image["architecture"] == "amd64"
    assert found.image["compression"] == "zstd"
    assert found.image["debian_packages"] is None
    assert found.inspection.sqsh_sha256 == found.sqsh.sha256 == sha256(Path(found.sqsh.path))


# -- tricks with the pipes, which are all that it can write to

TRICKS = {
    "nothing": "true",
    "a link in place of the pipe": f"rm -f /asi/facts; ln -s {HOME}/.netrc /asi/facts",
    "a directory in its place": "rm -f /asi/facts; mkdir /asi/facts",
}


def test_without_facts_there_is_no_record(box_plain: Box, home: Path, base: Tree) -> None:
    bodies = {trick: f"{command}\nexit 0" for trick, command in TRICKS.items()}
    for task in all_refused(box_plain, base, bodies, ("JobFailedError", "inspection_failed")):
        assert (task.directory / "output" / "facts.json").read_bytes() == b""


FLOODS = {
    "too much": "i=0; while [ $i -lt 30 ]; do cat /bin/busybox; i=$((i + 1)); done > /asi/facts",
    "more than any limit": "/bin/busybox timeout 5 /bin/busybox yes > /asi/facts",
    "two records": write_facts() + write_facts(),
    "half a record": "printf '{\"facts_version\": 1,' > /asi/facts",
}


def test_a_flood_of_facts_is_cut_and_refused(box_plain: Box, home: Path, base: Tree) -> None:
    bodies = {flood: f"{command}\nexit 0" for flood, command in FLOODS.items()}
    for task in all_refused(box_plain, base, bodies, ("JobFailedError", "facts_invalid")):
        assert (task.directory / "output" / "facts.json").stat().st_size <= 1024 * 1024 + 1


WRITES = """\
for place in / /asi /etc /usr /proc /sys /dev/shm; do
    echo x > $place/made 2> /dev/null && echo "wrote to $place"
done
for file in /asi/inspect_image.py /.lock /etc/passwd /proc/1/oom_score_adj; do
    echo x >> $file 2> /dev/null && echo "changed $file"
done
/bin/busybox chmod 777 /asi /asi/facts /asi/inspect_image.py 2> /dev/null && echo 'changed a mode'
/bin/busybox mount -o remount,rw /asi 2> /dev/null && echo 'remounted'
/bin/busybox mknod /tmp/disk b 8 0 2> /dev/null && echo 'made a device'
for descriptor in /proc/self/fd/*; do
    number=${descriptor##*/}; [ $number -le 2 ] || echo "descriptor: $(/bin/busybox readlink $descriptor)"
done
echo 'tried'
exit 5"""


def test_it_can_change_no_file_of_the_host(box_plain: Box, home: Path, base: Tree) -> None:
    task = attacked(box_plain, base, "writer", WRITES)
    refused(box_plain, task, "inspection_failed")
    report = (task.directory / "inspect.log").read_text()
    assert "tried" in report
    for words in ("wrote to", "changed", "remounted", "made a device", "descriptor: /tmp", f"descriptor: {HOME}"):
        assert words not in report, report


def test_an_output_that_nobody_may_read_any_more_does_not_hang_the_job(box_plain: Box, home: Path, base: Tree) -> None:
    """It says what Enroot says when a mount fails, so that it is started again."""
    body = "echo 'fuse'; /bin/busybox chmod 200 /proc/self/fd/1 /proc/self/fd/2; exit 1"
    task = attacked(box_plain, base, "mode", body, inspect_timeout=30)
    refused(box_plain, task, "start_failed", "inspection_failed")
    assert task.completion()["elapsed_seconds"] < 40


# -- violence


@pytest.mark.slow
def test_all_starts_together_have_one_time_limit(box_plain: Box, home: Path, base: Tree) -> None:
    body = "echo 'Failed to mount'; /bin/sleep 8; exit 1"
    task = attacked(box_plain, base, "again", body, inspect_timeout=SHORTEST_LIMIT)
    refused(box_plain, task, "inspection_timeout", "start_failed")
    assert task.completion()["elapsed_seconds"] < SHORTEST_LIMIT + 25


@pytest.mark.slow
def test_a_bomb_of_processes_ends_with_its_time(box_plain: Box, home: Path, base: Tree) -> None:
    body = "ulimit -u 400; bomb() { bomb | bomb & }; bomb; bomb; while :; do /bin/sleep 1; done"
    task = attacked(box_plain, base, "bomb", body, inspect_timeout=SHORTEST_LIMIT)
    refused(box_plain, task, "inspection_timeout", "inspection_failed")
    assert task.completion()["elapsed_seconds"] < SHORTEST_LIMIT + 25


def test_killing_everything_it_can_reach_kills_only_the_image(box_plain: Box, home: Path, base: Tree) -> None:
    body = "kill -9 1 $PPID; for i in 2 3 4 5 6 7 8 9 10; do kill -9 -$i $i; done; kill -9 -1; /bin/sleep 1000"
    task = attacked(box_plain, base, "killer", body, inspect_timeout=30)
    # Enroot's own helpers live with the image: without its file system it ends as one that could not be started.
    error = refused(box_plain, task, "inspection_failed", "start_failed")
    assert error.phase == "inspect"
    assert task.completion()["elapsed_seconds"] < 25


def test_a_flood_of_output_is_cut_and_the_job_goes_on(box_plain: Box, home: Path, base: Tree) -> None:
    body = "i=0; while [ $i -lt 30 ]; do cat /bin/busybox; i=$((i + 1)); done; exit 0"
    task = attacked(box_plain, base, "flood", body)
    refused(box_plain, task, "inspection_failed")
    assert (task.directory / "inspect.log").stat().st_size <= KEPT
    assert (task.directory / "slurm.out").stat().st_size <= KEPT + 65536


def test_processes_that_detach_and_never_end_are_ended(box_plain: Box, home: Path, base: Tree) -> None:
    """Within its limit and the time that `timeout` gives after it; also those that ignore every signal."""
    body = """\
trap '' TERM INT HUP QUIT
/bin/busybox setsid /bin/busybox sh -c "trap '' TERM HUP; while :; do /bin/sleep 1000; done" &
i=0; while [ $i -lt 50 ]; do /bin/busybox setsid /bin/sleep 1000 & i=$((i + 1)); done
while :; do cat /bin/busybox; /bin/sleep 1; done"""
    task = attacked(box_plain, base, "never-ends", body, inspect_timeout=SHORTEST_LIMIT)
    refused(box_plain, task, "inspection_timeout")
    assert task.completion()["elapsed_seconds"] < SHORTEST_LIMIT + 20


def test_a_good_end_leaves_no_process_behind_either(box_plain: Box, home: Path, base: Tree) -> None:
    body = "/bin/busybox setsid /bin/sleep 1000 & /bin/sleep 1000 &\n" + write_facts() + "exit 0"
    task = attacked(box_plain, base, "leaver", body)
    task.begin()
    task.wait()
    assert left_by(box_plain, task) == []


# -- curiosity

LOOK = """\
echo "pids: $(echo /proc/[0-9]*)"
for pid in /proc/[0-9]*; do /bin/busybox tr '\\0' '\\n' < $pid/environ; done
env
ls -laR /home /root /tmp 2>&1; cat /home/*/.netrc /proc/1/root/home/*/.netrc 2>&1
echo "interfaces: $(/bin/busybox ls /sys/class/net 2>&1; /bin/busybox ifconfig -a 2>&1)"
/bin/busybox wget -T 3 -O - http://{registry}/v2/ 2>&1 && echo 'reached the registry'
echo 'looked'
exit 9"""


def test_it_sees_no_process_no_variable_no_home_and_no_network_of_the_host(
    box_plain: Box, home: Path, base: Tree
) -> None:
    body = LOOK.replace("{registry}", box_plain.registry)
    task = attacked(box_plain, base, "curious", body)
    refused(box_plain, task, "inspection_failed")
    report = (task.directory / "inspect.log").read_text()
    assert "looked" in report
    pids = next(line for line in report.splitlines() if line.startswith("pids: ")).split()[1:]
    assert len(pids) < 10
    for word in ("SLURM_", "ASI_TOKEN", "of-the-host", "reached the registry", "eth0"):
        assert word not in report, word
