# SPDX-License-Identifier: Apache-2.0
"""Image references: parse, normalise, and write the one URI every Enroot release understands.

Grammar: the OCI distribution specification 1.1 ("Pulling manifests": ``<name>`` and tag expressions) and the
``host[:port]`` form all registry clients share. The split between registry and repository is made here and
never left to Enroot, whose releases disagree about it: a first component with ``.`` or ``:``, or the word
``localhost``, is a registry; everything else lives on Docker Hub. Nothing is repaired or guessed: what is not
well formed is refused before any connection is opened, with the part, the rule and the remedy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from airflow_slurm_images.core.errors import InvalidRequestError

DOCKER_HUB = "registry-1.docker.io"
"""The API host of Docker Hub. Enroot up to 4.1.2 takes ``docker.io`` literally, so it is never passed on."""

_DOCKER_HUB_NAMES = frozenset(
    {"docker.io", "index.docker.io", "registry.docker.io", "registry.hub.docker.com", DOCKER_HUB}
)
_MAX_NAME = 255  # registry + "/" + repository, as the distribution specification advises
_MAX_TEXT = 1024  # more than any valid reference can have
_ECHO = 100  # characters of a refused value that a message repeats

_FOREIGN = re.compile(r"[^A-Za-z0-9._/:@#-]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LIKE_DIGEST = re.compile(r"(?:sha|md)[0-9]+:[^/#]*|[a-z0-9+._-]+:[0-9a-f]{32,}", re.IGNORECASE)
_SURE_DIGEST = re.compile(r"sha[0-9]+:[0-9a-f]*", re.IGNORECASE)
_ENROOT_FORM = re.compile(r"([^#]*#[^:#]*):(sha256:.*)")

_EXAMPLE = "registry.example/team/app:1.0@sha256:<64 lower-case hex characters>"
_WRITE = f"write {_EXAMPLE}"
_PIN = f"pin it: {_EXAMPLE}; OciResolveOperator or `skopeo inspect` tells the digest of a tag"


@dataclass(frozen=True, kw_only=True)
class _Named:
    """What pinned and unpinned references share: where the image is and what it is called there."""

    registry: str
    repository: str
    tag: str | None

    @property
    def is_docker_hub(self) -> bool:
        """Whether the registry is Docker Hub (always under its API host)."""
        return self.registry == DOCKER_HUB

    @property
    def needs_enroot_4(self) -> bool:
        """Whether Enroot before 4.0 would ask for ``library/NAME`` instead: one component, not on Docker Hub.

        There 3.x gets a 404; the job compares this with ``enroot version`` before it imports.
        """
        return not self.is_docker_hub and "/" not in self.repository

    def _check_name(self) -> None:
        text = f"{self.registry}/{self.repository}"
        _check_registry(self.registry, text)
        _check_repository(self.repository, text)
        if len(text) > _MAX_NAME:
            rule = f"registry and repository together are longer than {_MAX_NAME} characters"
            _refuse(text, "name", rule, "shorten it")
        if self.tag is not None:
            _check_tag(self.tag, f"{text}:{self.tag}")


@dataclass(frozen=True, kw_only=True)
class ImageReference(_Named):
    """An image pinned by digest; the only kind that is ever imported.

    >>> ref = ImageReference.parse("acme/tool:1.2@sha256:" + 64 * "0")
    >>> ref.registry, ref.repository, ref.tag
    ('registry-1.docker.io', 'acme/tool', '1.2')
    >>> ref.enroot_uri == "docker://registry-1.docker.io#acme/tool:sha256:" + 64 * "0"
    True
    """

    digest: str
    """``sha256:`` and 64 lower-case hex characters."""

    def __post_init__(self) -> None:
        self._check_name()
        _check_digest(self.digest, self.canonical)

    @classmethod
    def parse(cls, text: str) -> ImageReference:
        """Read ``[registry/]repository[:tag]@sha256:<hex>`` or Enroot's ``registry#repository...`` form.

        Raises InvalidRequestError, whose ``details`` name the ``part`` and the ``rule``.
        """
        registry, repository, tag, digest = _split(text)
        if digest is None:
            _refuse(text, "digest", "the image is not pinned by a sha256 digest", _PIN)
        return cls(registry=registry, repository=repository, tag=tag, digest=digest)

    @property
    def enroot_uri(self) -> str:
        """The form Enroot 3.4 to 4.x read alike; the tag is information only and left out."""
        return f"docker://{self.registry}#{self.repository}:{self.digest}"

    @property
    def canonical(self) -> str:
        """``registry/repository[:tag]@sha256:<hex>``; parsing it again gives an equal reference."""
        return _join(self.registry, self.repository, self.tag, self.digest)

    def __str__(self) -> str:
        return self.canonical


@dataclass(frozen=True, kw_only=True)
class TagReference(_Named):
    """A reference that may move: ``repository:tag``, with or without the digest it stood for.

    >>> str(TagReference.parse("ubuntu:24.04"))
    'registry-1.docker.io/library/ubuntu:24.04'
    """

    digest: str | None

    def __post_init__(self) -> None:
        self._check_name()
        if self.digest is not None:
            _check_digest(self.digest, self.canonical)
        if self.tag is None and self.digest is None:
            rule = "neither tag nor digest is given"
            _refuse(self.canonical, "tag", rule, "name the tag, for example :latest; none is assumed")

    @classmethod
    def parse(cls, text: str) -> TagReference:
        """Read the same grammar as :meth:`ImageReference.parse` with the digest optional.

        Raises InvalidRequestError; with neither tag nor digest too, as ``latest`` is not assumed.
        """
        registry, repository, tag, digest = _split(text)
        return cls(registry=registry, repository=repository, tag=tag, digest=digest)

    @property
    def canonical(self) -> str:
        """``registry/repository[:tag][@sha256:<hex>]``."""
        return _join(self.registry, self.repository, self.tag, self.digest)

    def pin(self, digest: str) -> ImageReference:
        """Bind the tag to a digest found by a resolver (``sha256:<hex>``)."""
        return ImageReference(registry=self.registry, repository=self.repository, tag=self.tag, digest=digest)

    def __str__(self) -> str:
        return self.canonical


def redact(text: str) -> str:
    """Make a refused value fit for a message: no credentials, one printable line, bounded length.

    Whatever stands before an ``@`` that no digest follows may be ``user:password``, so it goes.

    >>> redact("bob:secret@reg.example/app:1")
    "'***@reg.example/app:1'"
    """
    head, tail = text.split("?", 1)[0], ""
    while "@" in head:
        before, _, after = head.rpartition("@")
        if not _SURE_DIGEST.fullmatch(after):
            head = f"***@{after}"
            break
        head, tail = before, f"@{after}{tail}"
    shown = ascii(head + tail)
    return shown if len(shown) <= _ECHO else f"{shown[:_ECHO]}...'"


def _refuse(text: str, part: str, rule: str, remedy: str) -> NoReturn:
    message = f"Image reference {redact(text)} is refused: {part}: {rule}."
    raise InvalidRequestError(message, remedy=remedy, details={"part": part, "rule": rule})


def _join(registry: str, repository: str, tag: str | None, digest: str | None) -> str:
    return f"{registry}/{repository}" + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")


def _split(text: str) -> tuple[str, str, str | None, str | None]:
    """Cut the text into registry, repository, tag and digest; Docker Hub's names are normalised."""
    _check_characters(text)
    name, digest = _split_digest(text)
    first, slash, rest = name.partition("/")
    if "#" in name:
        registry, _, remainder = name.partition("#")
        if "#" in remainder or "/" in registry:
            _refuse(text, "registry", "'#' stands once, between registry and repository", _WRITE)
        _check_explicit_registry(registry, text)
    elif slash and (_looks_like_host(first) or first == ""):
        registry, remainder = first, rest
    else:
        registry, remainder = DOCKER_HUB, name
    repository, colon, tag = remainder.partition(":")
    if not slash and "#" not in name and _looks_like_host(repository):
        rule = f"{redact(repository)} is a registry and no repository follows"
        _refuse(text, "repository", rule, _WRITE)
    registry = _normal_registry(registry, text)
    if registry == DOCKER_HUB and repository and "/" not in repository:
        repository = f"library/{repository}"
    # Checked here with the author's own text, so that a message repeats what was written.
    _check_registry(registry, text)
    _check_repository(repository, text)
    if colon:
        _check_tag(tag, text)
    return registry, repository, tag if colon else None, digest


def _check_characters(text: object) -> None:
    if not isinstance(text, str):
        _refuse(type(text).__name__, "reference", "it is not text", _WRITE)
    if not text:
        _refuse(text, "reference", "it is empty", _WRITE)
    if len(text) > _MAX_TEXT:
        _refuse(text, "reference", f"it is longer than {_MAX_TEXT} characters", "shorten it")
    if any(char.isspace() for char in text):
        _refuse(text, "reference", "white space is not allowed", "remove blanks, tabs and line ends")
    if not text.isprintable():
        _refuse(text, "reference", "control characters are not allowed", "remove them")
    if _SCHEME.match(text):
        rule = "a scheme such as docker:// or https:// is not part of a reference"
        _refuse(text, "scheme", rule, "remove everything up to and including ://")
    if "[" in text or "]" in text:
        rule = "IPv6 literals are not supported (Enroot cannot look up a login for them)"
        _refuse(text, "registry", rule, "use a host name or an IPv4 address")
    foreign = _FOREIGN.search(text)
    if foreign and not _has_credentials(text):
        rule = f"character {foreign.group()!a} is not allowed"
        _refuse(text, "reference", rule, f"use only what the OCI grammar knows, as in {_EXAMPLE}")


def _has_credentials(text: str) -> bool:
    """Whether an ``@`` stands there that no digest follows."""
    return any(not _LIKE_DIGEST.fullmatch(after) for after in text.split("@")[1:])


def _split_digest(text: str) -> tuple[str, str | None]:
    """Take off ``@sha256:...`` or, in Enroot's own form, ``:sha256:...``."""
    name, *after = text.split("@")
    if _has_credentials(text):
        if len(after) == 1 and not set("/#") & set(after[0]):
            rule = "what follows '@' is not sha256: and 64 lower-case hex characters"
            _refuse(text, "digest", rule, _PIN)
        rule = "a user or password does not belong into a reference"
        _refuse(text, "credentials", rule, "put the login into a connection and name it in registry_conn_id")
    if match := _ENROOT_FORM.fullmatch(name):
        name, after = match[1], [match[2], *after]
    if len(after) > 1:
        _refuse(text, "digest", "more than one digest is given", "keep one")
    if not after:
        return name, None
    _check_digest(after[0], text)
    return name, after[0]


def _check_digest(digest: str, text: str) -> None:
    if _DIGEST.fullmatch(digest):
        return
    algorithm, colon, value = digest.partition(":")
    if not colon or algorithm != "sha256":
        rule = f"only sha256 digests are taken, not {redact(algorithm)}"
    elif len(value) != 64:
        rule = f"a sha256 digest has 64 hex characters, this one has {len(value)}"
    else:
        rule = "a sha256 digest has only the characters 0-9 and a-f, in lower case"
    _refuse(text, "digest", rule, _PIN)


def _looks_like_host(component: str) -> bool:
    return "." in component or ":" in component or component.lower() == "localhost"


def _check_explicit_registry(registry: str, text: str) -> None:
    """``host#repository`` takes any host for Enroot; ours must also be a registry when written with ``/``."""
    if registry and not _looks_like_host(registry):
        rule = f"{redact(registry)} has neither a dot nor a port: elsewhere it reads as a Docker Hub user"
        _refuse(text, "registry", rule, "write its full name or add the port, for example registry:443")


def _normal_registry(registry: str, text: str) -> str:
    lower = registry.lower()
    if lower.partition(":")[0] in _DOCKER_HUB_NAMES and ":" in lower:
        _refuse(text, "registry", "Docker Hub is written without a port", "remove the port")
    return DOCKER_HUB if lower in _DOCKER_HUB_NAMES else lower


def _check_registry(registry: str, text: str) -> None:
    host, colon, port = registry.partition(":")
    if not host:
        _refuse(text, "registry", "the registry host is empty", _WRITE)
    if colon and (not _PORT.fullmatch(port) or int(port) > 65535):
        rule = f"the port {redact(port)} is not a number from 1 to 65535"
        _refuse(text, "registry", rule, "write host:port, for example registry.example:5000")
    if not all(_HOST_LABEL.fullmatch(label) for label in host.split(".")):
        rule = f"{redact(host)} is not a host name: labels of at most 63 letters, digits and inner hyphens"
        _refuse(text, "registry", rule, "write the host as in DNS")


def _check_repository(repository: str, text: str) -> None:
    if not repository:
        _refuse(text, "repository", "the repository is empty", _WRITE)
    for component in repository.split("/"):
        if not component:
            _refuse(text, "repository", "a component between slashes is empty", "remove the extra slash")
        if component != component.lower():
            rule = f"component {redact(component)} has upper-case letters"
            _refuse(text, "repository", rule, "repositories are lower-case; a registry needs a dot or a port")
        if not _COMPONENT.fullmatch(component):
            rule = f"component {redact(component)} is not letters and digits joined by '.', '_', '__' or '-'"
            _refuse(text, "repository", rule, _WRITE)


def is_tag(text: str) -> bool:
    """Whether the text is a tag by the distribution specification."""
    return _TAG.fullmatch(text) is not None


def _check_tag(tag: str, text: str) -> None:
    if not tag:
        _refuse(text, "tag", "the tag after ':' is empty", "name the tag or remove the colon")
    if len(tag) > 128:
        _refuse(text, "tag", "a tag has at most 128 characters", "use a shorter tag")
    if not _TAG.fullmatch(tag):
        rule = f"{redact(tag)} is not letters, digits, '_', '.' and '-', beginning with none of '.' and '-'"
        _refuse(text, "tag", rule, "a digest is written with '@', as in " + _EXAMPLE)
