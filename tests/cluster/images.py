"""The test images: built once, kept between runs, pushed to a box's registry.

The cache is $ASI_TEST_CACHE, by default ~/.cache/airflow-slurm-images-tests. An entry's name ends in a hash
of what made it; it is built beside its place and renamed, so an entry that is there is whole. It is safe to
delete.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import image_recipes, oci, wheels

NAMES = ("client", "serving", "nopython", "static")


def default_cache() -> Path:
    return Path(os.environ.get("ASI_TEST_CACHE") or Path.home() / ".cache" / "airflow-slurm-images-tests")


def build_all(cache: Path | None = None) -> dict[str, Path]:
    """The OCI layouts by image name; builds what is missing."""
    cache = cache or default_cache()
    debian = cached(cache, "debian", _debian_recipe(), image_recipes.build_debian)
    build = partial(image_recipes.build_images, debian=debian)
    images = cached(cache, "images", _images_recipe() + debian.name, build)
    return {name: images / name for name in NAMES}


def cached(cache: Path, name: str, recipe: str, build: Callable[[Path], None]) -> Path:
    """The directory `build` fills, made at most once for one recipe, whoever else asks for it meanwhile."""
    entry = cache / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    if entry.is_dir():
        return entry
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if entry.is_dir():
            return entry
        draft = Path(tempfile.mkdtemp(prefix=f"{name}-draft-", dir=cache))
        try:
            build(draft)
            draft.rename(entry)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return entry


def push_image(registry: str, name: str, repository: str, tag: str, cache: Path | None = None) -> str:
    """Push one of the test images; returns the digest it has in the registry."""
    return push_layout(registry, build_all(cache)[name], repository, tag)


def push_layout(registry: str, layout: Path, repository: str, tag: str) -> str:
    """Push any OCI layout.

    As Docker schema 2: this registry (2.8) answers 404 for an OCI manifest to a client that names no media
    types in Accept, and Enroot's first request is such a one.
    """
    with tempfile.NamedTemporaryFile("r") as digest:
        argv = ["skopeo", "--insecure-policy", "copy", "--quiet", "--format=v2s2", "--dest-tls-verify=false"]
        subprocess.run(
            [
                *argv,
                f"--digestfile={digest.name}",
                f"oci:{layout}",
                f"docker://{registry}/{repository}:{tag}",
            ],
            check=True,
        )
        return digest.read().strip()


def _debian_recipe() -> str:
    functions = (image_recipes.build_debian, image_recipes.bootstrap, image_recipes.copy_members)
    sources = "".join(inspect.getsource(function) for function in functions)
    return f"{sources}{image_recipes.DEBIAN_PACKAGES}{image_recipes.UNWANTED.pattern}"


def _images_recipe() -> str:
    modules = "".join(inspect.getsource(module) for module in (image_recipes, oci, wheels))
    return modules + image_recipes.pip_wheel().name
