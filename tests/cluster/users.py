"""The ordinary users of every box. Boxes share them; keys, ports and directories are each box's own."""

from __future__ import annotations

import fcntl
import grp
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from .ports import LOCKS

GROUP = "asigroup"
USER = "asiuser"
OTHER_USER = "asiother"


def ensure_users() -> None:
    """Create the group and both users if they are missing; safe when several boxes start at once."""
    with _account_lock():
        # What is right already is not written again: other boxes read these files meanwhile.
        subprocess.run(["groupadd", "--force", GROUP], check=True)
        for user in (USER, OTHER_USER):
            if not _exists(user):
                subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", user], check=True)
            if user not in grp.getgrnam(GROUP).gr_mem:
                # "*" is no password at all, while the usual "!" locks the account, for sshd too.
                subprocess.run(["usermod", "--append", "--groups", GROUP, "--password", "*", user], check=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


@contextmanager
def _account_lock() -> Iterator[None]:
    LOCKS.mkdir(parents=True, exist_ok=True)
    with (LOCKS / "users").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
