# SPDX-License-Identifier: Apache-2.0
"""A registry for jobs of the fake cluster: images and indexes of our own making, logins, and faults to order."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from airflow_slurm_images.core import failures
from tests.cluster.http_servers import Reply, Request
from tests.cluster.misbehaving_registry import (
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    REPOSITORY,
    MisbehavingRegistry,
    descriptor,
    digest_of,
    document,
    errors,
)

from .login import LocalCluster, Outcome, import_request

HERE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
OTHER = {"amd64": "arm64", "arm64": "amd64"}[HERE]
LAYERS = ["sha256:" + 64 * digit for digit in "12"]

# What Enroot does with the cache of its import: it takes what is there and adds the rest.
IMPORT = """
while read -r name; do
    [[ -e "${ENROOT_CACHE_PATH}/${name}" ]] || echo new > "${ENROOT_CACHE_PATH}/${name}"
done < "${here}/layers"
cp -- "${here}/image.sqsh" "${output}"
"""


class Registry(MisbehavingRegistry):
    """Serves documents by digest; wants a login where told to."""

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        super().__init__(tls)
        self.challenge: str | None = None
        self.accepted: str | None = None

    def add(self, path: str, content: bytes, media_type: str = MANIFEST) -> str:
        digest = digest_of(content)
        self.script(f"/v2/{REPOSITORY}/{path}/{digest}", Reply(200, content, [("Content-Type", media_type)]))
        return digest

    def image(self, architecture: str = HERE, **settings: Any) -> str:  # type: ignore[override]
        """Add an image of two layers; returns the digest of its manifest."""
        config = document({"architecture": architecture, "os": "linux", **settings})
        self.add("blobs", config)
        layers = [{"mediaType": LAYER, "digest": digest, "size": 7} for digest in LAYERS]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, config), "layers": layers}
        self.layers = sorted([digest_of(config)[7:], *(digest[7:] for digest in LAYERS)])
        return self.add("manifests", document(manifest))

    def index(self, *entries: dict[str, Any], media_type: str = INDEX) -> str:
        content = {"schemaVersion": 2, "mediaType": media_type, "manifests": list(entries)}
        return self.add("manifests", document(content), media_type)

    def now(self, path: str) -> Reply:
        """What the registry answers for a path at present."""
        return self._script[path][0]

    def reply(self, request: Request) -> Reply:
        if self.challenge is not None and request.authorization != self.accepted:
            reply = errors(401, "UNAUTHORIZED")
            reply.headers.append(("WWW-Authenticate", self.challenge))
            return reply
        return super().reply(request)


def entry(digest: str, architecture: str | None, variant: str | None = None, **more: Any) -> dict[str, Any]:
    stated = {"os": "linux", "architecture": architecture, **({"variant": variant} if variant else {})}
    return {
        "mediaType": MANIFEST,
        "digest": digest,
        "size": 9,
        **({"platform": stated} if architecture else {}),
        **more,
    }


def run(
    cluster: LocalCluster, registry: Registry, digest: str, credentials: bytes | None = None, **more: Any
) -> Outcome:
    """The job for a pinned image of the registry."""
    (cluster.slurm.enroot / "layers").write_text("".join(f"{name}\n" for name in getattr(registry, "layers", [])))
    request = import_request(image=f"{registry.address}/{REPOSITORY}:1.0@{digest}", **more)
    plan, job_id = cluster.submit(request, credentials)
    return Outcome(plan, job_id, cluster.slurm.run(job_id))


def imported(cluster: LocalCluster) -> list[str]:
    """Digests that Enroot was told to import."""
    return ["sha256:" + call.rpartition(":sha256:")[2] for call in cluster.slurm.enroot_calls("import")]


def refused(cluster: LocalCluster, done: Outcome, reason: str) -> str:
    """Check that nothing was imported, and why; returns the output."""
    logs = {"slurm.out": done.output}
    assert failures.explain(done.status, done.record.phase, logs).reason == reason, done.output
    assert list((cluster.workspace / "store/sha256").iterdir()) == [] and done.record.sqsh is None
    return done.output
