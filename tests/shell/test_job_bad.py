# SPDX-License-Identifier: Apache-2.0
"""Jobs that fail: each with its own exit code, a record, nothing published and nothing left on scratch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core import failures
from tests.shell.fake_slurm.images import HOSTILE, image
from tests.shell.fake_slurm.login import LocalCluster, Outcome, import_request, inspect_request


def failed(cluster: LocalCluster, done: Outcome, reason: str) -> str:
    """Check what every failure has in common; returns the job's output."""
    assert failures.EXIT_CODES[done.status].reason == reason, done.output
    assert done.record.exit_status == done.status
    assert done.record.sqsh is None
    assert list((cluster.workspace / "store/sha256").iterdir()) == []
    assert cluster.slurm.leftovers() == []
    return done.output


def change_profile(cluster: LocalCluster, **values: Any) -> None:
    cluster.profile |= values
    cluster.hook = cluster.new_hook()


# --- import


def test_too_little_space_is_seen_before_the_import(cluster: LocalCluster) -> None:
    change_profile(cluster, min_free="900000T")
    output = failed(cluster, cluster.run(import_request()), "no_space")
    assert str(cluster.slurm.scratch) in output
    assert cluster.slurm.enroot_calls() == []


def test_an_enroot_that_does_not_work_is_named(cluster: LocalCluster) -> None:
    cluster.slurm.tool("enroot", "exit 127")
    assert "n1" in failed(cluster, cluster.run(import_request()), "tool_missing")


def test_an_old_enroot_is_refused_for_a_repository_without_namespace(cluster: LocalCluster) -> None:
    (cluster.slurm.enroot / "version").write_text("3.5.0\n")
    request = import_request(image="reg.example:5000/busybox@sha256:" + "a" * 64)
    output = failed(cluster, cluster.run(request), "enroot_too_old")
    assert "'busybox'" in output
    assert "reg.example:5000" in output
    assert cluster.slurm.enroot_calls("import") == []


@pytest.mark.parametrize(
    "line", ["Write failed because No space left on device", "mksquashfs: write: Disk quota exceeded"]
)
def test_an_import_that_runs_out_of_space_names_the_roots(cluster: LocalCluster, line: str) -> None:
    cluster.slurm.enroot_does(
        "import", f'head -c 1000 "${{here}}/image.sqsh" > "${{output}}"\necho "{line}" >&2\nexit 1'
    )
    done = cluster.run(import_request())
    output = failed(cluster, done, "import_failed")
    assert "Filesystem" in output
    logs = {"slurm.out": output, "enroot.log": (done.directory / "enroot.log").read_text()}
    assert failures.explain(done.status, done.record.phase, logs).reason in ("no_space", "quota")
    assert done.record.tool_status == 1


def test_an_import_without_a_result_fails_whatever_its_status(cluster: LocalCluster) -> None:
    cluster.slurm.enroot_does("import", 'ln -s /etc/hostname "${output}"')
    failed(cluster, cluster.run(import_request()), "import_failed")


def test_another_architecture_is_not_published(cluster: LocalCluster) -> None:
    warning = "[WARN] Image architecture doesn't match the requested one: arm64 != amd64"
    cluster.slurm.enroot_does("import", f'echo "{warning}" >&2\ncp "${{here}}/image.sqsh" "${{output}}"')
    failed(cluster, cluster.run(import_request()), "architecture_mismatch")


@pytest.mark.parametrize("missing", [4096, 60_000])
def test_a_truncated_squashfs_is_not_published(cluster: LocalCluster, missing: int) -> None:
    cluster.slurm.enroot_does(
        "import", f'cp "${{here}}/image.sqsh" "${{output}}"\ntruncate -s -{missing} "${{output}}"'
    )
    failed(cluster, cluster.run(import_request()), "broken_squashfs")


def test_a_squashfs_whose_tables_are_damaged_is_not_published(cluster: LocalCluster) -> None:
    # The size is right and the superblock is whole: only a full listing tells.
    cluster.slurm.enroot_does(
        "import",
        'cp "${here}/image.sqsh" "${output}"\n'
        'dd if=/dev/urandom of="${output}" bs=1 seek=$(($(stat -c %s "${output}") - 4096)) count=3000 conv=notrunc',
    )
    failed(cluster, cluster.run(import_request()), "broken_squashfs")


# --- an existing file


def test_a_file_that_the_node_does_not_see_is_told_apart(cluster: LocalCluster, tmp_path: Path) -> None:
    output = failed(cluster, cluster.run(inspect_request(tmp_path / "gone.sqsh")), "source_not_visible")
    assert "not visible on node n1" in output


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to(image("plain")),
        os.mkfifo,
        lambda path: path.mkdir(),
    ],
    ids=["a link", "a pipe", "a directory"],
)
def test_only_regular_files_are_inspected(
    cluster: LocalCluster, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    path = tmp_path / "given.sqsh"
    make(path)
    failed(cluster, cluster.run(inspect_request(path)), "source_refused")


def test_a_file_that_is_no_squashfs_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "given.sqsh"
    path.write_text("<html>not found</html>" * 1000)
    failed(cluster, cluster.run(inspect_request(path)), "broken_squashfs")


SWAPS = {
    "replaced": 'cp "{path}" "{path}.new"; mv "{path}.new" "{path}"',
    "written to, with its time put back": (
        'touch -r "{path}" "{path}.time"; printf x | dd of="{path}" bs=1 seek=2000 conv=notrunc 2> /dev/null; '
        'touch -r "{path}.time" "{path}"'
    ),
    "removed": 'rm "{path}"',
}


@pytest.mark.parametrize("moment", ["while it is hashed", "while it is inspected"])
@pytest.mark.parametrize("swap", SWAPS)
def test_a_file_that_changes_meanwhile_is_noticed(
    cluster: LocalCluster, tmp_path: Path, swap: str, moment: str
) -> None:
    path = tmp_path / "given.sqsh"
    path.write_bytes(image("plain").read_bytes())
    act = SWAPS[swap].format(path=path)
    if moment == "while it is hashed":
        cluster.slurm.tool(
            "openssl", f'[[ "$(readlink /proc/self/fd/0)" == /dev/null ]] || {{ {act}; }}\nexec sha256sum'
        )
    else:
        cluster.slurm.enroot_does("start", f'{act}\ncat "${{here}}/facts.json" > "${{facts}}"')
    kind = "generic" if moment == "while it is hashed" else "client"
    output = failed(cluster, cluster.run(inspect_request(path, kind)), "changed_during_inspection")
    assert "changed during inspection" in output


# --- starting


@pytest.mark.parametrize("name", HOSTILE)
def test_an_image_that_would_act_on_the_host_is_not_started(cluster: LocalCluster, name: str) -> None:
    done = cluster.run(inspect_request(image(name), "client"))
    output = failed(cluster, done, "unsafe_image")
    assert name.split()[0] in output
    assert cluster.slurm.enroot_calls("start") == []


def test_links_that_enroot_never_opens_are_no_reason_to_refuse(cluster: LocalCluster) -> None:
    done = cluster.run(inspect_request(image("links elsewhere"), "client"))
    assert done.status == 0, done.output


@pytest.mark.parametrize("awk", ["mawk", "gawk"])
def test_a_hostile_image_is_recognised_with_every_awk(cluster: LocalCluster, awk: str) -> None:
    cluster.slurm.tool("awk", f'exec {awk} "$@"')
    failed(cluster, cluster.run(inspect_request(image("/etc is a link"), "client")), "unsafe_image")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 90", "no_python"),
        ("exit 91", "inspection_failed"),
        ("exit 92", "inspection_failed"),
        ("kill -KILL $$", "inspection_failed"),
        ("exit 1", "start_failed"),
        ("true", "inspection_failed"),
    ],
)
def test_each_end_of_an_inspection_has_its_own_code(cluster: LocalCluster, script: str, reason: str) -> None:
    cluster.slurm.enroot_does("start", script)
    done = cluster.run(inspect_request(image("plain"), "client"))
    failed(cluster, done, reason)
    assert done.record.phase == "inspect"


OLD_UNSHARE = """[[ "$*" != *--map-current-user* ]] || { echo "unshare: unrecognized option" >&2; exit 1; }
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""


def test_without_a_pid_namespace_an_image_is_not_started(cluster: LocalCluster) -> None:
    cluster.slurm.tool("unshare", OLD_UNSHARE)
    (cluster.slurm.enroot / "help").write_text(" -c, --conf CONFIG\n")
    output = failed(cluster, cluster.run(inspect_request(image("plain"), "client")), "unsafe_image")
    for words in ("n1 offers no PID namespace", "unrecognized option", "'generic'", "'exclude'"):
        assert words in output
    assert cluster.slurm.enroot_calls("start") == []
    done = cluster.run(inspect_request(image("plain")))
    assert done.status == 0, done.output


def test_enroots_own_namespaces_serve_where_unshare_is_too_old(cluster: LocalCluster) -> None:
    cluster.slurm.tool("unshare", OLD_UNSHARE)
    (cluster.slurm.enroot / "help").write_text(" --pid\n" + 100_000 * "x\n")
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert done.status == 0, done.output
    assert cluster.slurm.enroot_calls("start")[0].startswith("start --pid --env")
    assert "no network or no IPC namespace" in done.output


def test_what_namespaces_there_are_are_used(cluster: LocalCluster) -> None:
    used = cluster.slurm.enroot / "used"
    skip = 'while [[ "$1" == --* ]]; do shift; done\nexec "$@"'
    cluster.slurm.tool("unshare", f'[[ "$*" != *--net* ]] || exit 1\necho "$*" >> {used}\n{skip}')
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert done.status == 0, done.output
    assert "--pid" in used.read_text() and "--ipc enroot start" in used.read_text()
    assert "no network or no IPC namespace" in done.output


@pytest.mark.parametrize("said", ["", "4", "UID[$(touch injected)].1", "4.1.2\n5"])
def test_an_enroot_that_tells_no_version_is_named(cluster: LocalCluster, said: str) -> None:
    (cluster.slurm.enroot / "version").write_text(said)
    assert "tells no version" in failed(cluster, cluster.run(import_request()), "tool_missing")


# What Enroot 4.1 does with the image's working directory, in a directory of its own.
CONFIGURE = 'cd "${ENROOT_TEMP_PATH}" && mkdir 0 && mkdir -p "${PWD}/0%s" && cp -- "${here}/image.sqsh" "${output}"'


@pytest.mark.parametrize("place", ["/../../../../escaped", "/a/../../../../../escaped", "/.."])
def test_an_import_makes_no_directory_outside_whatever_was_verified(cluster: LocalCluster, place: str) -> None:
    cluster.slurm.enroot_does("import", f"{CONFIGURE % place} || exit 1")
    output = failed(cluster, cluster.run(import_request()), "unsafe_image")
    assert "working directory leads out of the image" in output
    assert list(cluster.slurm.root.rglob("escaped")) == []


def test_a_working_directory_in_the_image_is_made(cluster: LocalCluster) -> None:
    made = cluster.slurm.enroot / "made"
    script = CONFIGURE % "/opt/my..app/x"
    cluster.slurm.enroot_does("import", f'{script}\nfind "${{PWD}}/0" -type d > {made}')
    done = cluster.run(import_request())
    assert done.status == 0, done.output
    assert "/0/opt/my..app/x" in made.read_text()


MOUNT_FAILS = (
    'echo x >> "${here}/tries"; (($(wc -l < "${here}/tries") > %d)) || { echo "Failed to mount" >&2; exit 1; }'
)


def test_a_slow_mount_is_tried_again(cluster: LocalCluster) -> None:
    cluster.slurm.tool("sleep", "exit 0")
    cluster.slurm.enroot_does("start", f'{MOUNT_FAILS % 1}\ncat "${{here}}/facts.json" > "${{facts}}"')
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert done.status == 0, done.output
    assert cluster.slurm.enroot_calls("create") == []


def test_an_image_that_cannot_be_mounted_is_unpacked(cluster: LocalCluster) -> None:
    cluster.slurm.tool("sleep", "exit 0")
    cluster.slurm.enroot_does("start", f'{MOUNT_FAILS % 2}\ncat "${{here}}/facts.json" > "${{facts}}"')
    done = cluster.run(inspect_request(image("plain"), "client"))
    assert done.status == 0, done.output
    assert len(cluster.slurm.enroot_calls("create")) == 1
    assert cluster.slurm.enroot_calls("start")[-1].split(" --kind ")[0].endswith(" inspected")
