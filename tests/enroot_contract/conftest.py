"""Fixtures: the Enroot under test, an ordinary user, registries and images."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import images
from .images import PATH_INSIDE, Image, Tree, base_tree, build
from .registries import DockerRegistry, OddRegistry, docker_registry, odd_registry
from .runner import USER, Account, Enroot, find_program

STANDIN = Path(__file__).resolve().parent.parent / "cluster" / "enroot_standin"
PACKAGES = {
    "busybox": "busybox-static",
    "curl": "curl",
    "docker-registry": "docker-registry",
    "jq": "jq",
    "mksquashfs": "squashfs-tools",
    "parallel": "parallel",
    "skopeo": "skopeo",
    "squashfuse": "squashfuse",
    "zstd": "zstd",
}
LOGIN = ("puller", "inner\"#\\'$quotes")
_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def programs() -> None:
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if missing and os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *missing], check=True)
    elif missing:
        pytest.fail(f"please install: {' '.join(missing)}")


@pytest.fixture(scope="session")
def session_dir() -> Iterator[Path]:
    """Not pytest's own: the ordinary user has to get in."""
    path = Path(tempfile.mkdtemp(prefix="enroot-contract-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def account() -> Account:
    if os.geteuid() != 0:
        me = pwd.getpwuid(os.geteuid())
        return Account(me.pw_name, me.pw_uid, me.pw_gid)
    Path("/dev/fuse").chmod(0o666)
    try:
        found = pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["useradd", "-m", "-d", f"/home/{USER}", "-s", "/bin/bash", USER], check=True)
        found = pwd.getpwnam(USER)
    return Account(found.pw_name, found.pw_uid, found.pw_gid)


@pytest.fixture(scope="session")
def program(session_dir: Path) -> Path:
    """The stand-in is copied: the user cannot reach a work tree below root's home."""
    chosen = find_program()
    if chosen is not None:
        return chosen
    shutil.copytree(STANDIN, session_dir / "standin")
    return session_dir / "standin" / "enroot"


@pytest.fixture
def enroot(program: Path, account: Account, session_dir: Path) -> Iterator[Enroot]:
    base = session_dir / f"test-{next(_numbers)}"
    yield Enroot(program, account, base)
    subprocess.run(["chmod", "-R", "u+rwX", str(base)], check=True)
    shutil.rmtree(base)


@pytest.fixture(scope="session")
def base_layer() -> Tree:
    return base_tree()


@pytest.fixture(scope="session")
def image(base_layer: Tree) -> Image:
    """Two layers: files, then one file more, one replaced, one removed, one directory emptied."""
    lower = base_layer.plus(
        {
            "etc/fstab": "# the image's own\n",
            "srv/kept": "kept\n",
            "srv/replaced": "old\n",
            "srv/removed": "gone\n",
            "srv/emptied/old": "old\n",
            "dev/something": "dropped\n",
        }
    )
    upper = Tree(
        {
            "srv/added": "added\n",
            "srv/replaced": "new\n",
            "srv/.wh.removed": "",
            "srv/emptied/.wh..wh..opq": "",
            "srv/emptied/new": "new\n",
            "srv/private": "for root\n",
        },
        modes={"srv/private": 0o600},
    )
    return build(
        [lower, upper],
        Env=[f"PATH={PATH_INSIDE}", "FROM_IMAGE=yes"],
        Entrypoint=["/bin/echo", "entrypoint's"],
        Cmd=["own", "words"],
        WorkingDir="/app/dir",
        Volumes={"/volume": {}},
        Labels={"a.label": "its value"},
    )


@pytest.fixture(scope="session")
def registry(session_dir: Path, image: Image, programs: None) -> Iterator[DockerRegistry]:
    with docker_registry(session_dir / "registry") as running:
        running.push(image, "team/tool:1")
        running.push(image, "team/oci:1", form="oci")
        yield running


@pytest.fixture(scope="session")
def closed_registry(session_dir: Path, image: Image, programs: None) -> Iterator[DockerRegistry]:
    """Wants a login."""
    with docker_registry(session_dir / "closed", LOGIN) as running:
        running.push(image, "team/tool:1")
        yield running


@pytest.fixture
def odd() -> Iterator[OddRegistry]:
    with odd_registry() as running:
        yield running


@pytest.fixture(scope="session")
def plain_image(base_layer: Tree) -> Image:
    return build([base_layer])


@pytest.fixture(scope="session")
def sqsh(session_dir: Path, base_layer: Tree) -> Path:
    """An image that can be started, made without Enroot."""
    tree = base_layer.plus({"etc/environment": f"PATH={PATH_INSIDE}\nFROM_IMAGE=yes\n"})
    return images.squash(tree, session_dir / "plain.sqsh", session_dir)
