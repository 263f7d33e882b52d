"""What decides a start's mounts, variables and hooks: the site, the image, and the --conf script."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .images import Tree, squash
from .registries import DockerRegistry
from .runner import Enroot


def _mounted(enroot: Enroot, image: Path, *options: str) -> dict[str, str]:
    """Mount point -> its line in /proc/mounts."""
    result = enroot.start(image, "cat", "/proc/mounts", options=options)
    assert result.status == 0, result.err
    return {line.split()[1]: line for line in result.lines}


@pytest.fixture
def greedy_image(enroot: Enroot, session_dir: Path, base_layer: Tree) -> Path:
    """Its fstab asks for a directory of the host."""
    host = enroot.base / "host"
    host.mkdir()
    (host / "file").write_text("of the host\n")
    tree = base_layer.plus({"etc/fstab": f"{host} /host none x-create=dir,bind,ro\n"})
    return squash(tree, enroot.base / "image.sqsh", session_dir)


def test_a_private_system_configuration_decides_all_mounts(enroot: Enroot, sqsh: Path) -> None:
    assert set(_mounted(enroot, sqsh)) == {"/", "/proc", "/tmp", "/dev/null", "/.lock"}


def test_the_user_s_own_configuration_is_read_as_well(enroot: Enroot, sqsh: Path) -> None:
    (enroot.paths["config"] / "mounts.d").mkdir()
    enroot.write(enroot.paths["config"] / "mounts.d/10.fstab", "tmpfs /extra tmpfs x-create=dir\n")
    assert "/extra" in _mounted(enroot, sqsh)


def test_variables_in_a_mount_table_are_replaced(enroot: Enroot, sqsh: Path) -> None:
    enroot.write(enroot.sysconf / "mounts.d/50.fstab", "${HOME} /home-inside none x-create=dir,bind,ro\n")
    enroot.write(enroot.paths["home"] / "mine", "x")
    assert enroot.start(sqsh, "ls", "/home-inside").lines == ["mine"]


def test_system_variables_are_set_inside(enroot: Enroot, sqsh: Path) -> None:
    text = "# a comment\nSITE=${SITE_NAME}\n  INDENTED='in quotes'\nENROOT_PRIVATE=x\n1BAD=x\nnonsense\n"
    enroot.write(enroot.sysconf / "environ.d/10.env", text)
    lines = set(enroot.start(sqsh, "env", env={"SITE_NAME": "lab"}).lines)
    assert {"SITE=lab", "INDENTED=in quotes"} <= lines
    assert not [line for line in lines if line.startswith(("ENROOT", "1BAD", "nonsense"))]


def test_executable_hooks_run_and_can_ask_for_mounts_and_variables(enroot: Enroot, sqsh: Path) -> None:
    enroot.helper("hook.sh", enroot.sysconf / "hooks.d/10-hook.sh")
    enroot.helper("hook_failing.sh", enroot.sysconf / "hooks.d/20-asleep.sh")
    (enroot.sysconf / "hooks.d/20-asleep.sh").chmod(0o644)
    result = enroot.start(sqsh, "sh", "-c", "env; cat /proc/mounts")
    assert (result.status, result.err) == (0, f"hook of {enroot.paths['runtime']}/overlay\n")
    assert "HOOKED=yes" in result.lines
    assert " /hooked tmpfs " in result.out


def test_a_failing_hook_fails_the_start(enroot: Enroot, sqsh: Path) -> None:
    hook = enroot.helper("hook_failing.sh", enroot.sysconf / "hooks.d/10-hook.sh")
    result = enroot.start(sqsh, "true")
    assert (result.status, result.err) == (1, f"[ERROR] {hook} exited with return code 9\n")


def test_the_image_s_fstab_mounts_the_host(enroot: Enroot, greedy_image: Path) -> None:
    assert enroot.start(greedy_image, "cat", "/host/file").out == "of the host\n"


def test_a_conf_script_can_empty_the_image_s_fstab(enroot: Enroot, greedy_image: Path) -> None:
    conf = enroot.helper("conf_empty_fstab.sh")
    assert "/host" not in _mounted(enroot, greedy_image, "--conf", conf)
    assert enroot.start(greedy_image, "cat", "/etc/fstab", options=["--conf", conf]).out == ""


@pytest.fixture
def asking_image(enroot: Enroot, session_dir: Path, base_layer: Tree) -> Path:
    """Its environment names variables."""
    tree = base_layer.plus({"etc/environment": "ASKED=${HOME}:${NOBODYS}:$HOME\n  QUOTED=\"'in quotes'\" \n# A=x\n"})
    return squash(tree, enroot.base / "image.sqsh", session_dir)


def test_variables_in_the_image_s_environment_are_the_caller_s(enroot: Enroot, asking_image: Path) -> None:
    lines = enroot.start(asking_image, "env").lines
    assert f"ASKED={enroot.paths['home']}::$HOME" in lines
    assert "QUOTED=in quotes" in lines


def test_a_conf_script_s_variables_are_taken_as_they_are(enroot: Enroot, asking_image: Path) -> None:
    lines = enroot.start(asking_image, "env", options=["--conf", enroot.helper("conf_environment.sh")]).lines
    assert "CONFIGURED=${HOME}" in lines
    assert not [line for line in lines if line.startswith(("ASKED", "QUOTED"))]


def test_volumes_are_writable_mounts(enroot: Enroot, registry: DockerRegistry) -> None:
    image = enroot.imported(registry, "team/tool:1")
    assert enroot.start(image, "sh", "-c", "echo x > /volume/new; cat /volume/new", options=["--root"]).out == "x\n"
    conf = enroot.helper("conf_empty_fstab.sh")
    assert "/volume" not in _mounted(enroot, image, "--conf", conf)


def test_a_conf_script_s_functions_are_asked(enroot: Enroot, sqsh: Path) -> None:
    result = enroot("start", "--conf", enroot.helper("conf_functions.sh"), str(sqsh), "word")
    assert (result.status, result.err) == (0, f"hook of {enroot.paths['runtime']}/overlay\n")
    assert result.lines[:2] == ["rc: word", "yes"]
    assert " /configured tmpfs " in result.out


def test_a_conf_script_s_directives_count_more_than_the_environment(enroot: Enroot, sqsh: Path) -> None:
    options = ["--conf", enroot.helper("conf_directives.sh")]
    assert enroot.start(sqsh, "touch", "/new", options=options, env={"ENROOT_ROOTFS_WRITABLE": "no"}).status == 0


def test_a_failing_conf_script_fails_the_start(enroot: Enroot, sqsh: Path) -> None:
    conf = enroot.write(enroot.base / "conf", "exit 5\n")
    assert enroot.start(sqsh, "true", options=["--conf", str(conf)]).status == 5


def test_a_conf_script_with_a_syntax_error_is_refused(enroot: Enroot, sqsh: Path) -> None:
    conf = enroot.write(enroot.base / "conf", "if\n")
    result = enroot.start(sqsh, "true", options=["--conf", str(conf)])
    assert result.status == 1
    assert result.err.startswith(f"[WARN] {conf}: line ")
    assert result.last_error_line == f"[ERROR] Invalid argument: {conf}"


def test_a_missing_conf_script_is_named(enroot: Enroot, sqsh: Path) -> None:
    missing = enroot.base / "missing"
    result = enroot.start(sqsh, "true", options=["--conf", str(missing)])
    assert (result.status, result.err) == (1, f"[ERROR] No such file or directory: {missing}\n")


def test_a_file_is_mounted_read_only(enroot: Enroot, sqsh: Path) -> None:
    file = enroot.write(enroot.base / "file", "of the host\n", 0o666)
    options = ["--mount", f"{file}:/new/place:x-create=file,bind,ro"]
    result = enroot.start(sqsh, "sh", "-c", "cat /new/place; echo x > /new/place", options=options)
    assert (result.status, result.out) == (1, "of the host\n")
    assert "Read-only file system" in result.err


def test_a_directory_is_mounted_for_writing(enroot: Enroot, sqsh: Path) -> None:
    directory = enroot.base / "directory"
    directory.mkdir()
    enroot.account.own(directory)
    options = ["--mount", f"{directory}:/output:x-create=dir,bind,rw,nosuid,nodev,noexec"]
    assert enroot.start(sqsh, "sh", "-c", "echo out > /output/file", options=options).status == 0
    assert (directory / "file").read_text() == "out\n"


def test_source_and_target_alone_are_enough(enroot: Enroot, sqsh: Path) -> None:
    file = enroot.write(enroot.base / "file", "of the host\n")
    assert enroot.start(sqsh, "cat", "/place", options=["--mount", f"{file}:/place"]).out == "of the host\n"


@pytest.mark.parametrize("mount", ["/a b:/c", "/a:/b c:bind", ""])
def test_white_space_in_a_mount_is_refused(enroot: Enroot, sqsh: Path, mount: str) -> None:
    result = enroot.start(sqsh, "true", options=["--mount", mount])
    assert result.status == 1
    if mount:
        assert result.err == f"[ERROR] Invalid argument: {mount}\n"


def test_a_missing_mount_source_fails_the_start(enroot: Enroot, sqsh: Path) -> None:
    result = enroot.start(sqsh, "true", options=["--mount", "/no/such:/place:x-create=file,bind"])
    assert result.status == 1
    where = f"{enroot.paths['runtime']}/overlay/place"
    assert result.err == f"enroot-mount: failed to mount: /no/such at {where}: No such file or directory\n"


def test_a_mount_target_that_leads_out_of_the_image_stays_inside(
    enroot: Enroot, session_dir: Path, base_layer: Tree
) -> None:
    outside = enroot.base / "outside"
    outside.mkdir(mode=0o777)
    image = squash(base_layer.plus({}, {"out": str(outside)}), enroot.base / "image.sqsh", session_dir)
    file = enroot.write(enroot.base / "file", "of the host\n")
    options = ["--mount", f"{file}:/out/file:x-create=file,bind,ro"]
    assert enroot.start(image, "cat", "/out/file", options=options).out == "of the host\n"
    assert list(outside.iterdir()) == []


def test_a_script_needs_proc_inside(enroot: Enroot, sqsh: Path) -> None:
    """It is read through /proc/self/fd; without one the image's own script, or our words, run instead."""
    (enroot.sysconf / "mounts.d/10-proc.fstab").unlink()
    rc = enroot.write(enroot.base / "ours", "echo ours\n")
    result = enroot("start", "--rc", str(rc), str(sqsh), "echo", "words")
    assert (result.status, result.out) == (0, "words\n")


def test_into_a_read_only_directory_an_image_writes_through_a_pipe_only(enroot: Enroot, sqsh: Path) -> None:
    """All four columns of a mount can be given."""
    outer = enroot.base / "outer"
    outer.mkdir()
    os.mkfifo(outer / "pipe")
    for path in (outer, outer / "pipe"):
        enroot.account.own(path)
    options = ["--mount", f"{outer}:/asi:none:x-create=dir,bind,ro,nosuid,nodev,noexec,private"]
    script = "echo out > /asi/pipe; chmod 777 /asi/pipe; rm -f /asi/pipe; echo no > /asi/file"
    with subprocess.Popen(["cat", str(outer / "pipe")], stdout=subprocess.PIPE) as reader:
        assert enroot.start(sqsh, "sh", "-c", script, options=options).status == 1
        assert reader.communicate(timeout=60)[0] == b"out\n"
    assert [path.name for path in outer.iterdir()] == ["pipe"]
    assert (outer / "pipe").stat().st_mode & 0o111 == 0


def test_the_home_switch_does_nothing_without_the_site_s_hook(enroot: Enroot, sqsh: Path) -> None:
    home = str(enroot.paths["home"])
    assert enroot.start(sqsh, "ls", home, env={"ENROOT_MOUNT_HOME": "yes"}).status == 1


def test_the_stock_configuration_shows_the_host_s_system_and_on_request_home(enroot: Enroot, sqsh: Path) -> None:
    enroot.write(enroot.paths["home"] / "mine", "x")
    env = {"ENROOT_SYSCONF_PATH": None, "ENROOT_MOUNT_HOME": "yes"}
    result = enroot.start(sqsh, "sh", "-c", "cat /proc/mounts; ls $HOME/mine", options=["--root"], env=env)
    assert result.status == 0, result.err
    mounted = {line.split()[1] for line in result.lines if len(line.split()) > 2}
    assert {"/proc", "/sys", "/dev", "/tmp", "/root", "/etc/hosts"} <= mounted
