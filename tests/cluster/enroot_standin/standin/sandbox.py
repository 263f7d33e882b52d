"""Inside the namespaces: the image mounted, its configuration applied, then the switch into it."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from . import login, mounts
from . import syscalls as sys
from .console import SHELL_DIR, Exit, complain, fail, log, need, status_of

if TYPE_CHECKING:
    from .start import Request

# A slow squashfuse is a failed one: real Enroot counts to a hundred, which takes about this long.
MOUNT_PATIENCE = 0.6
LOCK_PATIENCE = 30
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def _substitute(path: Path) -> str:
    """A configuration file with ${NAME} replaced from our environment; symbolic links are followed."""
    if not path.is_file():
        return ""
    text = path.read_text(errors="surrogateescape")
    text = _VARIABLE.sub(lambda match: os.environ.get(match[1], ""), text)
    return text if not text or text.endswith("\n") else text + "\n"


def _parts(directory: str, suffix: str) -> list[Path]:
    places = [Path(os.environ[f"ENROOT_{name}_PATH"], directory) for name in ("SYSCONF", "CONFIG")]
    return [file for place in places for file in sorted(place.glob(f"*{suffix}")) if not file.name.startswith(".")]


def _assignments(text: str) -> dict[str, str]:
    """Comments, malformed lines and Enroot's own variables do not enter; quotes around a value fall off."""
    found = {}
    for line in text.splitlines():
        match = _ASSIGNMENT.fullmatch(line)
        if match is None or match[1].startswith("ENROOT_"):
            continue
        quoted = re.fullmatch(r"[\"'](.*)[\"']\s*", match[2])
        found[match[1]] = quoted[1] if quoted else match[2]
    return found


def _mount_point(path: str | Path) -> Path:
    place = Path(path).resolve()
    return next(parent for parent in (place, *place.parents) if parent.is_mount())


class Sandbox:
    def __init__(self, request: Request, outside: int) -> None:
        self.request = request
        self.outside = outside
        self.runtime = Path(os.environ["ENROOT_RUNTIME_PATH"])
        self.environ_file = self.runtime / "environment"
        self.mount_file = self.runtime / "fstab"
        self.rootfs = str(request.rootfs)

    def start(self) -> None:
        runtime = str(self.runtime)
        mounts.perform(f"none {_mount_point(runtime)} none slave")
        mounts.perform(f"tmpfs {runtime} tmpfs x-create=dir,mode=700,slave")
        for name in ("lower", "upper", "work"):
            (self.runtime / "overlay" / name).mkdir(parents=True)
        if Path(self.rootfs).is_file():
            self.rootfs = self._mount_image()
        mounts.perform(f"none {_mount_point(self.rootfs)} none slave")
        mounts.perform(f"{self.rootfs} {self.rootfs} none bind,nosuid,nodev,slave")
        rc = self._configure_locked()
        self._protect()
        self._switch(rc)

    def _mount_image(self) -> str:
        need("squashfuse", "mountpoint")
        overlay = f"{self.runtime}/overlay"
        errors = self.runtime / "fuse"
        helper = self._squashfuse(f"{overlay}/lower", errors)
        deadline = time.monotonic() + MOUNT_PATIENCE
        while not os.path.ismount(f"{overlay}/lower"):
            gone, _ = os.waitpid(helper, os.WNOHANG)
            if gone or time.monotonic() > deadline:
                self._give_up(helper, errors, reap=not gone)
            time.sleep(0.002)
        layers = f"lowerdir={overlay}/lower,upperdir={overlay}/upper,workdir={overlay}/work"
        mounts.perform(f"overlay {overlay} overlay {layers},xino=off")
        return overlay

    def _squashfuse(self, target: str, errors: Path) -> int:
        """In the foreground and dying with us: when the container is gone, so is its mount."""
        identity = f"uid={os.geteuid()},gid={os.getegid()}"
        child = os.fork()
        if child:
            return child
        try:
            sys.prctl(sys.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            log_file = os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600)
            for source, number in ((null, 0), (null, 1), (log_file, 2)):
                os.dup2(source, number)
            os.execvp("squashfuse", ["squashfuse", "-f", "-o", identity, self.rootfs, target])
        finally:
            os._exit(127)

    def _give_up(self, helper: int, errors: Path, *, reap: bool) -> None:
        if reap:
            os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)
        for line in errors.read_text(errors="replace").splitlines() if errors.exists() else []:
            log("WARN", line)
        fail(f"Failed to mount: {self.request.rootfs}")

    def _configure_locked(self) -> bytes | None:
        """The lock is opened the way the image has it: a link there is followed to where it leads."""
        lock_file = f"{self.rootfs}/.lock"
        try:
            lock = os.open(lock_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        except OSError as error:
            complain("enroot", lock_file, error)
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    fail("Could not acquire rootfs lock")
                time.sleep(0.05)
        try:
            return self._configure()
        finally:
            os.close(lock)

    def _configure(self) -> bytes | None:
        os.environ |= {
            "ENROOT_PID": str(os.getpid()),
            "ENROOT_ROOTFS": self.rootfs,
            "ENROOT_ENVIRON": str(self.environ_file),
            "ENROOT_MOUNTS": str(self.mount_file),
        }
        functions = self._ask_conf("source").split()
        self._write_environment(functions)
        table = self._first_mounts()
        self._run_hooks(functions)
        table += self._ask_conf("mounts") if "mounts" in functions else ""
        table += "".join(f"{mount.replace(':', ' ')}\n" for mount in self.request.mounts)
        mounts.perform(table, root=self.rootfs)
        if self.request.rc is not None:
            return self.request.rc.read_bytes()
        return self._ask_conf("rc").encode() if "rc" in functions else None

    def _ask_conf(self, what: str) -> str:
        """The --conf script is a shell's; ask one for its functions, or for what one of them prints."""
        if self.request.conf is None:
            return ""
        command = [str(SHELL_DIR / "conf.sh"), str(self.request.conf), what]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise Exit(status_of(done.returncode))
        return done.stdout

    def _write_environment(self, functions: list[str]) -> None:
        text = _substitute(Path(f"{self.rootfs}/etc/environment"))
        text += "".join(map(_substitute, _parts("environ.d", ".env")))
        text += self._ask_conf("environ") if "environ" in functions else ""
        for variable in self.request.environ:
            text += variable if "=" in variable else f"{variable}={os.environ.get(variable, '')}"
            text += "\n"
        lines = [f"{name}={value}\n" for name, value in _assignments(text).items()]
        self.environ_file.write_text("".join(lines), errors="surrogateescape")

    def _first_mounts(self) -> str:
        table = _substitute(Path(f"{self.rootfs}/etc/fstab"))
        table += "".join(map(_substitute, _parts("mounts.d", ".fstab")))
        if "ENROOT_UNSHARE_PID" in os.environ:
            table += "none /proc none x-create=dir,x-detach,nofail,silent 0 -1\n"
            table += "proc /proc proc x-create=dir,rw,nosuid,nodev,noexec,private 0 -1\n"
        if "ENROOT_UNSHARE_NET" in os.environ:
            table += "none /sys none x-create=dir,x-detach,nofail,silent 0 -1\n"
            table += "sysfs /sys sysfs x-create=dir,ro,nosuid,nodev,noexec,private 0 -1\n"
        mounts.perform(table, root=self.rootfs, pass_number=-1)
        return table

    def _run_hooks(self, functions: list[str]) -> None:
        """Hooks ask for variables and mounts by writing to the two files."""
        self.mount_file.write_text("")
        for hook in _parts("hooks.d", ".sh"):
            if os.access(hook, os.X_OK):
                status = subprocess.run([str(hook)], stdout=subprocess.DEVNULL, check=False).returncode
                if status:
                    fail(f"{hook} exited with return code {status_of(status)}")
        if "hooks" in functions:
            self._ask_conf("hooks")
        mounts.perform(self.mount_file.read_text(), root=self.rootfs)

    def _protect(self) -> None:
        rootfs = self.rootfs
        if "ENROOT_ROOTFS_WRITABLE" not in os.environ:
            mounts.perform(f"none {rootfs} none remount,bind,nosuid,nodev,ro")
        if Path(rootfs, ".lock").is_file():
            mounts.perform(f"{rootfs}/.lock {rootfs}/.lock none bind,nosuid,nodev,noexec,ro,private")

    def _switch(self, rc: bytes | None) -> None:
        environment = _assignments(self.environ_file.read_text(errors="surrogateescape"))
        last, inside = sys.last_capability(), os.geteuid()
        try:
            self._pivot()
        except OSError as error:
            complain(login.PROGRAM, f"failed to switch root: {self.rootfs}", error)
        sys.prctl(sys.PR_SET_NO_NEW_PRIVS, 1)
        if inside:
            sys.drop_capabilities(last)
        os.closerange(3, 4096)
        script = "/etc/rc" if rc is None else self._in_memory(rc)
        login.execute(environment, script, self.request.command, inside=inside, outside=self.outside)

    def _pivot(self) -> None:
        old, new = (os.open(path, os.O_PATH | os.O_DIRECTORY) for path in ("/", self.rootfs))
        os.fchdir(new)
        sys.pivot_root_here()
        os.fchdir(old)
        sys.mount(None, ".", None, sys.MS_REC | sys.MS_SLAVE)
        sys.unmount(".", sys.MNT_DETACH)
        os.fchdir(new)
        os.chroot(".")
        sys.unshare(sys.CLONE_NEWCGROUP)

    def _in_memory(self, script: bytes) -> str:
        """The start script is read through /proc, so without /proc inside there is none."""
        descriptor = os.memfd_create("rc", 0)
        os.write(descriptor, script)
        return f"/proc/self/fd/{descriptor}"
