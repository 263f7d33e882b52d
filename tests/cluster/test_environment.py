# SPDX-License-Identifier: Apache-2.0
"""Whatever an account's login scripts print, export or set, on the login node and on the compute node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.errors import ClusterUnavailableError

from .box import Box
from .remains import bound, private_home, snapshot
from .slurm_daemons import CLOSED_PARTITION
from .sqsh import place, squash, tree_of
from .works import inspect_task, slurm_hook, wrapped

NOISE = """\
echo 'Welcome!'; echo 'Job 99999 done'; echo 'Submitted batch job 99999'; echo 'asi-0 begin'; echo 'asi-0 end 0' >&2
printf 'no newline at the end'
"""
EXPORTS = f"""\
export SBATCH_MEM_PER_NODE=100M SBATCH_PARTITION={CLOSED_PARTITION} SBATCH_TIMELIMIT=1 SBATCH_EXPORT=ALL
export SBATCH_TEST_ONLY=1 SLURM_CPUS_PER_TASK=7 SLURM_CLUSTERS=nowhere SLURM_JOB_ID=1
export SLURM_TIME_FORMAT=relative PMIX_RANK=3
export SQUEUE_FORMAT=%i SQUEUE_STATES=FAILED SACCT_FORMAT=jobid SCANCEL_INTERACTIVE=1 SCONTROL_CLUSTERS=nowhere
export BASH_ENV=~/evil.sh ENV=~/evil.sh LD_PRELOAD=/nonexistent.so POSIXLY_CORRECT=1 CDPATH=/tmp GREP_OPTIONS=-v
export ENROOT_SQUASH_OPTIONS=-bad ENROOT_REMAP_ROOT=yes ENROOT_DATA_PATH=~/data ENROOT_MOUNT_HOME=yes
export PYTHONPATH=~/evil PYTHONHOME=/nonexistent TAR_OPTIONS=--bad UNZIP=--bad LC_ALL=xx_YY.bad LANG=bad TZ=Bad/Zone
squeue() {{ echo 'not squeue'; }}; export -f squeue; sha256sum() {{ echo evil; }}; export -f sha256sum
alias stat='echo evil'; set -o noglob -o noclobber; shopt -s nullglob extdebug; IFS=x; umask 0
"""
EVIL = "#!/bin/bash\ntouch ~/evil-ran\n"


@pytest.fixture(scope="module")
def image(box_plain: Box, image_layouts: dict[str, Path]) -> Path:
    return squash(tree_of(image_layouts["nopython"]), place(box_plain, "environment"))


@contextmanager
def home_with(box: Box, **scripts: str) -> Iterator[Path]:
    """A home whose start-up scripts are these; keys are names with `_` for the dot."""
    files = {name.replace("_", "."): text for name, text in scripts.items()} | {"evil.sh": EVIL}
    with private_home(box, files) as home:
        before = snapshot(home)
        yield home
        assert snapshot(home) == before


def works(box: Box, image: Path, **profile: Any) -> None:
    """A job goes its whole way, with the resources that were asked for."""
    task = inspect_task(box, image, "generic", **profile)
    assert task.run().image["architecture"] == "amd64"
    shown = box.as_root(["scontrol", "-o", "show", "job", str(task.handle.job_id)]).stdout
    wanted = {f"Partition={box.partition}", "TimeLimit=00:10:00", "MinMemoryNode=1G", "CPUs/Task=1"}
    assert wanted <= set(shown.split()), shown
    assert task.directory.stat().st_mode & 0o777 == 0o700
    opened = [path for path in [task.directory, *task.directory.rglob("*")] if path.stat().st_mode & 0o077]
    assert [path for path in opened if not path.is_symlink()] == []


def test_scripts_of_the_login_may_print_and_export_what_they_like(box_plain: Box, image: Path) -> None:
    with home_with(box_plain, _bashrc=NOISE + EXPORTS + "export TMPDIR=/nonexistent\n" + NOISE):
        works(box_plain, image)


def test_the_profile_of_the_node_may_print_and_export_what_it_likes(box_plain: Box, image: Path) -> None:
    """Slurm before 23.02 runs it for `--export=NIL`."""
    with home_with(box_plain, _profile=NOISE + EXPORTS, _bash_logout=NOISE):
        works(box_plain, image)


@pytest.mark.parametrize("path", ["/nonexistent", "", "~/evil:."])
def test_a_search_path_that_leads_nowhere_does_not_matter(box_plain: Box, image: Path, path: str) -> None:
    with home_with(box_plain, _profile=f"export PATH={path}\n", _bashrc=f"export PATH={path}\n"):
        works(box_plain, image)


@pytest.mark.parametrize("umask", ["000", "077", "777"])
def test_modes_do_not_follow_the_account_s_umask(box_plain: Box, image: Path, umask: str) -> None:
    with home_with(box_plain, _profile=f"umask {umask}\n", _bashrc=f"umask {umask}\n"):
        works(box_plain, image)
    for directory in ("store", "store/sha256", "aliases", "users"):
        assert (box_plain.workspace / directory).stat().st_mode & 0o777 == 0o700


def test_enroot_sees_nothing_of_it(box_plain: Box, image: Path) -> None:
    seen = box_plain.workspace / "environment-seen"
    wrapper = wrapped(box_plain, "enroot", f'env >> {seen}; exec {{real}} "$@"')
    with home_with(box_plain, _profile=EXPORTS, _bashrc=EXPORTS):
        works(box_plain, image, **wrapper)
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert {"PATH", "HOME", "TMPDIR"} <= names
    assert names <= {
        *("PATH", "HOME", "USER", "LOGNAME", "LC_ALL", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"),
        *("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME"),
        *("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"),
        *("ENROOT_RUNTIME_PATH", "ENROOT_DATA_PATH", "ENROOT_TEMP_PATH", "ENROOT_CACHE_PATH"),
    }
    assert "SLURM_CPUS_PER_TASK=7" not in seen.read_text()


SHELLS = {
    "/bin/sh": (".profile", NOISE),
    "/bin/dash": (".profile", NOISE),
    "/usr/bin/tcsh": (".cshrc", "echo Welcome\nsetenv SBATCH_PARTITION closed\nset noclobber\n"),
    "/usr/bin/fish": (".config/fish/config.fish", "echo Welcome\nset -x SBATCH_PARTITION closed\n"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_any_login_shell_will_do(box_plain: Box, image: Path, tmp_path: Path, shell: str) -> None:
    script, text = SHELLS[shell]
    # All of /etc: a mount over the file alone goes when somebody on this machine, like another box, writes it anew.
    # Unchecked for the same reason: another's temporary file may go while it is copied, and nobody misses it.
    box_plain.as_root(["cp", "--archive", "/etc", str(tmp_path)])
    accounts = tmp_path / "etc" / "passwd"
    changed = rf"^({box_plain.user}:.*):[^:]*$"
    accounts.write_text(re.sub(changed, rf"\1:{shell}", accounts.read_text(), flags=re.MULTILINE))
    with bound(box_plain, tmp_path / "etc", Path("/etc")), private_home(box_plain, {script: text}):
        works(box_plain, image)


def test_a_login_that_ends_at_once_is_unavailable_and_not_an_answer(box_plain: Box) -> None:
    with home_with(box_plain, _bashrc=NOISE + "exit 0\n"), pytest.raises(ClusterUnavailableError, match="truncated"):
        slurm_hook(box_plain).prepare("0" * 32)
