# SPDX-License-Identifier: Apache-2.0
"""Enroot alone, as a user would type it: the floor under imports and starts."""

from __future__ import annotations

import shutil

from benchmarks.timed_box import TimedBox, settle


class PlainEnroot:
    """Its directories, which keep the layers from one import to the next, and one file."""

    def __init__(self, timed: TimedBox) -> None:
        self._timed = timed
        self._home = timed.directory("plain")
        for name in ("cache", "tmp", "run", "data"):
            (self._home / name).mkdir()
            shutil.chown(self._home / name, timed.box.user, timed.box.user)
        self.file = self._home / "image.sqsh"

    def import_image(self, image: str, squash_options: str) -> float:
        """Seconds of `enroot import`."""
        self.file.unlink(missing_ok=True)
        registry, _, rest = image.partition("/")
        repository, _, digest = rest.partition("@")
        uri = f"docker://{registry}#{repository.partition(':')[0]}:{digest}"
        settle()
        return self._run("import", "-o", str(self.file), uri, ENROOT_SQUASH_OPTIONS=squash_options)

    def start(self, *command: str) -> float:
        """Seconds of a command in a container started directly from the file."""
        return self._run("start", str(self.file), *command, NVIDIA_VISIBLE_DEVICES="void")

    def _run(self, *arguments: str, **environment: str) -> float:
        paths = {f"ENROOT_{name.upper()}_PATH": str(self._home / name) for name in ("cache", "data", "run")}
        paths["ENROOT_RUNTIME_PATH"] = paths.pop("ENROOT_RUN_PATH")
        paths["ENROOT_TEMP_PATH"] = str(self._home / "tmp")
        return self._timed.run("enroot", *arguments, ENROOT_ALLOW_HTTP="yes", **paths, **environment)

    def remove(self) -> None:
        shutil.rmtree(self._home)
