# SPDX-License-Identifier: Apache-2.0
"""What the job reads of a SquashFS file from outside, and files that this node's tools cannot read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_slurm_images.core import failures
from airflow_slurm_images.core.errors import JobFailedError
from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import LocalCluster, import_request, inspect_request

AWKS = pytest.mark.parametrize("awk", ["mawk", "gawk"])
COMPRESSION, MAJOR = 20, 28  # where in the superblock

# What squashfs-tools say where zstd was not built in.
UNSQUASHFS_WITHOUT_ZSTD = """echo "Filesystem uses zstd compression, this is unsupported by this version" >&2
printf 'Decompressors available:\\n\\tgzip\\n\\txz\\n' >&2
exit 1"""
MKSQUASHFS_WITHOUT_ZSTD = """echo 'mksquashfs: Compressor "zstd" is not supported!' >&2
printf 'mksquashfs: Compressors available:\\n\\tgzip (default)\\n' >&2
exit 1"""


def patched(tmp_path: Path, offset: int, value: int) -> Path:
    """A whole file with one number of its superblock changed."""
    raw = bytearray(image("plain").read_bytes())
    struct.pack_into("<H", raw, offset, value)
    path = tmp_path / "given.sqsh"
    path.write_bytes(raw)
    return path


def unsupported(cluster: LocalCluster, path: Path) -> str:
    """Inspect a file that no retry and no second copy makes readable; returns the job's output."""
    done = cluster.run(inspect_request(path))
    failure = failures.EXIT_CODES[done.status]
    assert failure.reason == "unsupported_squashfs", done.output
    assert (failure.error, failure.retryable) == (JobFailedError, False)
    assert cluster.slurm.leftovers() == []
    return done.output


@AWKS
def test_a_compression_that_unsquashfs_lacks_is_no_broken_file(cluster: LocalCluster, tmp_path: Path, awk: str) -> None:
    cluster.slurm.tool("unsquashfs", UNSQUASHFS_WITHOUT_ZSTD)
    cluster.slurm.tool("awk", f'exec {awk} "$@"')
    output = unsupported(cluster, patched(tmp_path, COMPRESSION, 6))
    assert "node n1 cannot read the compression of" in output and ": zstd" in output


def test_a_compression_that_nobody_knows_yet_is_told_by_its_number(cluster: LocalCluster, tmp_path: Path) -> None:
    assert ": number 9" in unsupported(cluster, patched(tmp_path, COMPRESSION, 9))


def test_a_file_of_an_older_squashfs_is_no_broken_file(cluster: LocalCluster, tmp_path: Path) -> None:
    assert "version before 4" in unsupported(cluster, patched(tmp_path, MAJOR, 3))


def test_a_file_in_the_other_byte_order_is_of_an_older_squashfs(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "given.sqsh"
    raw = image("plain").read_bytes()
    path.write_bytes(raw[3::-1] + raw[4:])
    assert "version before 4" in unsupported(cluster, path)


def test_of_a_broken_file_the_line_that_tells_most_is_passed_on(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.slurm.tool("unsquashfs", "echo 'FATAL ERROR: the one that counts' >&2; echo some advice >&2; exit 1")
    done = cluster.run(inspect_request(image("plain")))
    assert failures.EXIT_CODES[done.status].reason == "broken_squashfs"
    assert "cannot be listed: FATAL ERROR: the one that counts\n" in done.output


def test_a_name_in_a_broken_image_cannot_say_that_the_tool_is_to_blame(cluster: LocalCluster) -> None:
    cluster.slurm.tool(
        "unsquashfs",
        "echo 'drwxr-xr-x root/root 3 2024-01-01 00:00 squashfs-root'\n"
        "printf -- '-rw-r--r-- root/root 3 2024-01-01 00:00 squashfs-root/a\\n%s\\n' "
        "'Filesystem uses x compression, this is unsupported by this version'; exit 1",
    )
    done = cluster.run(inspect_request(image("plain")))
    assert failures.EXIT_CODES[done.status].reason == "broken_squashfs", done.output


@pytest.mark.parametrize(
    "script",
    ["kill -KILL $$", "echo 'Read on filesystem failed because Input/output error' >&2; exit 1", "exit 124"],
)
def test_a_listing_that_was_cut_short_says_nothing_against_the_file(cluster: LocalCluster, script: str) -> None:
    cluster.slurm.tool("unsquashfs", script)
    done = cluster.run(inspect_request(image("plain")))
    failure = failures.EXIT_CODES[done.status]
    assert (failure.reason, failure.retryable) == ("source_unreadable", True), done.output


def test_a_listing_that_ends_in_a_crash_says_that_the_file_is_broken(cluster: LocalCluster) -> None:
    cluster.slurm.tool("unsquashfs", "kill -SEGV $$")
    done = cluster.run(inspect_request(image("plain")))
    assert failures.EXIT_CODES[done.status].reason == "broken_squashfs", done.output


# --- before an import


@pytest.mark.parametrize(
    ("tool", "script", "words"),
    [
        ("mksquashfs", MKSQUASHFS_WITHOUT_ZSTD, 'Compressor "zstd" is not supported!'),
        ("unsquashfs", UNSQUASHFS_WITHOUT_ZSTD, "Filesystem uses zstd compression, this is unsupported"),
    ],
)
def test_a_node_that_lacks_the_wanted_compression_is_known_before_the_import(
    cluster: LocalCluster, tool: str, script: str, words: str
) -> None:
    cluster.slurm.tool(tool, script)
    done = cluster.run(import_request())
    assert failures.EXIT_CODES[done.status].reason == "unsupported_squashfs", done.output
    assert done.record.phase == "space"
    assert words in done.output and "node n1" in done.output and "-comp zstd" in done.output
    assert cluster.slurm.enroot_calls("import") == []
    assert cluster.slurm.leftovers() == []


def test_squash_options_that_mksquashfs_refuses_are_known_before_the_import(cluster: LocalCluster) -> None:
    cluster.profile["squash_options"] = "-comp zstd -Xcompression-level 99"
    cluster.hook = cluster.new_hook()
    done = cluster.run(import_request())
    assert failures.EXIT_CODES[done.status].reason == "unsupported_squashfs", done.output
    assert "-Xcompression-level invalid" in done.output
    assert cluster.slurm.enroot_calls("import") == []


def test_no_room_for_the_trial_is_no_lack_of_the_tools(cluster: LocalCluster) -> None:
    full = 'echo "dd: error writing: No space left on device" >&2\nexit 1'
    cluster.slurm.tool("mksquashfs", full)
    cluster.slurm.tool("dd", full)
    assert cluster.run(import_request()).reason == "no_space"


# --- facts of any image


def static(cluster: LocalCluster, name: str, awk: str = "mawk") -> Callable[[str], bytes]:
    """Inspect an image without starting it; returns a reader for what was found."""
    cluster.slurm.tool("awk", f'exec {awk} "$@"')
    done = cluster.run(inspect_request(image(name)))
    assert done.status == 0, done.output

    def read(fact: str) -> bytes:
        path = done.directory / "output/static" / fact
        return path.read_bytes() if path.exists() else b""

    return read


OS_RELEASE = {
    "two different os-release": b"ID=etc\n",
    "os-release is a link elsewhere": b"ID=elsewhere\n",
    "os-release is an absolute link over linked directories": b"ID=elsewhere\n",
    "os-release is a link out of the image": b"",
    "os-release is a link to itself": b"ID=tiny\n",
}


@AWKS
@pytest.mark.parametrize("name", OS_RELEASE)
def test_os_release_is_found_in_the_order_of_its_manual_by_the_image_s_own_links(
    cluster: LocalCluster, name: str, awk: str
) -> None:
    assert static(cluster, name, awk)("os-release").endswith(OS_RELEASE[name])


@AWKS
def test_packages_of_a_debian_image_without_a_package_manager_are_counted(cluster: LocalCluster, awk: str) -> None:
    assert static(cluster, "distroless", awk)("dpkg-count") == b"2\n"


# --- room to unpack

UNMOUNTABLE = 'echo x >> "${here}/tries"; (($(wc -l < "${here}/tries") > 2)) || { echo "Failed to mount" >&2; exit 1; }'


@AWKS
@pytest.mark.parametrize(("free_mib", "enough"), [(60, True), (40, False)])
def test_an_image_is_not_unpacked_where_it_would_not_fit(
    cluster: LocalCluster, free_mib: int, enough: bool, awk: str
) -> None:
    # 48 MiB of zeros in a file, the same again by a hard link, and a log that is mostly a hole
    cluster.slurm.tool("awk", f'exec {awk} "$@"')
    cluster.slurm.tool("sleep", "exit 0")
    cluster.slurm.tool("df", f"echo Filesystem\necho 'none 9 9 {free_mib * 1024} 1% /'")
    cluster.slurm.enroot_does("start", f'{UNMOUNTABLE}\ncat "${{here}}/facts.json" > "${{facts}}"')
    done = cluster.run(inspect_request(image("a large file, a hard link and a log"), "client"))
    assert len(cluster.slurm.enroot_calls("create")) == enough, done.output
    if enough:
        assert done.status == 0, done.output
    else:
        assert done.reason == "no_space"
        assert "the unpacked image and min_free need" in done.output
