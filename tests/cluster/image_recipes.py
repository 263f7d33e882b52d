"""How the test images are made, from Debian packages of the machine's own sources and from wheels.

client    Debian with Python 3, pip, and a few distributions in different shapes
serving   the client's Debian layer and a second one with a virtual environment holding a server named vllm
nopython  a shell, no Python
static    one static program, no shell
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from . import wheels
from .oci import EPOCH, ImageConfig, Layer, Tree, write_layout

# What the client image holds besides pip and Debian's own; the second name is not in canonical form.
CLIENT_DISTRIBUTIONS = {"tinylib": "1.4.0", "Tiny.Plugin_Set": "0.2.1"}
CLIENT_DEBIAN_DISTRIBUTION = "six"
VLLM_VERSION = "0.33.0"
VLLM_EXECUTABLE = "/opt/venv/bin/vllm"

DEBIAN_PACKAGES = ["usr-is-merged", "python3", "python3-six"]
STATIC_PACKAGES = ["busybox-static", "tini"]
SHELL_COMMANDS = ["sh", "ash", "cat", "ls", "echo", "env", "id", "sleep", "mkdir", "mount", "test", "uname"]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Left out of the images: bulk nobody reads, and what would make them differ from one machine to the next.
UNWANTED = re.compile(
    r"dev/.+|usr/share/(doc|man|info|locale|lintian)/.+|var/(cache|log|lib/apt)/.+"
    r"|etc/(apt/.+|hostname|resolv\.conf|machine-id)"
)


def bootstrap(target: Path, variant: str, packages: Sequence[str], *options: str) -> None:
    """A tar of the packages, from the machine's own Debian sources."""
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    argv = ["mmdebstrap", "--quiet", f"--variant={variant}", f"--include={','.join(packages)}", *options]
    done = subprocess.run(
        [*argv, codename, str(target), *map(str, debian_sources(codename))],
        env={"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": str(EPOCH)} | proxies(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"mmdebstrap failed:\n{done.stderr[-4000:]}")


def proxies() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}


def debian_sources(codename: str) -> list[Path]:
    """The source lists that offer the release itself, not those of third parties."""
    directory = Path("/etc/apt/sources.list.d")
    lists = [
        Path("/etc/apt/sources.list"),
        *sorted(directory.glob("*.list")),
        *sorted(directory.glob("*.sources")),
    ]
    offers = re.compile(rf"^(deb|Suites:)\s(.*\s)?{codename}(\s|$)", re.MULTILINE)
    chosen = [path for path in lists if path.exists() and offers.search(path.read_text())]
    if not chosen:
        raise RuntimeError(f"no apt source offers {codename}")
    return chosen


def copy_members(source: Path, target: Path, wanted: Callable[[str], bool]) -> None:
    """Copy the wanted members of a tar; device nodes never."""
    with tarfile.open(source) as packed, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for member in packed:
            name = member.name.removeprefix("./")
            if wanted(name) and not member.isdev():
                archive.addfile(member, packed.extractfile(member) if member.isreg() else None)


def build_debian(target: Path) -> None:
    """`layer.tar` and `layer.tar.gz`: the base that two images share."""
    rootfs = target / "rootfs.tar"
    # Without the hook, mmdebstrap merges /usr by a package that brings the whole of Perl.
    hook = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    bootstrap(rootfs, "essential", DEBIAN_PACKAGES, hook)
    layer = target / "layer.tar"
    copy_members(rootfs, layer, lambda name: UNWANTED.fullmatch(name) is None)
    rootfs.unlink()
    Layer.compress(layer)


def build_images(target: Path, debian: Path) -> None:
    """One OCI layout per image, by its name."""
    scratch = target / "scratch"
    scratch.mkdir()
    base = Layer.of(debian / "layer.tar.gz", debian / "layer.tar")
    bootstrap(scratch / "static.tar", "extract", STATIC_PACKAGES)
    machine = _debian_architecture()
    write_layout(
        target / "client",
        [base, _layer(scratch, "client", _client())],
        ImageConfig(machine, command=["python3"]),
    )
    write_layout(target / "serving", [base, _layer(scratch, "serving", _serving())], _serving_config(machine))
    shell = _layer(scratch, "nopython", _nopython(_member(scratch / "static.tar", "bin/busybox")))
    write_layout(target / "nopython", [shell], ImageConfig(machine, command=["/bin/sh"]))
    program = _layer(scratch, "static", _static(_member(scratch / "static.tar", "usr/bin/tini-static")))
    write_layout(target / "static", [program], ImageConfig(machine, entrypoint=["/app"]))
    shutil.rmtree(scratch)


def pip_wheel() -> Path:
    """The wheel of Debian's python3-pip-whl, which python3-venv needs anyway."""
    found = sorted(Path("/usr/share/python-wheels").glob("pip-*.whl"))
    if not found:
        raise RuntimeError("no pip wheel; install the package python3-pip-whl")
    return found[-1]


def _client() -> Tree:
    tree = Tree()
    site = "/usr/local/lib/python3.11/dist-packages"
    wheels.unpack(tree, pip_wheel(), site)
    tree.file("/usr/local/bin/pip", wheels.console_script("pip._internal.cli.main:main", "/usr/bin/python3"), 0o755)
    for name, version in CLIENT_DISTRIBUTIONS.items():
        module = name.lower().replace(".", "_")
        wheels.install(tree, site, name, version, {f"{module}/__init__.py": f'__version__ = "{version}"\n'})
    return tree


def _serving() -> Tree:
    tree = Tree()
    venv = "/opt/venv"
    tree.file(f"{venv}/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n")
    tree.symlink(f"{venv}/bin/python3", "/usr/bin/python3")
    tree.symlink(f"{venv}/bin/python", "python3")
    main = f'def main():\n    print("vllm {VLLM_VERSION}")\n'
    wheels.install(
        tree,
        f"{venv}/lib/python3.11/site-packages",
        "vllm",
        VLLM_VERSION,
        {"vllm/__init__.py": f'__version__ = "{VLLM_VERSION}"\n', "vllm/cli.py": main},
        {"vllm": "vllm.cli:main"},
        f"{venv}/bin",
        f"{venv}/bin/python3",
    )
    return tree


def _serving_config(machine: str) -> ImageConfig:
    # Images of this kind ask for GPUs; an inspection must work without.
    env = {"PATH": f"/opt/venv/bin:{SYSTEM_PATH}", "NVIDIA_VISIBLE_DEVICES": "all"}
    return ImageConfig(machine, env, entrypoint=["vllm", "serve"])


def _nopython(busybox: bytes) -> Tree:
    tree = _skeleton()
    tree.file("/bin/busybox", busybox, 0o755)
    for command in SHELL_COMMANDS:
        tree.symlink(f"/bin/{command}", "busybox")
    return tree


def _static(program: bytes) -> Tree:
    tree = _skeleton()
    tree.file("/app", program, 0o755)
    return tree


def _skeleton() -> Tree:
    tree = Tree()
    for name in ("dev", "proc", "sys", "run"):
        tree.directory(name)
    tree.directory("tmp", 0o1777)
    tree.file("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    tree.file("/etc/group", "root:x:0:\n")
    return tree


def _layer(scratch: Path, name: str, tree: Tree) -> Layer:
    archive = scratch / f"{name}.tar"
    tree.write(archive)
    return Layer.compress(archive)


def _member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as packed:
        content = packed.extractfile(f"./{name}")
        assert content is not None
        return content.read()


def _debian_architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()
