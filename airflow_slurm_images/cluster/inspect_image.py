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
  distribution's own console script, whatever PATH finds. If PATH finds another, a warning names both. A script is
  a distribution's own by its content: it starts the distribution's code, or has the digest that RECORD says.
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
MAX_SAMPLE_BYTES = 4 * MIB  # of a RECORD, to find a few files that can be compared
MAX_COMPARED = 32  # files of duplicates, each below a MiB
MAX_RIVALS = 16  # duplicates whose files are compared
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
FOREIGN, UNPROVED, OF_ANOTHER_PYTHON, OWN = range(4)
UNLISTED = "unlisted"  # in place of a digest
IMPORTED = re.compile(r"(?m)^from[ \t]+(\w+)[\w.]*[ \t]+import[ \t]")
SOME_OF_PYTHON = "__future__ argparse importlib json logging os pathlib re runpy shutil subprocess sys time typing"
OF_PYTHON = frozenset(getattr(sys, "stdlib_module_names", SOME_OF_PYTHON.split())) | {"__future__"}
SHELLS = ("sh", "bash", "dash", "ash", "busybox", "ksh", "zsh")
TRAMPOLINE = re.compile(r"""'''exec' +("\$\(dirname .*\)"/)?(?:"([^"$]+)"|'([^']+)'|([^\s"'$]+))\s""")


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


class Ahead:
    """What the directories before one in ``sys.path`` hold: modules by name in lower case, and broken metadata."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self.broken: dict[str, str] = {}

    def add(self, other: Ahead) -> None:
        """Take over what the next directory holds; the first of a name stays."""
        self.modules = {**other.modules, **self.modules}
        self.broken = {**other.broken, **self.broken}


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
    variable = os.environ.get("PYTHONPATH")
    if variable and not all(entry.startswith("/") for entry in variable.split(os.pathsep)):
        # The image's own working directory is not known in here.
        notes.warn(f"PYTHONPATH has relative or empty entries, which were looked for in {os.getcwd()}: {variable}")
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


def is_standard_library(directory: str) -> bool:
    """Tell whether a directory holds Python itself, whose modules are no package of anybody else."""
    return directory.endswith("/lib-dynload") or os.path.realpath(directory) == os.path.realpath(
        os.path.dirname(os.__file__)
    )


def metadata_entries(directory: str, notes: Notes, here: Ahead) -> list[str]:
    """Return the sorted names of the metadata directories and files of one directory; keeps its modules' names."""
    found = []
    watched = not is_standard_library(directory)
    wanted: tuple[str, ...] = (".dist-info", ".egg-info", ".egg-link")
    if directory.lower().endswith(".egg"):
        wanted += ("egg-info",)
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if entry.name.lower().endswith(wanted):
                    found.append(entry.name)
                elif watched and len(here.modules) < MAX_DISTRIBUTIONS:
                    module, _, suffix = entry.name.partition(".")
                    if suffix in ("", "py") or suffix.endswith("so"):
                        here.modules[module.lower()] = entry.path
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


def scan_directory(directory: str, notes: Notes, here: Ahead) -> Iterator[Distribution]:
    """Yield the readable distributions of one directory, duplicates too."""
    for entry in metadata_entries(directory, notes, here):
        try:
            found = read_entry(directory, entry)
        except Unreadable as error:
            notes.unreadable(directory, entry, str(error))
            here.broken[canonical(os.path.splitext(entry)[0].partition("-")[0])] = os.path.join(directory, entry)
            continue
        if found is not None:
            yield found


def scan_archive(path: str, notes: Notes) -> Iterator[Distribution]:
    """Yield the distributions of a zip file on ``sys.path`` (an egg or a wheel)."""
    try:
        import zipfile

        if not zipfile.is_zipfile(path):
            return
        if os.stat(path).st_size > MAX_ARCHIVE_BYTES:
            raise Unreadable(f"the archive has more than {MAX_ARCHIVE_BYTES // MIB} MiB")
        with zipfile.ZipFile(path) as archive:
            for name in filter(ZIP_METADATA.fullmatch, archive.namelist()):
                info = os.path.dirname(name)
                try:
                    with archive.open(name) as source:
                        raw = source.read(MAX_METADATA_BYTES)
                    found = parse_metadata(raw, os.path.join(path, info), path)
                except Exception as error:  # zipfile raises a dozen kinds on hostile input
                    notes.unreadable(path, info, clip(str(error), 200))
                else:
                    yield found
    except Exception as error:
        notes.unreadable(os.path.dirname(path), os.path.basename(path), clip(str(error), 200))


def version_key(version: str) -> list[tuple[int, int, str]]:
    """Return a sort key for versions: pre-releases before the release, everything else after it."""
    key = [(1, 0, "")]
    for part in reversed(re.findall(r"[0-9]{1,18}|[a-z]+", version.lower())):
        early = part in ("a", "b", "c", "rc", "alpha", "beta", "pre", "preview", "dev")
        key.insert(0, (2, int(part), "") if part.isdigit() else (0 if early else 3, 0, part))
    return key


def by_code_in_place(several: list[Distribution]) -> list[Distribution]:
    """Return distributions of one name in one directory: first the one whose RECORD the files in place follow.

    Only files that tell them apart are looked at; where that decides nothing, the higher version comes first.
    """
    several = sorted(several, key=lambda one: version_key(one.version), reverse=True)
    records = []
    for distribution in several[:MAX_RIVALS]:
        lines = recorded_files(distribution.info, "RECORD", MAX_SAMPLE_BYTES)
        small = {
            path: digest
            for path, digest, size in lines
            if digest.startswith("sha256=") and len(size) < 7 and not path.partition("/")[0].endswith(".dist-info")
        }
        records.append(small)
    full = [record for record in records if record]
    every = {path: None for record in full for path in record}  # in their order
    apart = [path for path in every if len(full) == 1 or len({record.get(path) for record in full}) > 1]
    # What a second one did not overwrite is still there, so files that all of them have say more.
    shared = [path for path in apart if all(path in record for record in full)]
    in_place = {}
    for path in (shared or apart)[:MAX_COMPARED]:
        try:
            in_place[path] = digest_of(read_regular(os.path.join(several[0].base, path), MIB))
        except (OSError, ValueError):
            in_place[path] = ""
    agreed = [sum(record.get(path) == digest for path, digest in in_place.items()) for record in records]
    first = several.pop(agreed.index(max(agreed)))
    return [first, *several]


def installed_distributions(mount: str, notes: Notes) -> dict[str, Distribution]:
    """Return the distributions an import would load, by name; the ones behind them go into the notes."""
    chosen: dict[str, Distribution] = {}
    ahead = Ahead()
    total = 0
    for path in import_directories(mount, notes):
        here: dict[str, list[Distribution]] = {}
        seen = Ahead()
        for found in scan_directory(path, notes, seen) if os.path.isdir(path) else scan_archive(path, notes):
            here.setdefault(found.name, []).append(found)
            total += 1
        if total > MAX_DISTRIBUTIONS:
            raise Refused("too_large", f"more than {MAX_DISTRIBUTIONS} distributions are installed")
        for name, found_here in here.items():
            # In one directory the code in place decides whose metadata is meant.
            several = by_code_in_place(found_here) if len(found_here) > 1 else found_here
            if name not in chosen:
                note_shadows(several[0], ahead, notes)
            winner = chosen.setdefault(name, several[0])
            for other in several:
                if other is not winner:
                    notes.add("shadowed_distributions", {**other.as_json(), "path": other.info})
        ahead.add(seen)
    for name in sorted(chosen):
        note_editable(chosen[name], notes)
    return chosen


def editable_source(distribution: Distribution) -> str:
    """Return the URL of the source tree whose code a distribution is (PEP 610), empty where its code is installed."""
    try:
        direct = json.loads(read_text(os.path.join(distribution.info, "direct_url.json"), 64 * KIB))
        return str(direct["url"]) if direct["dir_info"]["editable"] is True else ""
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""  # not there, or not one


def note_editable(distribution: Distribution, notes: Notes) -> None:
    """Report a distribution whose code is a source tree elsewhere."""
    source = editable_source(distribution)
    if source:
        notes.add("editable_distributions", {"name": distribution.name, "source": source})


def note_shadows(distribution: Distribution, ahead: Ahead, notes: Notes) -> None:
    """Warn where an import finds other code than the metadata reported here describes, by the distribution's name."""
    what = f"{distribution.name} {distribution.version} of {distribution.base}"
    broken = ahead.broken.get(distribution.name)
    if broken:
        notes.warn(f"{broken} comes before {what} in sys.path, but cannot be read")
    code = ahead.modules.get(distribution.name.replace("-", "_"))
    # A directory without __init__.py is a part of a namespace: a package behind it comes first.
    if code and (code.endswith((".py", ".so")) or os.path.isfile(os.path.join(code, "__init__.py"))):
        source = editable_source(distribution)
        if not (source.startswith("file:///") and is_below(code, source[len("file://") :])):
            notes.warn(f"an import finds {code}, which is not that distribution's code, before {what}")


# --- console scripts


def recorded_files(info: str, listing: str, limit: int = MAX_FILE_LIST_BYTES) -> Iterator[tuple[str, str, str]]:
    """Yield (path, digest, size) of each line of a RECORD (CSV), or (path, "", "") of an installed-files.txt."""
    for match in SHORT_LINE.finditer(read_text(os.path.join(info, listing), limit)):
        line = match.group().rstrip("\r")
        quoted = re.match(r'"((?:[^"]|"")*)"(?:,|$)', line)
        if quoted:
            path, rest = quoted.group(1).replace('""', '"'), line[quoted.end() :]
        else:
            path, _, rest = line.partition(",")
        digest, _, size = rest.partition(",")
        yield path, digest, size


def listed_scripts(distribution: Distribution, name: str) -> list[tuple[str, str, str]]:
    """Return (path, digest, size) of programs of a name in the distribution's list of files, without package data."""
    found: list[tuple[str, str, str]] = []
    for listing, origin in (("RECORD", distribution.base), ("installed-files.txt", distribution.info)):
        for path, digest, size in recorded_files(distribution.info, listing):
            directory, base = os.path.split(path)
            parent = os.path.basename(directory)
            if len(found) >= MAX_LISTED:  # each will be read
                break
            if base == name and (path.startswith(("../", "/")) or directory in SCRIPT_DIRECTORIES):
                joined = os.path.join(origin, path)
                # "pip --target" moves scripts after it wrote RECORD, whose ".." then lead to somebody else's; where
                # the directory is a link, ".." was meant as text.
                places = (os.path.join(distribution.base, parent, name), joined, os.path.normpath(joined))
                found += [(place, digest, size) for place in places]
    return sorted(found, key=lambda one: os.path.basename(os.path.dirname(one[0])) not in SCRIPT_DIRECTORIES)


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


def digest_of(content: bytes) -> str:
    """Return the digest of a file as RECORD writes it."""
    import base64
    import hashlib

    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode("ascii")


def is_recorded(path: str, digest: str, size: str) -> bool:
    """Tell whether a program is the one that was installed. Of a large one, such as uv, the size has to do."""
    try:
        length = os.stat(path).st_size
        if not digest.startswith("sha256=") or (size and size != str(length)):
            return False
        return bool(size) if length > MIB else digest == digest_of(read_regular(path, MIB))
    except OSError:
        return False


def starts(path: str, distribution: Distribution, module: str) -> bool:
    """Tell whether a script starts this distribution's code; one without entry point has a module of its name."""
    text = read_text(path, 64 * KIB)
    started = re.escape(module) if module else re.escape(distribution.name.replace("-", "_")) + r"(?:\.\w+)*"
    if re.search(rf"(?m)^[ \t]*(?:from|import)[ \t]+{started}(?:\s|$)", text):
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


def proof(path: str, distribution: Distribution, module: str, digest: str, size: str) -> int:
    """Return how sure it is that a program is the distribution's own: FOREIGN, UNPROVED, OF_ANOTHER_PYTHON or OWN.

    A listed script may have been edited, or replaced by a wrapper, and stays the distribution's; but not where it
    starts the code of another, nor outside of a usual place for packages: there "pip --target" left RECORD wrong.
    """
    if starts(path, distribution, module):
        return OWN if runs_this_python(path) or is_recorded(path, digest, size) else OF_ANOTHER_PYTHON
    if is_recorded(path, digest, size):
        return OWN
    text = read_text(path, 64 * KIB)
    usual = os.path.basename(distribution.base) in ("site-packages", "dist-packages")
    excused = not digest or (usual and text.startswith("#!"))
    own = (module or distribution.name.replace("-", "_")).partition(".")[0]
    others = set(IMPORTED.findall(text)) - OF_PYTHON - {own}
    return UNPROVED if excused and digest != UNLISTED and not others else FOREIGN


def own_script(distribution: Distribution, name: str, mount: str, notes: Notes) -> str | None:
    """Return the distribution's own console script.

    A place is no proof, not even one in the distribution's list of files: best is a script that starts the
    distribution's code (installers and conda change first lines after RECORD was written), or is the recorded file.
    """
    module = entry_point_module(distribution, name)
    own, best = None, FOREIGN
    listed = listed_scripts(distribution, name)
    unlisted = [(os.path.join(directory, name), UNLISTED, "") for directory in script_directories(distribution)]
    for path, digest, size in listed + unlisted:
        program = as_program(path, mount)
        found = proof(program, distribution, module, digest, size) if program else FOREIGN
        if found > best:
            own, best = program, found
        if best == OWN:
            break
    if best == UNPROVED:
        notes.warn(f"{own} is listed as a file of {distribution.name}, but is not the recorded one nor starts its code")
    return own


def on_path(name: str, mount: str) -> str | None:
    """Return the program that PATH finds for a name."""
    found = (as_program(os.path.join(directory, name), mount) for directory in search_path())
    return next(filter(None, found), None)


def script_interpreter(path: str) -> tuple[str, str, str]:
    """Return the program that runs a script, with its links; the line that says so; and what is wrong with it.

    All are empty for a program that is no script, the first also for a shell script that starts something unknown.
    """
    lines = read_text(path, 4 * KIB).split("\n", 2)
    words = lines[0][2:].split() if lines[0].startswith("#!") else []
    if not words:
        return "", "", ""
    if as_program(words[0], "/nonexistent") is None:
        return "", lines[0], "which cannot be run in this image"
    base = os.path.basename(words[0])
    if base == "env":
        name = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        for directory in search_path():
            if as_program(os.path.join(directory, name), "/nonexistent"):
                return os.path.join(directory, name), lines[0], ""
        return "", lines[0], f"but PATH finds no {name}"
    if base not in SHELLS:
        return words[0], lines[0], ""
    # Where a path is too long for the first line, or has a blank, or is relative, sh starts the Python.
    started = TRAMPOLINE.match(lines[1]) if len(lines) > 1 else None
    if started is None:
        return "", lines[0], ""
    program = next(filter(None, started.groups()[1:]))
    if started.group(1):
        program = os.path.join(os.path.dirname(os.path.realpath(path)), program)
    runnable = as_program(program, "/nonexistent") is not None
    return program if runnable else "", lines[1], "" if runnable else "which cannot be run in this image"


def environment_of(program: str) -> str:
    """Return the virtual environment that a Python belongs to, else the program, free of links."""
    directory = os.path.dirname(program)
    for place in (directory, os.path.dirname(directory)):
        if os.path.isfile(os.path.join(place, "pyvenv.cfg")):
            return os.path.realpath(place)
    return os.path.realpath(program)


def is_this_python(program: str) -> bool:
    """Tell whether a program is the Python that runs us, or may start it, as the shims of pyenv do."""
    if not sys.executable or read_text(program, 2) == "#!":
        return True
    one, other = environment_of(program), environment_of(sys.executable)
    try:
        return one == other or os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def runs_this_python(path: str) -> bool:
    """Tell whether a script is run by the Python that runs us, as far as that can be told."""
    program, _line, fault = script_interpreter(path)
    return not fault and (not program or is_this_python(program))


def checked_program(path: str, name: str, notes: Notes) -> str:
    """Return the path of a program for a strict record; raises Refused. Warns of one that another Python runs."""
    text = path.encode("utf-8", "replace").decode("utf-8")
    if text != path or not path.isprintable() or path.startswith("//") or os.path.normpath(path) != path:
        raise Refused("unusable_path", f"the path of {name} cannot stand in a record: {path!r}")
    program, line, fault = script_interpreter(path)
    if fault:
        notes.warn(f"{path} starts with {line}, {fault}")
    elif program and not is_this_python(program):
        notes.warn(f"{path} is run by {program}, which is not the Python inspected, {sys.executable}")
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
            program = own_script(distributions[name], script, mount, notes)
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
    program = own_script(runtime, "vllm", mount, notes)
    found = on_path("vllm", mount)
    if program is None:
        what = f"vllm {runtime.version} in {runtime.base} has no executable console script vllm"
        other = f"; {found}, which PATH finds, is neither the installed file nor starts its code" if found else ""
        raise Refused("script_missing", f"the distribution {what}{other}")
    checked_program(program, "vllm", notes)
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


def make_facts(kind: str, mount: str, without: list[str], unusable: str) -> dict[str, Any]:
    """Return the whole document for one kind of image; raises Refused."""
    notes = Notes()
    image = python_facts()
    if unusable:
        notes.warn(f"before {sys.executable} come, and cannot be used: {unusable}")
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


def parse_arguments(arguments: list[str]) -> tuple[str, str, str, list[str], str]:
    """Return kind, output, mount, the Pythons tried before, what was wrong with others; raises GetoptError."""
    # argparse would take a tenth of our time: every module is read through the image's file system.
    options, rest = getopt.getopt(arguments, "", ["kind=", "output=", "mount=", "without=", "unusable="])
    given = dict(options)
    if rest:
        raise getopt.GetoptError(f"unknown argument {rest[0]}")
    if given.get("--kind") not in ("client", "serving"):
        raise getopt.GetoptError("--kind must be client or serving")
    if not os.path.isabs(given.get("--output", "")):
        raise getopt.GetoptError("--output must be an absolute path")
    mount = given.get("--mount", os.path.dirname(os.path.abspath(__file__)))
    without = [value for name, value in options if name == "--without"]
    return given["--kind"], given["--output"], mount, without, given.get("--unusable", "")


def main(arguments: list[str]) -> int:
    """Run the inspector; returns the exit status."""
    try:
        kind, output, mount, without, unusable = parse_arguments(arguments)
    except getopt.GetoptError as error:
        return fail("usage", str(error), EXIT_FAULT)
    try:
        content = encode(make_facts(kind, mount, without, unusable))
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
