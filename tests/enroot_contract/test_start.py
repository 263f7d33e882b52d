"""Starting an image straight from its file: what runs, with which environment, and what it answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from .images import OCI_MANIFEST, PATH_INSIDE, Tree, build, squash
from .registries import DockerRegistry, OddRegistry
from .runner import Enroot


@pytest.mark.parametrize(
    ("command", "status"),
    [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["no-such-program"], 127), (["/etc/passwd"], 126)],
    ids=["success", "failure", "not-found", "not-executable"],
)
def test_the_command_s_status_is_returned(enroot: Enroot, sqsh: Path, command: list[str], status: int) -> None:
    assert enroot.start(sqsh, *command).status == status


@pytest.mark.parametrize("number", [9, 15])
def test_a_killed_command_is_reported_as_killed(enroot: Enroot, sqsh: Path, number: int) -> None:
    assert enroot.start(sqsh, "sh", "-c", f"kill -{number} $$").status == -number


def test_standard_streams_are_the_caller_s(enroot: Enroot, sqsh: Path) -> None:
    result = enroot.start(sqsh, "sh", "-c", "cat; echo complaint >&2", stdin="through\n")
    assert (result.status, result.out, result.err) == (0, "through\n", "complaint\n")


def test_nothing_is_unpacked_and_the_file_is_not_changed(enroot: Enroot, sqsh: Path) -> None:
    before = sqsh.read_bytes()
    assert enroot.start(sqsh, "sh", "-c", "echo x > /new", options=["--rw"]).status == 0
    assert list(enroot.paths["data"].iterdir()) == []
    assert sqsh.read_bytes() == before


def test_nothing_stays_mounted(enroot: Enroot, sqsh: Path) -> None:
    assert enroot.start(sqsh, "true").status == 0
    assert str(enroot.base) not in Path("/proc/self/mounts").read_text()
    assert list(enroot.paths["runtime"].iterdir()) == []


def test_the_image_s_script_runs_its_entrypoint_with_our_words(enroot: Enroot, registry: DockerRegistry) -> None:
    image = enroot.imported(registry, "team/tool:1")
    result = enroot("start", str(image), "our", "words")
    assert (result.status, result.out) == (0, "entrypoint's our words\n")


def test_the_image_s_script_runs_its_command_without_words(enroot: Enroot, registry: DockerRegistry) -> None:
    image = enroot.imported(registry, "team/tool:1")
    assert enroot("start", str(image)).out == "entrypoint's own words\n"


def test_the_image_s_script_starts_in_its_working_directory(enroot: Enroot, odd: OddRegistry, base_layer: Tree) -> None:
    image = build([base_layer], Cmd=["/bin/sh", "-c", 'pwd; echo "it\'s $0"', "q'd"], WorkingDir="/app/dir")
    odd.add("team/tool", image, "1", media_type=OCI_MANIFEST)
    assert enroot.import_(odd.uri("team/tool:1")).status == 0
    assert enroot("start", str(enroot.base / "image.sqsh")).lines == ["/app/dir", "it's q'd"]


def test_a_script_of_ours_replaces_the_image_s(enroot: Enroot, registry: DockerRegistry) -> None:
    image = enroot.imported(registry, "team/tool:1")
    rc = enroot.write(enroot.base / "ours", 'echo "ours: $*"; exit 3\n')
    result = enroot("start", "--rc", str(rc), str(image), "a word")
    assert (result.status, result.out) == (3, "ours: a word\n")


def test_a_missing_script_is_named(enroot: Enroot, sqsh: Path) -> None:
    missing = enroot.base / "missing"
    result = enroot("start", "--rc", str(missing), str(sqsh))
    assert (result.status, result.err) == (1, f"[ERROR] No such file or directory: {missing}\n")


def test_the_image_s_environment_and_nothing_of_the_caller_s(enroot: Enroot, sqsh: Path) -> None:
    result = enroot.start(sqsh, "env", env={"SECRET": "word", "LD_PRELOAD": "", "PYTHONPATH": "/host"})
    assert result.status == 0
    variables = dict(line.split("=", 1) for line in result.lines)
    assert {"PATH": PATH_INSIDE, "FROM_IMAGE": "yes"}.items() <= variables.items()
    assert set(variables) - {"PATH", "FROM_IMAGE"} <= {"HOME", "USER", "LOGNAME", "SHELL", "TERM", "PWD", "SHLVL", "_"}


def test_variables_can_be_given(enroot: Enroot, sqsh: Path) -> None:
    result = enroot.start(sqsh, "env", options=["--env", "GIVEN=a b", "--env", "TAKEN"], env={"TAKEN": "over"})
    assert {"GIVEN=a b", "TAKEN=over"} <= set(result.lines)


@pytest.mark.parametrize("value", ["1A=x", "A-B=x", "=x"])
def test_a_malformed_variable_is_refused(enroot: Enroot, sqsh: Path, value: str) -> None:
    result = enroot.start(sqsh, "env", options=["--env", value])
    assert (result.status, result.err) == (1, f"[ERROR] Invalid argument: {value}\n")


def test_a_login_shell_resets_the_image_s_path(enroot: Enroot, sqsh: Path) -> None:
    """Its /etc/profile runs; ENROOT_LOGIN_SHELL=no is what keeps the image's tools reachable."""
    result = enroot.start(sqsh, "sh", "-c", "echo $PATH; tool", env={"ENROOT_LOGIN_SHELL": None})
    assert (result.status, result.lines[0]) == (127, "/usr/local/bin:/bin")
    result = enroot.start(sqsh, "sh", "-c", "echo $PATH; tool", env={"ENROOT_LOGIN_SHELL": "no"})
    assert (result.status, result.lines) == (0, [PATH_INSIDE, "a tool of the image"])


def test_a_login_shell_goes_home(enroot: Enroot, sqsh: Path) -> None:
    result = enroot.start(sqsh, "sh", "-c", "pwd; echo $HOME", options=["--root"], env={"ENROOT_LOGIN_SHELL": "yes"})
    assert result.lines == ["/root", "/root"]


def test_without_login_the_start_is_at_the_root(enroot: Enroot, sqsh: Path) -> None:
    assert enroot.start(sqsh, "sh", "-c", "pwd; echo $HOME").lines == ["/", ""]


@pytest.mark.parametrize("options", [[], ["--root"]], ids=["self", "root"])
def test_who_one_is_inside(enroot: Enroot, sqsh: Path, options: list[str]) -> None:
    result = enroot.start(sqsh, "sh", "-c", "id -u; id -g", options=options)
    uid, gid = (0, 0) if options else (enroot.account.uid, enroot.account.gid)
    assert result.lines == [str(uid), str(gid)]


def test_root_inside_is_the_caller_outside(enroot: Enroot, sqsh: Path) -> None:
    shared = enroot.base / "shared"
    shared.mkdir()
    enroot.account.own(shared)
    options = ["--root", "--mount", f"{shared}:/mnt:x-create=dir,bind,rw"]
    assert enroot.start(sqsh, "touch", "/mnt/made", options=options).status == 0
    assert (shared / "made").stat().st_uid == enroot.account.uid


def test_every_file_is_the_caller_s_own(enroot: Enroot, session_dir: Path, base_layer: Tree) -> None:
    tree = base_layer.plus({"root/tool": "#!/bin/sh\necho ran\n"})
    tree.modes["root/tool"] = 0o700
    image = squash(tree, enroot.base / "image.sqsh", session_dir)
    assert enroot.start(image, "/root/tool").out == "ran\n"


def test_the_image_is_read_only(enroot: Enroot, sqsh: Path) -> None:
    result = enroot.start(sqsh, "touch", "/new")
    assert (result.status, result.err) == (1, "touch: /new: Read-only file system\n")


@pytest.mark.parametrize(("options", "switch"), [(["--rw"], None), ([], "yes")], ids=["option", "variable"])
def test_writing_can_be_asked_for_and_is_forgotten(
    enroot: Enroot, sqsh: Path, options: list[str], switch: str | None
) -> None:
    env = {"ENROOT_ROOTFS_WRITABLE": switch}
    assert enroot.start(sqsh, "touch", "/new", options=options, env=env).status == 0
    assert enroot.start(sqsh, "ls", "/new", options=options, env=env).status == 1


def test_no_home_is_mounted(enroot: Enroot, sqsh: Path) -> None:
    home = enroot.paths["home"]
    assert enroot.start(sqsh, "ls", str(home)).status == 1


def test_only_the_caller_s_standard_streams_are_inherited(enroot: Enroot, sqsh: Path) -> None:
    result = enroot.start(sqsh, "sh", "-c", "ls /proc/$$/fd")
    assert result.lines[:3] == ["0", "1", "2"]
    links = enroot.start(sqsh, "sh", "-c", "for fd in /proc/$$/fd/*; do readlink $fd; done").out
    assert str(enroot.base) not in links


def test_privileges_are_gone_inside(enroot: Enroot, sqsh: Path) -> None:
    status = enroot.start(sqsh, "cat", "/proc/self/status").out
    fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert fields["NoNewPrivs"] == "1"
    assert {fields[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}


def test_two_starts_at_once_do_not_meet(enroot: Enroot, sqsh: Path) -> None:
    first = enroot.popen("start", "--rw", "--rc", str(enroot.exec_rc), str(sqsh), "sh", "-c", "echo here; cat")
    assert first.stdout is not None
    assert first.stdout.readline() == "here\n"
    second = enroot.start(sqsh, "true")
    out, _ = first.communicate("", timeout=20)
    assert (second.status, first.returncode, out) == (0, 0, "")


def test_changing_owners_inside_seems_to_work(enroot: Enroot, sqsh: Path) -> None:
    """Package managers in images do so; a user namespace of one user cannot."""
    script = "touch /new && /bin/busybox chown 12:34 /new"
    assert enroot.start(sqsh, "sh", "-c", script, options=["--rw", "--root"]).status == 0


def test_the_running_process_is_the_one_that_was_started(enroot: Enroot, sqsh: Path) -> None:
    """Without a PID namespace: signals to Enroot's process reach the command itself."""
    process = enroot.popen("start", "--rc", str(enroot.exec_rc), str(sqsh), "sh", "-c", "readlink /proc/self; echo $$")
    out, _ = process.communicate(timeout=20)
    assert out.splitlines()[1] == str(process.pid)
