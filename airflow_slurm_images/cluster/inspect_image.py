# SPDX-License-Identifier: Apache-2.0
"""Look at the Python environment of a container image, from inside the started container.

One file, standard library only, Python 3.8 to 3.14: it is bind-mounted into images we know nothing about,
where ``enroot.rc`` runs it as ``python -s -B inspect_image.py --kind client|serving --output FILE``. All that
the image holds is untrusted: reads are bounded, only regular files are read, broken metadata is reported and
never fatal.

The rules behind the facts (other tools of this family read the value under ``inspection`` strictly):

* ``python_version`` is ``X.Y.Z`` also for a pre-release (its full text is in ``image``),
  ``python_implementation`` lower case, ``python_abi`` the bytecode cache tag with ``cpython-`` written as
  ``cp`` (``cp311``, ``pypy310``).
* A distribution counts when an import would load it: its metadata is in the first directory of ``sys.path``
  that has that name. Names are in PEP 503 form, at most 128 characters, unique, sorted; versions have 1 to
  128 characters.
* ``installer_*``: pip of this environment; without pip the distribution ``uv``, then a ``uv`` on PATH.
* ``runtime_version`` comes from the metadata of the distribution ``vllm``; ``executable_path`` is that very
  distribution's own console script, whatever PATH finds. If PATH finds another, a warning names both.
* Paths are absolute, free of links, ``..`` and control characters, and never below the mounted directory.

Exit status: 0 facts written; 91 facts cannot be made; 92 a fault of ours or of the call; two that make
``enroot.rc`` ask the image's next Python: 93 like 91, as this one has no vLLM; 94 its standard library is
incomplete. Then nothing is written, and ``asi-inspect: error: <code>: <text>`` is the last line on standard error.
"""

from __future__ import annotations

import os
import sys

# What an import in this image would see, and our own directory; Python passes over entries that are no text, and so
# may those be that a sitecustomize of the image added.
IMPORT_PATH = tuple(entry for entry in sys.path if isinstance(entry, str) and "\0" not in entry)
if __name__ == "__main__" and getattr(os, "__file__", None):
    # From here on only the standard library, so that a json.py on the image's PYTHONPATH does not replace ours.
    sys.path[:] = [os.path.dirname(os.__file__), *(entry for entry in IMPORT_PATH if entry.endswith("/lib-dynload"))]

try:
    import errno
    import getopt
    import json
    import re
    import stat
except ImportError as missing:  # Debian's python3-minimal, for one, has no json
    sys.stderr.write("asi-inspect: error: python_incomplete: %s: %s\n" % (sys.executable, missing))
    sys.exit(94)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

INSPECTOR_VERSION = "1.0.0"
FACTS_VERSION = 1
EXIT_REFUSED, EXIT_FAULT, EXIT_NO_RUNTIME = 91, 92, 93
KIB, MIB = 1024, 1024 * 1024
MAX_FACTS_BYTES = MIB
MAX_METADATA_BYTES = 256 * KIB  # the headers; a description can have any size
MAX_FILE_LIST_BYTES = 32 * MIB
MAX_SAMPLE_BYTES = MIB  # of a RECORD, to find a few files that can be compared
MAX_ARCHIVE_BYTES = 256 * MIB
MAX_DIRECTORY_ENTRIES = 1_000_000
MAX_DISTRIBUTIONS = 20_000
MAX_LISTED = 500  # entries of each list that the image could inflate
UV_SECONDS = 20
NAME_PATTERN = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
ZIP_METADATA = re.compile(r"(?:[^/]+\.dist-info/METADATA|[^/]+\.egg-info/PKG-INFO|EGG-INFO/PKG-INFO)")
SHORT_LINE = re.compile(r"^[^\n]{1,8192}$", re.MULTILINE)
OLD_SCRIPT = re.compile(r"^(?:# EASY-INSTALL-[A-Z-]+:|__requires__\s*=)\s*['\"]([\w.-]+)", re.MULTILINE)
SCRIPT_DIRECTORIES = ("bin", "Scripts", "sbin")


class Refused(Exception):
    """The facts asked for cannot be made; ``code`` is for programs, the text for people."""

    def __init__(self, code: str, text: str, status: int = EXIT_REFUSED) -> None:
        super().__init__(text)
        self.code = code
        self.status = status


class Unreadable(Exception):
    """The metadata of one distribution cannot be used; the text is the reason that is reported."""


class Distribution:
    """An installed distribution: canonical name, version, path of its metadata, directory it is in."""

    def __init__(self, name: str, version: str, info: str, base: str) -> None:
        self.name, self.version, self.info, self.base = name, version, info, base

    def as_json(self) -> dict[str, str]:
        """Return the pair that stands in a record."""
        return {"name": self.name, "version": self.version}


class Notes:
    """What does not fit into the inspection value, in lists that stay short whatever the image holds."""

    def __init__(self) -> None:
        names = ("shadowed_distributions", "unreadable_distributions", "editable_distributions", "warnings")
        self.lists: dict[str, list[Any]] = {name: [] for name in names}
        self.dropped: dict[str, int] = {}

    def add(self, name: str, value: Any) -> None:
        """Keep one entry, or only count it when the list is full."""
        if len(self.lists[name]) < MAX_LISTED:
            self.lists[name].append(value)
        else:
            self.dropped[name] = self.dropped.get(name, 0) + 1

    def warn(self, text: str) -> None:
        """Keep one sentence."""
        self.add("warnings", text)

    def unreadable(self, directory: str, entry: str, reason: str) -> None:
        """Keep the name, place and fault of metadata that cannot be used."""
        path = os.path.join(directory, entry)
        self.add("unreadable_distributions", {"directory": entry, "path": path, "reason": reason})

    def as_json(self) -> dict[str, Any]:
        """Return all lists; a last warning says how much was left out."""
        left_out = [f"{count} more {name} were left out" for name, count in sorted(self.dropped.items())]
        return {**self.lists, "warnings": self.lists["warnings"] + left_out}


# --- reading what the image holds


def clip(text: str, limit: int = 500) -> str:
    """Return text as one bounded, printable line of valid Unicode."""
    text = text[: limit + 1].encode("utf-8", "backslashreplace").decode("utf-8")
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return text if len(text) <= limit else text[:limit] + "..."


def printable(value: Any) -> Any:
    """Return the same JSON value with every string in it bounded and printable."""
    if isinstance(value, str):
        return clip(value, 4 * KIB)
    if isinstance(value, dict):
        return {key: printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value


def why(error: OSError) -> str:
    """Return the system's words for an error, without the path."""
    return "symbolic links form a loop" if error.errno == errno.ELOOP else error.strerror or type(error).__name__


def canonical(name: str) -> str:
    """Return a distribution's name in PEP 503 form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_regular(path: str, limit: int) -> bytes:
    """Return at most ``limit`` bytes of a regular file; raises OSError. Never waits on a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as source:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return source.read(limit)


def read_text(path: str, limit: int) -> str:
    """Return the text of a file, empty where it cannot be read; bytes that are no UTF-8 become surrogates."""
    try:
        return read_regular(path, limit).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return ""


def is_below(path: str, directory: str) -> bool:
    """Tell whether a path is the directory or lies in it; both are free of links."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def search_path() -> list[str]:
    """Return the absolute directories of PATH."""
    return [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry.startswith("/")]


def parse_metadata(raw: bytes, info: str, base: str) -> Distribution:
    """Return the distribution that the headers of a METADATA or PKG-INFO describe; raises Unreadable."""
    head = re.split(rb"\r?\n[ \t]*\r?\n", raw, maxsplit=1)[0]
    if head == raw and len(raw) >= MAX_METADATA_BYTES:
        head = raw.rpartition(b"\n")[0]
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"metadata is not UTF-8 (byte {error.start})") from None
    headers: dict[str, str] = {}
    for line in text.split("\n"):
        key, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            headers.setdefault(key.strip().lower(), value.strip())
    for key in ("Name", "Version"):
        if headers.get(key.lower(), "") in ("", "None"):  # some builders write the word None
            raise Unreadable(f"metadata has no {key}")
    name, version = canonical(headers["name"]), headers["version"]
    if len(name) > 128 or not NAME_PATTERN.fullmatch(name):
        raise Unreadable(f"Name in metadata is not a distribution name: {clip(headers['name'], 80)!r}")
    if len(version) > 128 or not version.isprintable():
        raise Unreadable(f"Version in metadata is not usable: {clip(version, 80)!r}")
    return Distribution(name, version, info, base)


# --- which distributions are installed


def import_directories(mount: str, notes: Notes) -> Iterator[str]:
    """Yield every existing entry of the image's ``sys.path`` once, without what we mounted."""
    ours = [os.path.realpath(mount), os.path.dirname(os.path.realpath(__file__))]
    seen = set()
    for entry in IMPORT_PATH:
        path = os.path.abspath(entry)  # an empty entry is the working directory
        real = os.path.realpath(path)
        if real in seen or any(is_below(real, place) for place in ours):
            continue
        seen.add(real)
        try:
            os.stat(path)
            yield path
        except OSError as error:
            if error.errno != errno.ENOENT:
                notes.warn(f"cannot look into {path} of sys.path: {why(error)}")


def metadata_entries(directory: str, notes: Notes) -> list[str]:
    """Return the sorted names of the metadata directories and files of one directory."""
    found = []
    wanted: tuple[str, ...] = (".dist-info", ".egg-info", ".egg-link")
    if directory.lower().endswith(".egg"):
        wanted += ("egg-info",)
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if entry.name.lower().endswith(wanted):
                    found.append(entry.name)
                if number >= MAX_DIRECTORY_ENTRIES or len(found) > MAX_DISTRIBUTIONS:
                    raise Refused("too_large", f"{directory} holds too many entries to be listed")
    except OSError as error:
        notes.warn(f"cannot list {directory} of sys.path: {why(error)}")
    return sorted(found)


def read_entry(directory: str, entry: str) -> Distribution | None:
    """Return the distribution of one entry, None for a link to one found elsewhere; raises Unreadable."""
    info = os.path.join(directory, entry)
    lower = entry.lower()
    if entry.startswith("~"):
        raise Unreadable("left behind by an interrupted pip run")
    if lower.endswith(".egg-link"):
        target = os.path.join(directory, read_text(info, 4 * KIB).partition("\n")[0].strip())
        if os.path.realpath(target) in {os.path.realpath(item) for item in IMPORT_PATH}:
            return None
        raise Unreadable(f"development link to {target}, which is not on sys.path")
    wanted = "METADATA" if lower.endswith(".dist-info") else "PKG-INFO"
    try:
        # The .egg-info of old installers is the metadata file itself.
        is_file = stat.S_ISREG(os.stat(info).st_mode)
        return parse_metadata(
            read_regular(info if is_file else os.path.join(info, wanted), MAX_METADATA_BYTES), info, directory
        )
    except FileNotFoundError:
        raise Unreadable(f"no {wanted}" if os.path.isdir(info) else "a link to nowhere") from None
    except OSError as error:
        raise Unreadable(f"{wanted}: {why(error)}") from None


def scan_directory(directory: str, notes: Notes) -> Iterator[Distribution]:
    """Yield the readable distributions of one directory, duplicates too."""
    for entry in metadata_entries(directory, notes):
        try:
            found = read_entry(directory, entry)
        except Unreadable as error:
            notes.unreadable(directory, entry, str(error))
            continue
        if found is not None:
            yield found


def scan_archive(path: str, notes: Notes) -> Iterator[Distribution]:
    """Yield the distributions of a zip file on ``sys.path`` (an egg or a wheel)."""
    try:
        import zipfile

        if os.stat(path).st_size > MAX_ARCHIVE_BYTES or not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            for name in filter(ZIP_METADATA.fullmatch, archive.namelist()):
                info = os.path.dirname(name)
                with archive.open(name) as source:
                    raw = source.read(MAX_METADATA_BYTES)
                try:
                    yield parse_metadata(raw, os.path.join(path, info), path)
                except Unreadable as error:
                    notes.unreadable(path, info, str(error))
    except Exception as error:  # zipfile raises a dozen kinds on hostile input
        notes.unreadable(os.path.dirname(path), os.path.basename(path), clip(str(error), 200))


def version_key(version: str) -> list[tuple[int, int, str]]:
    """Return a sort key for versions: pre-releases before the release, everything else after it."""
    key = [(1, 0, "")]
    for part in reversed(re.findall(r"[0-9]{1,18}|[a-z]+", version.lower())):
        early = part in ("a", "b", "c", "rc", "alpha", "beta", "pre", "preview", "dev")
        key.insert(0, (2, int(part), "") if part.isdigit() else (0 if early else 3, 0, part))
    return key


def agreement(distribution: Distribution) -> tuple[float, list[tuple[int, int, str]]]:
    """Return a sort key: how far the files in place are those of the RECORD, then the version."""
    import base64
    import hashlib

    checked = agreed = 0
    for path, digest in recorded_files(distribution.info, "RECORD", MAX_SAMPLE_BYTES):
        if path.endswith(".py") and digest.startswith("sha256=") and checked < 16:
            content = read_text(os.path.join(distribution.base, path), 4 * MIB).encode("utf-8", "surrogateescape")
            actual = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode("ascii")
            checked += 1
            agreed += digest == "sha256=" + actual
    return (agreed / checked if checked else 0.0), version_key(distribution.version)


def installed_distributions(mount: str, notes: Notes) -> dict[str, Distribution]:
    """Return the distributions an import would load, by name; the ones behind them go into the notes."""
    chosen: dict[str, Distribution] = {}
    total = 0
    for path in import_directories(mount, notes):
        here: dict[str, list[Distribution]] = {}
        for found in scan_directory(path, notes) if os.path.isdir(path) else scan_archive(path, notes):
            here.setdefault(found.name, []).append(found)
            total += 1
        if total > MAX_DISTRIBUTIONS:
            raise Refused("too_large", f"more than {MAX_DISTRIBUTIONS} distributions are installed")
        for name, several in here.items():
            if len(several) > 1:  # in one directory the code in place decides whose metadata is meant
                several.sort(key=agreement, reverse=True)
            winner = chosen.setdefault(name, several[0])
            for other in several:
                if other is not winner:
                    notes.add("shadowed_distributions", {**other.as_json(), "path": other.info})
    for name in sorted(chosen):
        note_editable(chosen[name], notes)
    return chosen


def note_editable(distribution: Distribution, notes: Notes) -> None:
    """Report a distribution whose code is a source tree elsewhere (PEP 610)."""
    try:
        direct = json.loads(read_text(os.path.join(distribution.info, "direct_url.json"), 64 * KIB))
        if direct["dir_info"]["editable"] is True:
            notes.add("editable_distributions", {"name": distribution.name, "source": str(direct["url"])})
    except (ValueError, LookupError, TypeError, RecursionError):
        pass  # not there, or not one


# --- console scripts


def recorded_files(info: str, listing: str, limit: int = MAX_FILE_LIST_BYTES) -> Iterator[tuple[str, str]]:
    """Yield (path, digest) of each line of a RECORD (CSV), or (path, "") of an installed-files.txt."""
    for match in SHORT_LINE.finditer(read_text(os.path.join(info, listing), limit)):
        line = match.group().rstrip("\r")
        quoted = re.match(r'"((?:[^"]|"")*)"(?:,|$)', line)
        if quoted:
            path, rest = quoted.group(1).replace('""', '"'), line[quoted.end() :]
        else:
            path, _, rest = line.partition(",")
        yield path, rest.partition(",")[0]


def listed_scripts(distribution: Distribution, name: str) -> list[str]:
    """Return where the distribution's list of files places programs of a name; package data is left out."""
    found = []
    for listing, origin in (("RECORD", distribution.base), ("installed-files.txt", distribution.info)):
        for path, _digest in recorded_files(distribution.info, listing):
            directory, base = os.path.split(path)
            parent = os.path.basename(directory)
            if base == name and (path.startswith(("../", "/")) or directory in SCRIPT_DIRECTORIES):
                joined = os.path.join(origin, path)
                # Where the directory is a link, ".." was meant as text; "pip --target" moves scripts
                # after it wrote RECORD.
                found += [joined, os.path.normpath(joined), os.path.join(distribution.base, parent, name)]
    return sorted(found, key=lambda path: os.path.basename(os.path.dirname(path)) not in SCRIPT_DIRECTORIES)


def script_directories(distribution: Distribution) -> Iterator[str]:
    """Yield the directories scripts are installed to, the distribution's own prefix first, PATH last."""
    base = distribution.base
    for _level in range(5):  # <target>; <prefix>/lib/pythonX.Y/site-packages; lib/python3/dist-packages
        yield os.path.join(base, "bin")
        base = os.path.dirname(base)
    yield os.path.join(sys.prefix, "bin")
    yield os.path.dirname(sys.executable or "/")
    yield from search_path()


def entry_point_module(distribution: Distribution, name: str) -> str:
    """Return the module behind a console script the distribution declares, empty where it has none."""
    section = ""
    for line in read_text(os.path.join(distribution.info, "entry_points.txt"), MIB).splitlines():
        key, equals, value = line.partition("=")
        if line.lstrip().startswith("["):
            section = line.strip("[] \t")
        elif equals and section == "console_scripts" and key.strip() == name:
            return value.partition(":")[0].strip()
    return ""


def starts(path: str, distribution: Distribution, module: str) -> bool:
    """Tell whether a script that was found by its place starts this distribution's code."""
    text = read_text(path, 64 * KIB)
    if module and re.search(rf"(?m)^[ \t]*(?:from|import)[ \t]+{re.escape(module)}(?:\s|$)", text):
        return True
    return any(canonical(name) == distribution.name for name in OLD_SCRIPT.findall(text))


def as_program(path: str, mount: str) -> str | None:
    """Return the path, free of links, of an executable file of the image; None where it is no such thing."""
    try:
        real = os.path.realpath(path)
        if not stat.S_ISREG(os.stat(real).st_mode) or not os.access(real, os.X_OK):
            return None
    except (OSError, ValueError):
        return None
    foreign = (os.path.realpath(mount), "/proc", "/sys", "/dev")
    return None if any(is_below(real, place) for place in foreign) else real


def own_script(distribution: Distribution, name: str, mount: str) -> str | None:
    """Return the distribution's own console script: by its list of files, else by place and content."""
    for path in listed_scripts(distribution, name):
        program = as_program(path, mount)
        if program:
            return program
    module = entry_point_module(distribution, name)
    for directory in script_directories(distribution):
        program = as_program(os.path.join(directory, name), mount)
        if program and starts(program, distribution, module):
            return program
    return None


def on_path(name: str, mount: str) -> str | None:
    """Return the program that PATH finds for a name."""
    found = (as_program(os.path.join(directory, name), mount) for directory in search_path())
    return next(filter(None, found), None)


def checked_program(path: str, name: str, notes: Notes) -> str:
    """Return the path of a program for a strict record; raises Refused. Warns of a dead first line."""
    text = path.encode("utf-8", "replace").decode("utf-8")
    if text != path or not path.isprintable() or path.startswith("//") or os.path.normpath(path) != path:
        raise Refused("unusable_path", f"the path of {name} cannot stand in a record: {path!r}")
    first = read_text(path, KIB).partition("\n")[0]
    words = first[2:].split() if first.startswith("#!") else []
    if words and as_program(words[0], "/nonexistent") is None:
        notes.warn(f"{path} starts with {first}, which cannot be run in this image")
    return path


# --- the two kinds of image


def python_implementation() -> str:
    """Return the name of this implementation in lower case."""
    try:
        import platform

        return platform.python_implementation().casefold()
    except Exception:  # a sitecustomize of the image may have changed anything
        return sys.implementation.name.casefold()


def python_abi() -> str:
    """Return the ABI word of this interpreter."""
    tag = sys.implementation.cache_tag or f"{sys.implementation.name}-{sys.version_info[0]}{sys.version_info[1]}"
    return "cp" + tag[len("cpython-") :] if tag.startswith("cpython-") else tag


def python_facts() -> dict[str, Any]:
    """Return what is worth knowing of the interpreter that runs us."""
    executable = sys.executable or os.path.realpath("/proc/self/exe")
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # not glibc
        libc = None
    return {
        "python_executable": executable,
        "python_executable_resolved": os.path.realpath(executable),
        "python_implementation": python_implementation(),
        "python_version": sys.version.split()[0],
        "python_abi": python_abi(),
        "python_prefix": sys.prefix,
        "python_base_prefix": sys.base_prefix,
        "python_path_env": os.environ.get("PYTHONPATH"),
        "machine": os.uname().machine,
        "libc": libc,
    }


def uv_version(program: str) -> str:
    """Ask a uv program for its version; raises Refused. The only program of the image that we run."""
    import select
    import subprocess

    answer = b""
    try:
        process = subprocess.Popen([program, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        with process:
            assert process.stdout is not None
            if select.select([process.stdout], [], [], UV_SECONDS)[0]:
                answer = os.read(process.stdout.fileno(), KIB)
            process.kill()
    except OSError:
        pass
    match = re.match(rb"uv ([0-9][0-9A-Za-z.+!-]{0,127})(?:\s|$)", answer)
    if match is None:
        raise Refused("installer_missing", f"no pip for {sys.executable}, and {program} does not tell its version")
    return match.group(1).decode("ascii")


def find_installer(distributions: dict[str, Distribution], mount: str, notes: Notes) -> tuple[str, str, str]:
    """Return (name, path, version) of the package installer of this environment; raises Refused."""
    major, minor = sys.version_info[:2]
    for name, scripts in (("pip", ("pip", "pip3", f"pip{major}.{minor}")), ("uv", ("uv",))):
        for script in scripts if name in distributions else ():
            program = own_script(distributions[name], script, mount)
            if program:
                return name, checked_program(program, name, notes), distributions[name].version
    program = on_path("uv", mount)
    if program:
        return "uv", checked_program(program, "uv", notes), uv_version(program)
    pip = distributions.get("pip")
    unusable = f"; pip {pip.version} in {pip.base} has no executable script of its own" if pip else ""
    raise Refused("installer_missing", f"no pip and no uv for {sys.executable}{unusable}")


def inspect_client(mount: str, image: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Return the inspection value of a client image; raises Refused."""
    distributions = installed_distributions(mount, notes)
    image["installer"], path, version = find_installer(distributions, mount, notes)
    return {
        "kind": "client",
        "python_implementation": python_implementation(),
        "python_version": ".".join(str(part) for part in sys.version_info[:3]),
        "python_abi": python_abi(),
        "distributions": [distributions[name].as_json() for name in sorted(distributions)],
        "installer_path": path,
        "installer_version": version,
    }


def inspect_serving(mount: str, image: dict[str, Any], notes: Notes, without: list[str]) -> dict[str, Any]:
    """Return the inspection value of a serving image; raises Refused."""
    distributions = installed_distributions(mount, notes)
    runtime = distributions.get("vllm")
    if runtime is None:
        tried = ", ".join([*without, sys.executable])
        raise Refused("runtime_missing", f"the distribution vllm is not installed for {tried}", EXIT_NO_RUNTIME)
    for other in without:
        notes.warn(f"{other} comes before {sys.executable} but has no vllm")
    program = own_script(runtime, "vllm", mount)
    if program is None:
        what = f"vllm {runtime.version} in {runtime.base}"
        raise Refused("script_missing", f"the distribution {what} has no executable console script vllm")
    checked_program(program, "vllm", notes)
    found = on_path("vllm", mount)
    if found != program:
        notes.warn(f"PATH finds {found or 'no vllm'}; the distribution's own script is {program}")
    image["path_executable"] = found
    image["distributions"] = [distributions[name].as_json() for name in sorted(distributions)]
    return {
        "kind": "serving",
        "server_type": "vllm",
        "runtime_version": runtime.version,
        "executable_path": program,
    }


def make_facts(kind: str, mount: str, without: list[str]) -> dict[str, Any]:
    """Return the whole document for one kind of image; raises Refused."""
    notes = Notes()
    image = python_facts()
    if kind == "client":
        inspection = inspect_client(mount, image, notes)
    else:
        inspection = inspect_serving(mount, image, notes, without)
    return {
        "facts_version": FACTS_VERSION,
        "inspector_version": INSPECTOR_VERSION,
        "kind": kind,
        "inspection": inspection,
        "image": printable({**image, **notes.as_json()}),
    }


# --- output


def encode(document: dict[str, Any]) -> bytes:
    """Return the document as JSON; raises Refused when its readers would refuse its size."""
    text = json.dumps(document, allow_nan=False, sort_keys=True, separators=(",", ":")) + "\n"
    if len(text) > MAX_FACTS_BYTES:
        raise Refused("too_large", f"the facts take {len(text)} bytes, the limit is {MAX_FACTS_BYTES}")
    return text.encode("ascii")


def write(path: str, content: bytes) -> None:
    """Write the facts to a file, or into a pipe that somebody reads; never through a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as output:
        output.write(content)


def fail(code: str, text: str, status: int) -> int:
    """Say why there are no facts; returns the exit status."""
    sys.stderr.write(f"asi-inspect: error: {code}: {clip(text, 2000)}\n")
    return status


def parse_arguments(arguments: list[str]) -> tuple[str, str, str, list[str]]:
    """Return kind, output, mount and the Pythons tried before; raises GetoptError."""
    # argparse would take a tenth of our time: every module is read through the image's file system.
    options, rest = getopt.getopt(arguments, "", ["kind=", "output=", "mount=", "without="])
    given = dict(options)
    if rest:
        raise getopt.GetoptError(f"unknown argument {rest[0]}")
    if given.get("--kind") not in ("client", "serving"):
        raise getopt.GetoptError("--kind must be client or serving")
    if not os.path.isabs(given.get("--output", "")):
        raise getopt.GetoptError("--output must be an absolute path")
    mount = given.get("--mount", os.path.dirname(os.path.abspath(__file__)))
    return given["--kind"], given["--output"], mount, [value for name, value in options if name == "--without"]


def main(arguments: list[str]) -> int:
    """Run the inspector; returns the exit status."""
    try:
        kind, output, mount, without = parse_arguments(arguments)
    except getopt.GetoptError as error:
        return fail("usage", str(error), EXIT_FAULT)
    try:
        content = encode(make_facts(kind, mount, without))
    except Refused as error:
        return fail(error.code, str(error), error.status)
    except BaseException as error:
        place = error.__traceback__
        while place and place.tb_next:
            place = place.tb_next
        line = place.tb_lineno if place else 0
        return fail("internal", f"{type(error).__name__} at line {line}: {error}", EXIT_FAULT)
    try:
        write(output, content)
    except OSError as error:
        return fail("output_failed", f"{output}: {why(error)}", EXIT_FAULT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
