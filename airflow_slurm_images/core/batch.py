# SPDX-License-Identifier: Apache-2.0
"""Batch scripts: ``#SBATCH`` directives, quoted assignments, and the constant body, joined byte for byte.

This is the one place where values of an author meet shell or directive syntax. ``sbatch`` reads a directive
line with its own small parser (blanks separate, quotes group, ``#`` starts a comment), so a value that could
end or extend its line is refused rather than escaped. Behind the directives every value is a single-quoted
constant. The signature of :func:`directives` is the whole list of options a job of ours can carry; GPUs are
not among them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NoReturn

from airflow_slurm_images.core.errors import InvalidRequestError

SHEBANG = "#!/bin/bash -p"
"""``-p``: no functions, no BASH_ENV, no SHELLOPTS from whatever environment the node hands over."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BASH_OWN = re.compile(r"BASH.*|COMP_.*|E?UID|PPID|SHELLOPTS|IFS|PATH|HOME|PWD|OLDPWD|SHLVL|PS[0-9]|ENV|LC_.*|LANG|_")
_OTHER_DIRECTIVE = re.compile(r"^#\s*(SBATCH|PBS|BSUB)\b", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+-]*")
_LIST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+,-]*")

OPTION_RULES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "job_name": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*"), "letters, digits and _ . -"),
    "account": (_WORD, "letters, digits and _ . : @ / + -"),
    "partition": (_LIST, "partition names, separated by commas without blanks"),
    "qos": (_WORD, "letters, digits and _ . : @ / + -"),
    "reservation": (_LIST, "reservation names, separated by commas without blanks"),
    "constraint": (
        re.compile(r"[A-Za-z0-9_(\[!][A-Za-z0-9_.:@+=/&|,*()\[\]!-]*"),
        "feature names joined by & | , with ( ) [ ] * and !, without blanks",
    ),
    "exclude": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*"), "a node list such as n[1-3],m7"),
}
"""Option -> (pattern of the whole value, the same in words). Used for profiles as well as for rendering."""

_PATH = re.compile(r"/[A-Za-z0-9_.,:@=+~%/-]*")
_MEMORY = re.compile(r"([0-9]{1,12})([KMGT]?)", re.IGNORECASE)
_UNIT_KIB = {"K": 1, "M": 1024, "": 1024, "G": 1024**2, "T": 1024**3}
_MAX_LENGTH = 1024


def shell_quote(value: str) -> str:
    r"""Single-quote a value for any POSIX shell, whatever is in it.

    >>> print(shell_quote("it's"))
    'it'\''s'

    Raises InvalidRequestError for what no shell variable can hold: a NUL, or text that is not Unicode.
    """
    if "\0" in value:
        _refuse("value", None, "a NUL character cannot be passed to a shell")
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse("value", None, "it is not valid Unicode")
    return "'" + value.replace("'", "'\\''") + "'"


def assignment_block(assignments: Mapping[str, str]) -> str:
    """Render ``readonly NAME='value'`` lines in the order given, each ended by a newline.

    Raises InvalidRequestError for a name that is not an identifier or belongs to bash, and for a value with
    control characters: one assignment is one line.
    """
    lines = []
    for name, value in assignments.items():
        if not _NAME.fullmatch(name) or _BASH_OWN.fullmatch(name):
            _refuse("variable name", name, "it is not an identifier of our own")
        if _has_control(value):
            _refuse(name, None, "control characters and line ends are not allowed")
        lines.append(f"readonly {name}={shell_quote(value)}\n")
    return "".join(lines)


def directives(
    *,
    job_name: str,
    output: str,
    chdir: str,
    cpus_per_task: int,
    memory: str | int,
    time_limit: str | int,
    account: str | None = None,
    partition: str | None = None,
    qos: str | None = None,
    reservation: str | None = None,
    constraint: str | None = None,
    exclude: str | None = None,
    dependency: Literal["singleton"] | None = "singleton",
) -> tuple[str, ...]:
    """Render the ``#SBATCH`` lines of one job; one node, one task, never a GPU, never requeued by itself.

    ``output`` and ``chdir`` are absolute paths, ``memory`` is MiB or a number with K, M, G or T,
    ``time_limit`` minutes or one of Slurm's forms. The cluster is not here: it is chosen by ``-M`` on the
    command line, like that of every later command. ``export=NIL`` means an empty environment from Slurm
    23.02 on; before, the script's own ``env -i`` makes up for it. Raises
    InvalidRequestError for a value that could break out.
    """
    words = {
        "account": account,
        "partition": partition,
        "qos": qos,
        "reservation": reservation,
        "constraint": constraint,
        "exclude": exclude,
    }
    options = [
        f"job-name={check_option('job_name', job_name)}",
        f"output={check_path('output', output).replace('%', '%%')}",  # a single one starts a pattern
        "open-mode=append",
        f"chdir={check_path('chdir', chdir)}",
        "nodes=1",
        "ntasks=1",
        f"cpus-per-task={check_cpus(cpus_per_task)}",
        f"mem={_memory_text(memory)}",
        f"time={_time_text(time_limit)}",
        "export=NIL",
        "no-requeue",
    ]
    if dependency is not None:
        if dependency != "singleton":
            _refuse("dependency", dependency, "only singleton is offered")
        options.append("dependency=singleton")
    options += [f"{name}={check_option(name, value)}" for name, value in words.items() if value is not None]
    return tuple(f"#SBATCH --{option}" for option in options)


def render_script(lines: Sequence[str], assignments: Mapping[str, str], body: str) -> str:
    """Join shebang, directives, assignments and the package-owned body, which follows byte for byte.

    Raises InvalidRequestError when something would be read differently by ``sbatch`` than meant here: a line
    that is not one directive, another directive inside the body, DOS line ends or a NUL.
    """
    for line in lines:
        if not line.startswith("#SBATCH --") or _has_control(line):
            _refuse("directive", line, "it is not one line made by directives()")
    if "\0" in body or "\r" in body:
        _refuse("body", body[:40], "sbatch takes no NUL and no DOS line ends")
    if _OTHER_DIRECTIVE.search(body):
        _refuse("body", body[:40], "directives stand before the body, not in it")
    return "".join(f"{line}\n" for line in (SHEBANG, *lines)) + assignment_block(assignments) + body


def check_option(option: str, value: str) -> str:
    """Return the value if the named option (a key of ``OPTION_RULES``) may carry it, else raise.

    >>> check_option("partition", "cpu,long")
    'cpu,long'
    """
    pattern, words = OPTION_RULES[option]
    if not isinstance(value, str) or len(value) > _MAX_LENGTH or not pattern.fullmatch(value):
        _refuse(option, value, f"allowed are {words}")
    return value


def check_path(option: str, value: str) -> str:
    """Return an absolute path that can stand in a directive: no blanks, no quotes, no ``#``, no ``..``.

    A backslash changes how Slurm reads an output path, so it is refused too.
    """
    rule = "it must be an absolute path of letters, digits and _ . , : @ = + ~ % - /, without '..'"
    if not isinstance(value, str) or len(value) > 4096 or not _PATH.fullmatch(value):
        _refuse(option, value, rule)
    if ".." in value.split("/"):
        _refuse(option, value, rule)
    return value


def check_cpus(value: int) -> int:
    """Return the CPU count if it is a whole number from 1 to 65535, else raise."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        _refuse("cpus_per_task", value, "it must be a whole number, at least 1")
    return value


def memory_mebibytes(value: str | int) -> int:
    """Return MiB, rounded up as Slurm does, of ``16G``, ``512M`` or a number of MiB.

    >>> memory_mebibytes("16G")
    16384

    Zero is refused: to Slurm it means all memory of the node. Raises InvalidRequestError.
    """
    match = None if isinstance(value, bool) else _MEMORY.fullmatch(str(value))
    kib = int(match[1]) * _UNIT_KIB[match[2].upper()] if match else 0
    if kib <= 0:
        _refuse("memory", value, "it must be MiB or a number with K, M, G or T, above 0, such as 16G")
    return -(-kib // 1024)


def time_limit_seconds(value: str | int) -> int:
    """Return the seconds of a Slurm time limit: ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S``.

    >>> time_limit_seconds("90"), time_limit_seconds("02:00:00"), time_limit_seconds("1-00:00:00")
    (5400, 7200, 86400)

    No limit (``0``, ``UNLIMITED``) is refused: a job of ours always ends. Raises InvalidRequestError.
    """
    text = "" if isinstance(value, bool) else str(value)
    days, dash, clock = text.partition("-") if "-" in text else ("0", "", text)
    fields = [days, *clock.split(":")]
    seconds = 0
    if len(fields) <= 4 and all(re.fullmatch(r"[0-9]{1,6}", field) for field in fields):
        seconds = _seconds([int(field) for field in fields], has_days=bool(dash))
    if seconds <= 0:
        _refuse("time_limit", value, "it must be minutes, HH:MM:SS or D-HH:MM:SS, above 0, such as 02:00:00")
    return seconds


def _seconds(fields: list[int], *, has_days: bool) -> int:
    """Sum ``[days, clock fields...]``; 0 where a field behind the first exceeds its range."""
    days, *clock = fields
    if has_days:
        hours, minutes, rest = [*clock, 0, 0][:3]
        in_range = hours < 24 and minutes < 60 and rest < 60
    elif len(clock) == 3:
        hours, minutes, rest = clock
        in_range = minutes < 60 and rest < 60
    else:
        hours, (minutes, rest) = 0, [*clock, 0][:2]
        in_range = rest < 60
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest if in_range else 0


def _memory_text(value: str | int) -> str:
    memory_mebibytes(value)
    text = str(value).upper()
    return text if text[-1].isalpha() else f"{text}M"


def _time_text(value: str | int) -> str:
    time_limit_seconds(value)
    return str(value)


def _has_control(text: str) -> bool:
    return any(ord(char) < 32 or 127 <= ord(char) < 160 or char in "\u2028\u2029" for char in text)


def _refuse(what: str, value: object, rule: str) -> NoReturn:
    """Raise with the value shown on one bounded line; ``None`` stands for one that may be secret."""
    shown = "" if value is None else f" {value!a}"
    shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
    message = f"{what}{shown} is refused: {rule}."
    raise InvalidRequestError(message, remedy=f"change {what}", details={"part": what, "rule": rule})
