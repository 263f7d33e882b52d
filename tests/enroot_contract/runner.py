"""Runs the Enroot under test as an ordinary user, in directories of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .registries import DockerRegistry

SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
USER = "asiuser"
HELPERS = Path(__file__).resolve().parent / "helpers"


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int

    def own(self, *paths: Path) -> None:
        for path in paths:
            os.chown(path, self.uid, self.gid)


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def last_error_line(self) -> str:
        return self.err.rstrip("\n").rpartition("\n")[2]

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def wait_until(what: str, condition: Callable[[], object], patience: float = 10.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {patience} s"
        time.sleep(0.02)


class Enroot:
    """One test's Enroot: its program, its user, its directories."""

    def __init__(self, program: Path, account: Account, base: Path) -> None:
        self.program = program
        self.account = account
        self.base = base
        self.paths = {name: base / name for name in ("home", "cache", "data", "runtime", "config", "tmp")}
        for path in (base, *self.paths.values()):
            path.mkdir(mode=0o755)
            account.own(path)
        # Without mounts, hooks and variables of the site: tests put there what they need.
        self.sysconf = base / "sysconf"
        for name in ("mounts.d", "environ.d", "hooks.d"):
            (self.sysconf / name).mkdir(parents=True)
        self.write(self.sysconf / "mounts.d/10-proc.fstab", "/proc /proc none x-create=dir,rbind,nosuid,nodev 0 -1\n")
        self.write(self.sysconf / "mounts.d/20-tmp.fstab", "tmpfs /tmp tmpfs x-create=dir,mode=1777 0 -1\n")
        self.write(self.sysconf / "mounts.d/30-null.fstab", "/dev/null /dev/null none x-create=file,bind,rw 0 -1\n")
        self.exec_rc = self.write(base / "rc", 'exec "$@"\n')

    def write(self, path: Path, text: str, mode: int = 0o644) -> Path:
        path.write_text(text)
        path.chmod(mode)
        self.account.own(path)
        return path

    def helper(self, name: str, target: Path | None = None) -> str:
        """One of the shell files beside the tests, where the user can reach it."""
        return str(shutil.copy(HELPERS / name, target or self.base / name))

    def environment(self, extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """None takes a variable away."""
        variables: dict[str, str | None] = {
            "HOME": str(self.paths["home"]),
            "USER": self.account.name,
            "PATH": f"{self.program.parent}:{SYSTEM_PATH}",
            "LC_ALL": "C",
            "ENROOT_ALLOW_HTTP": "yes",
            "ENROOT_LOGIN_SHELL": "no",
            "ENROOT_SYSCONF_PATH": str(self.sysconf),
            "ENROOT_TEMP_PATH": str(self.paths["tmp"]),
            **{f"ENROOT_{n.upper()}_PATH": str(self.paths[n]) for n in ("cache", "data", "runtime", "config")},
        }
        return {name: value for name, value in {**variables, **(extra or {})}.items() if value is not None}

    def popen(
        self,
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        before: Sequence[str] = (),
        program: str = "enroot",
        umask: int = 0o022,
        cwd: Path | None = None,
    ) -> subprocess.Popen[str]:
        """In a session of its own, so that a test can end all of it."""
        mine = os.geteuid() == self.account.uid
        return subprocess.Popen(
            [*before, program, *arguments],
            env=self.environment(env),
            cwd=cwd or self.base,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=umask,
            start_new_session=True,
            user=None if mine else self.account.uid,
            group=None if mine else self.account.gid,
            extra_groups=None if mine else [],
        )

    def __call__(
        self,
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        before: Sequence[str] = (),
        umask: int = 0o022,
        cwd: Path | None = None,
        stdin: str = "",
        timeout: float = 60,
    ) -> Result:
        process = self.popen(*arguments, env=env, before=before, umask=umask, cwd=cwd)
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"enroot {arguments} did not end:\n{out}\n{err}") from None
        return Result(process.returncode, out, err)

    def import_(self, uri: str, name: str = "image.sqsh", *options: str, **how: object) -> Result:
        return self("import", *options, "-o", str(self.base / name), uri, **how)  # type: ignore[arg-type]

    def imported(self, registry: DockerRegistry, repository: str, name: str = "image.sqsh") -> Path:
        result = self.import_(registry.uri(repository), name)
        assert result.status == 0, result.err
        return self.base / name

    def start(self, image: Path | str, *command: str, options: Sequence[str] = (), **how: object) -> Result:
        """The way jobs start images: with a script of ours in place of the image's."""
        options = ["--rc", str(self.exec_rc), *options]
        return self("start", *options, str(image), *command, **how)  # type: ignore[arg-type]

    def offers(self, option: str) -> bool:
        """Namespaces came after the first release that calls itself 4.1.2: only the help text tells."""
        return option in self("start", "--help").out.split()

    def credentials(self, *lines: str) -> Path:
        return self.write(self.paths["config"] / ".credentials", "".join(f"{line}\n" for line in lines), 0o600)

    def path_with(self, **helpers: str) -> str:
        """A PATH on which these programs are helpers of ours."""
        directory = self.base / "bin"
        directory.mkdir()
        for program, helper in helpers.items():
            shutil.copy(HELPERS / helper, directory / program)
        return f"{directory}:{self.program.parent}:{SYSTEM_PATH}"


def alive_in_session(session: int) -> list[str]:
    """Command lines of a session's living processes. Containers and mount helpers never leave their session."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, *fields = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if state != "Z" and int(fields[2]) == session:
            found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


def path_without(directory: Path, missing: str, program: Path) -> str:
    """Everything the system has except one program."""
    directory.mkdir()
    for place in reversed(SYSTEM_PATH.split(":")):
        for entry in Path(place).iterdir():
            link = directory / entry.name
            if entry.name != missing and not link.is_symlink():
                link.symlink_to(entry)
    return f"{program.parent}:{directory}"


def find_program() -> Path | None:
    """ENROOT, else the enroot on PATH; None asks for the stand-in."""
    chosen = os.environ.get("ENROOT") or shutil.which("enroot")
    return Path(chosen) if chosen else None
