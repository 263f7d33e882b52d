# SPDX-License-Identifier: Apache-2.0
"""Jobs that end well: what they leave, and how they called Enroot."""

from __future__ import annotations

import hashlib
import shutil
import stat
from pathlib import Path

import pytest

from tests.shell.fake_slurm.images import image
from tests.shell.fake_slurm.login import LocalCluster, Outcome, import_request, inspect_request

LAYER = "b" * 64
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASH_OWN = {"PWD", "OLDPWD", "SHLVL", "_"}
FIXED = {"PATH", "HOME", "USER", "LOGNAME", "LC_ALL", "TMPDIR"}
SLURM = {
    *("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME"),
    *("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"),
}
IMPORT = {
    *("ENROOT_RUNTIME_PATH", "ENROOT_DATA_PATH", "ENROOT_TEMP_PATH", "ENROOT_CACHE_PATH"),
    *("ENROOT_SQUASH_OPTIONS", "ENROOT_MAX_PROCESSORS", "ENROOT_MAX_CONNECTIONS", "ENROOT_TRANSFER_RETRIES"),
    *("ENROOT_ALLOW_HTTP", "PARALLEL_HOME"),
}


def test_an_import_ends_in_the_store_under_its_hash(cluster: LocalCluster) -> None:
    done = cluster.run(import_request("client"))
    assert done.status == 0, done.output
    sqsh = done.record.sqsh
    assert sqsh is not None
    assert sqsh.managed
    digest = hashlib.sha256(image("plain").read_bytes()).hexdigest()
    assert sqsh.sha256 == digest
    path = Path(sqsh.path)
    assert path == cluster.workspace / f"store/sha256/{digest}.sqsh"
    assert (sqsh.size_bytes, sqsh.inode, sqsh.mtime) == (
        path.stat().st_size,
        path.stat().st_ino,
        int(path.stat().st_mtime),
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    phases = [line.split()[2] for line in done.output.splitlines() if line.startswith("asi: phase ")]
    assert phases == ["verify", "claim", "space", "import", "check", "examine", "inspect", "hash", "store", "done"]
    assert cluster.slurm.leftovers() == []


def test_a_hostile_login_environment_never_reaches_enroot(cluster: LocalCluster, tmp_path: Path) -> None:
    traps = tmp_path / "traps"
    traps.mkdir()
    for name in ("env", "getent", "locale", "grep", "bash", "mkdir", "sha256sum"):
        (traps / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/trapped-{name}\nexit 1\n")
        (traps / name).chmod(0o755)
    (tmp_path / "bashenv").write_text(f"touch {tmp_path}/trapped-bashenv\n")
    hostile = {
        "PATH": f"{traps}:/usr/bin:/bin",
        "BASH_ENV": str(tmp_path / "bashenv"),
        "ENV": str(tmp_path / "bashenv"),
        "BASH_FUNC_sha256sum%%": "() { echo fooled; }",
        "BASH_FUNC_enroot%%": "() { echo fooled; }",
        "SHELLOPTS": "noexec:xtrace",
        "POSIXLY_CORRECT": "1",
        "GREP_OPTIONS": "-v",
        "TAR_OPTIONS": "--version",
        "CDPATH": "/",
        "HOME": "/nonexistent",
        "ENROOT_ALLOW_HTTP": "yes",
        "ENROOT_CONFIG_PATH": "/evil",
        "ENROOT_SQUASH_OPTIONS": "-comp none",
        "ENROOT_LOGIN_SHELL": "yes",
        "PYTHONPATH": "/evil",
        "LD_LIBRARY_PATH": "/nonexistent",
        "SQUASHFS_OPTS": "x",
        "https_proxy": "http://evil.example",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "ASI_CLEAN": "wrong",
        "ASI_WORK": "/evil",
    }
    done = cluster.run(import_request("client"), hostile)
    assert done.status == 0, done.output
    assert list(tmp_path.glob("trapped-*")) == []
    imported = cluster.slurm.enroot_environment("import")
    assert set(imported) - BASH_OWN == FIXED | SLURM | IMPORT
    own, _, rest = imported["PATH"].partition(":")
    assert Path(own).is_relative_to(cluster.slurm.scratch) and rest == f"{cluster.slurm.enroot}:{SYSTEM_PATH}"
    assert imported["HOME"] not in ("/nonexistent", "")
    started = cluster.slurm.enroot_environment("start")
    assert set(started) - BASH_OWN == {
        *("PATH", "HOME", "LC_ALL", "NVIDIA_VISIBLE_DEVICES", "MELLANOX_VISIBLE_DEVICES"),
        *("ENROOT_SYSCONF_PATH", "ENROOT_CONFIG_PATH", "ENROOT_RUNTIME_PATH", "ENROOT_DATA_PATH"),
        *("ENROOT_TEMP_PATH", "ENROOT_CACHE_PATH", "ENROOT_LOGIN_SHELL", "ENROOT_MOUNT_HOME"),
        *("ENROOT_ROOTFS_WRITABLE", "ENROOT_REMAP_ROOT", "ENROOT_ALLOW_SUPERUSER"),
    }


def test_nothing_of_an_import_is_written_to_home_or_the_runtime_directory(cluster: LocalCluster) -> None:
    done = cluster.run(import_request("client"))
    for verb in ("import", "start"):
        environment = cluster.slurm.enroot_environment(verb)
        places = [value for name, value in environment.items() if name.startswith("ENROOT_") and value.startswith("/")]
        places += [environment["TMPDIR"]] if verb == "import" else [environment["HOME"]]
        allowed = (f"{cluster.slurm.scratch}/", f"{done.directory}/")
        assert places
        assert [place for place in places if not place.startswith(allowed)] == []


def test_enroot_gets_the_allocations_cpus_and_squash_options_that_fail_on_errors(cluster: LocalCluster) -> None:
    cluster.run(import_request())
    environment = cluster.slurm.enroot_environment("import")
    assert environment["ENROOT_MAX_PROCESSORS"] == "4"
    assert environment["ENROOT_SQUASH_OPTIONS"] == "-mem 4096M -comp zstd -Xcompression-level 1 -noD -exit-on-error"
    assert environment["ENROOT_ALLOW_HTTP"] == "no"
    (call,) = cluster.slurm.enroot_calls("import")
    assert call.endswith("docker://reg.example#acme/tool:sha256:" + "a" * 64)


def test_the_profile_reaches_slurm_and_the_job(cluster: LocalCluster) -> None:
    cluster.profile |= {
        "cpus_per_task": "8",
        "memory": "32G",
        "time_limit": "01:00:00",
        "partition": "cpu",
        "environment": {"https_proxy": "http://proxy.example:3128"},
        "squash_options": "-comp lzo",
        "insecure_registries": ["reg.example"],
    }
    cluster.hook = cluster.new_hook()
    done = cluster.run(import_request())
    options = cluster.slurm.job(done.job_id)["options"]
    assert options["cpus-per-task"] == "8"
    assert options["mem"] == "32G"
    assert options["time"] == "01:00:00"
    assert options["dependency"] == "singleton"
    assert not [name for name in options if "gres" in name or "gpu" in name]
    environment = cluster.slurm.enroot_environment("import")
    assert environment["https_proxy"] == "http://proxy.example:3128"
    assert environment["ENROOT_MAX_PROCESSORS"] == "8"
    assert environment["ENROOT_MAX_CONNECTIONS"] == "10"
    assert environment["ENROOT_TRANSFER_RETRIES"] == "3"
    assert environment["ENROOT_SQUASH_OPTIONS"] == "-mem 8192M -comp lzo -exit-on-error"
    assert environment["ENROOT_ALLOW_HTTP"] == "yes"


def test_the_site_s_own_transfer_settings_win(cluster: LocalCluster) -> None:
    wanted = {"ENROOT_MAX_CONNECTIONS": "1", "ENROOT_TRANSFER_RETRIES": "0"}
    cluster.profile |= {"environment": wanted, "memory": "300M", "cpus_per_task": "2"}
    cluster.hook = cluster.new_hook()
    assert cluster.run(import_request()).status == 0
    environment = cluster.slurm.enroot_environment("import")
    assert {name: environment[name] for name in wanted} == wanted
    assert environment["ENROOT_SQUASH_OPTIONS"].startswith("-mem 128M ")


HASH_TOOLS = {
    "openssl": {},
    "sha256sum": {"openssl": "exit 1", "sha256sum": 'exec {real} "$@" # libcrypto.so.3'},
    "python3": {"openssl": "exit 1"},
    "sha256sum alone": {"openssl": "echo no digest", "python3": "exit 1"},
}


@pytest.mark.parametrize("tool", HASH_TOOLS)
def test_the_fastest_hash_tool_there_is_hashes_and_is_named(cluster: LocalCluster, tool: str) -> None:
    for name, script in HASH_TOOLS[tool].items():
        cluster.slurm.tool(name, script.format(real=shutil.which(name)))
    done = cluster.run(import_request())
    assert done.status == 0, done.output
    assert done.record.hash_tool == tool.split()[0]
    assert f"hashing with {done.record.hash_tool}" in done.output
    assert done.record.sqsh is not None
    assert done.record.sqsh.sha256 == hashlib.sha256(image("plain").read_bytes()).hexdigest()


def test_a_cuda_image_is_started_without_devices(cluster: LocalCluster) -> None:
    cluster.slurm.enroot_does(
        "start", '[[ "${NVIDIA_VISIBLE_DEVICES}" == void ]] || exit 1\ncat "${here}/facts.json" > "${facts}"'
    )
    done = cluster.run(import_request("client"))
    assert done.status == 0, done.output


def test_a_generic_image_is_read_and_never_started(cluster: LocalCluster) -> None:
    done = cluster.run(import_request("generic"))
    assert done.status == 0, done.output
    assert cluster.slurm.enroot_calls("start") == []
    static = done.directory / "output/static"
    assert b"Tiny Linux" in (static / "os-release").read_bytes()
    assert (static / "elf").read_bytes().startswith(b"\x7fELF")
    assert (static / "superblock").stat().st_size == 96


def test_an_inspection_leaves_the_file_where_it_is_and_as_it_was(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "given.sqsh"
    path.write_bytes(image("plain").read_bytes())
    before = path.stat()
    done = cluster.run(inspect_request(path, "client"))
    assert done.status == 0, done.output
    sqsh = done.record.sqsh
    assert sqsh is not None
    assert (sqsh.path, sqsh.managed) == (str(path), False)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list((cluster.workspace / "store/sha256").iterdir()) == []


def test_an_inspection_can_copy_the_file_into_the_store(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "given.sqsh"
    path.write_bytes(image("plain").read_bytes())
    done = cluster.run(inspect_request(path, name="copy", copy_to_store=True))
    assert done.status == 0, done.output
    sqsh = done.record.sqsh
    assert sqsh is not None
    assert sqsh.managed
    assert Path(sqsh.path).read_bytes() == path.read_bytes()


def test_layers_are_kept_for_the_next_import_and_the_login_is_not(cluster: LocalCluster) -> None:
    cluster.slurm.enroot_does(
        "import",
        f"""ls "${{ENROOT_CACHE_PATH}}" > "${{here}}/seen"
        echo layer > "${{ENROOT_CACHE_PATH}}/{LAYER}"
        echo secret > "${{ENROOT_CACHE_PATH}}/.tokens.1000"
        cp "${{here}}/image.sqsh" "${{output}}" """,
    )
    first = cluster.run(import_request())
    cache = Path(first.plan.cache_directory)
    assert [path.name for path in cache.iterdir()] == [LAYER]
    assert not (first.directory / "cache").exists()
    cluster.run(import_request())
    assert (cluster.slurm.enroot / "seen").read_text().split() == [LAYER]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(cluster: LocalCluster, umask: int) -> None:
    cluster.umask = umask
    plan, job_id = cluster.submit(import_request("client"))
    done = Outcome(plan, job_id, cluster.slurm.run(job_id, umask=umask))
    assert done.status == 0, done.output
    wrong = {
        str(path): oct(stat.S_IMODE(path.stat().st_mode))
        for path in cluster.workspace.rglob("*")
        if stat.S_IMODE(path.lstat().st_mode) & 0o077 and path.name != "slurm.out"  # Slurm makes that one
    }
    assert wrong == {}
