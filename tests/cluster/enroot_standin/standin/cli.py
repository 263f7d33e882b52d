"""The command line: Enroot's commands and options, its usage texts' layout, its exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from . import config
from .console import Exit


@dataclass(frozen=True)
class Option:
    """One option: its names, the name of its value if it takes one, and what it does."""

    names: tuple[str, ...]
    value: str = ""
    text: str = ""

    @property
    def key(self) -> str:
        return self.names[-1].lstrip("-")

    def usage(self) -> str:
        short = f"{self.names[0]}, " if len(self.names) > 1 else "    "
        return f"   {short + self.names[-1] + ' ' + self.value:<24} {self.text}"


@dataclass
class Parsed:
    options: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    def last(self, key: str) -> str:
        return self.options.get(key, [""])[-1]

    def all(self, key: str) -> list[str]:
        return self.options.get(key, [])

    def has(self, key: str) -> bool:
        return key in self.options


ARCH = Option(("-a", "--arch"), "ARCH", "Architecture wanted, as `uname -m` names it")
FORCE = Option(("-f", "--force"), "", "Overwrite, or do not ask")

OPTIONS: dict[str, tuple[Option, ...]] = {
    "import": (ARCH, Option(("-o", "--output"), "FILE", "Image file to write")),
    "digest": (ARCH,),
    "create": (Option(("-n", "--name"), "NAME", "Name of the container"), FORCE),
    "list": (Option(("-f", "--fancy"), "", "With a header"),),
    "remove": (FORCE,),
    "start": (
        Option(("-c", "--conf"), "CONFIG", "Script sourced before the container starts"),
        Option(("-e", "--env"), "KEY[=VAL]", "Variable for the container"),
        Option(("--rc",), "SCRIPT", "Script run instead of the image's own"),
        Option(("-r", "--root"), "", "Be root inside"),
        Option(("-w", "--rw"), "", "Writable root file system"),
        Option(("-m", "--mount"), "FSTAB", "Mount from the host, colons between the fields"),
    ),
}
NAMESPACES = tuple(Option((f"--{name}",), "", f"New {name} namespace") for name in ("pid", "net", "ipc", "uts"))
ARGUMENTS = {
    "import": "URI",
    "digest": "URI",
    "create": "IMAGE",
    "list": "",
    "remove": "NAME...",
    "start": "NAME|IMAGE [COMMAND] [ARG...]",
}
LIMITS = {"import": (1, 1), "digest": (1, 1), "create": (1, 1), "remove": (1, 0), "start": (1, 0)}


class CommandLine:
    def __init__(self, program: str, *, namespaces: bool) -> None:
        self.program = program
        self.options = dict(OPTIONS)
        if namespaces:
            self.options["start"] += NAMESPACES

    def usage(self, command: str, status: int) -> NoReturn:
        if command in self.options:
            print(f"Usage: {self.program} {command} [options] [--] {ARGUMENTS[command]}".rstrip())
            print("\n Options:")
            for option in self.options[command]:
                print(option.usage().rstrip())
        else:
            print(f"Usage: {self.program} COMMAND [ARG...]\n\n Commands:")
            for name, arguments in ARGUMENTS.items():
                print(f"   {name:<6} [options] [--] {arguments}".rstrip())
            print("   version")
        raise Exit(status)

    def parse(self, command: str, argv: Sequence[str]) -> Parsed:
        rest, parsed = list(argv), Parsed()
        while rest and rest[0].startswith("-") and len(rest[0]) > 1:
            word = rest.pop(0)
            if word == "--":
                break
            if word in ("-h", "--help"):
                self.usage(command, 0)
            self._take(command, word, rest, parsed)
        parsed.arguments = rest
        low, high = LIMITS.get(command, (0, 0))
        if len(rest) < low or (high and len(rest) > high):
            self.usage(command, 1)
        return parsed

    def _take(self, command: str, word: str, rest: list[str], parsed: Parsed) -> None:
        name, equals, value = word.partition("=")
        option = next((o for o in self.options[command] if name in o.names), None)
        if option is None or (equals and (not option.value or not name.startswith("--"))):
            self.usage(command, 1)
        if option.value and not equals:
            value = rest.pop(0) if rest else ""
        if option.value and not value:
            self.usage(command, 1)
        parsed.options.setdefault(option.key, []).append(value)


def _dispatch(line: CommandLine, command: str, argv: Sequence[str]) -> None:
    if command == "version":
        print(config.VERSION)
        return
    if command not in line.options:
        line.usage("help", 0 if command == "help" else 1)
    parsed = line.parse(command, argv)
    # Imported late: a start should not wait for what only an import needs.
    if command in ("import", "digest"):
        from . import importer

        importer.command(command, parsed.arguments[0], arch=parsed.last("arch"), output=parsed.last("output"))
    elif command == "start":
        from . import start

        start.command(parsed.arguments, _start_options(parsed))
    else:
        from . import containers

        force = parsed.has("force") or "ENROOT_FORCE_OVERRIDE" in os.environ
        if command == "create":
            containers.create(parsed.arguments[0], parsed.last("name"), force=force)
        elif command == "list":
            containers.names(fancy=parsed.has("fancy"))
        else:
            containers.remove(parsed.arguments, force=force)


def _start_options(parsed: Parsed) -> dict[str, list[str]]:
    """Switches become variables, as they may stand in the environment as well."""
    conf = parsed.last("conf")
    if conf and Path(conf).is_file():
        config.load_directives(Path(conf))
    switches = {"root": "REMAP_ROOT", "rw": "ROOTFS_WRITABLE"} | {
        name: f"UNSHARE_{name.upper()}" for name in ("pid", "net", "ipc", "uts")
    }
    for key, variable in switches.items():
        if parsed.has(key):
            os.environ[f"ENROOT_{variable}"] = "y"
    return parsed.options


def main(program: str, argv: list[str], *, namespaces: bool) -> NoReturn:
    line = CommandLine(program, namespaces=namespaces)
    # Unwinds through the clean-up of temporary files, like Enroot's exit traps.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    status = 0
    try:
        config.load()
        if not namespaces:
            for name in ("PID", "NET", "IPC", "UTS"):
                os.environ.pop(f"ENROOT_UNSHARE_{name}", None)
        if not argv:
            line.usage("help", 1)
        _dispatch(line, argv[0], argv[1:])
    except Exit as end:
        status = end.status
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.stdout.flush()
    sys.exit(status)
