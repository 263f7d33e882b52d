# SPDX-License-Identifier: Apache-2.0
"""Pinned means pinned: what the job checks at the registry before and after Enroot's import, and how it logs in."""

from __future__ import annotations

import base64
import json
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core import failures
from airflow_slurm_images.core.image_facts import static_facts
from tests.cluster.http_servers import RecordingServer, Reply, Request
from tests.cluster.misbehaving_registry import (
    CONFIG,
    LAYER,
    MANIFEST,
    REPOSITORY,
    BadReply,
    MisbehavingRegistry,
    descriptor,
    digest_of,
    document,
    errors,
)
from tests.unit.fake_slurm.login import LocalCluster, Outcome, client_facts, import_request, plain_image

INDEX = "application/vnd.oci.image.index.v1+json"
HERE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
OTHER = {"amd64": "arm64", "arm64": "amd64"}[HERE]
LAYERS = ["sha256:" + 64 * digit for digit in "12"]
PASSWORD = "not-to-be-seen-anywhere"

# What Enroot does with the cache of its import: it takes what is there and adds the rest.
IMPORT = """
for name in $(cat -- "${here}/layers"); do [[ -e "${ENROOT_CACHE_PATH}/${name}" ]] || echo new > "${ENROOT_CACHE_PATH}/${name}"; done
cp -- "${here}/image.sqsh" "${output}"
"""


class Registry(MisbehavingRegistry):
    """Serves documents by digest; wants a login where told to."""

    def __init__(self) -> None:
        super().__init__()
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


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        assert isinstance(server, Registry)
        yield server


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry) -> LocalCluster:
    insecure = [registry.address]
    made = LocalCluster(tmp_path, monkeypatch, verify_manifest=True, insecure_registries=insecure)
    plain_image(made)
    client_facts(made)
    made.slurm.enroot_does("import", IMPORT)
    return made


def run(
    cluster: LocalCluster, registry: Registry, digest: str, credentials: bytes | None = None, **more: Any
) -> Outcome:
    """The job for a pinned image of the registry."""
    (cluster.slurm.enroot / "layers").write_text("\n".join(getattr(registry, "layers", [])))
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


# -- documents


def test_the_manifest_of_a_single_image_is_compared_and_imported(cluster: LocalCluster, registry: Registry) -> None:
    settings = {"User": "app", "Labels": {"a": "b\n c"}, "Volumes": {"/data": {}}}
    digest = registry.image(created="2024-01-01T00:00:00Z", config=settings)
    done = run(cluster, registry, digest)
    assert done.status == 0, done.output
    assert (done.record.platform_digest, done.record.index_digest) == (digest, None)
    assert imported(cluster) == [digest]
    facts = static_facts({"oci-config": (done.directory / "output/static/oci-config").read_bytes()})
    assert (facts["user"], facts["labels"], facts["volumes"]) == ("app", {"a": "b\n c"}, ["/data"])
    assert facts["created"] == "2024-01-01T00:00:00Z"
    assert [layer["digest"] for layer in facts["layers"]] == LAYERS


def test_of_an_index_the_platforms_own_manifest_is_imported(cluster: LocalCluster, registry: Registry) -> None:
    foreign = registry.image(OTHER)
    attestation = {"vnd.docker.reference.type": "attestation-manifest"}
    own = registry.image(HERE)
    pinned = registry.index(
        entry(foreign, OTHER),
        entry("sha256:" + 64 * "a", HERE, annotations=attestation),
        entry("sha256:" + 64 * "b", HERE, "v9"),
        entry(own, HERE),
    )
    done = run(cluster, registry, pinned)
    assert done.status == 0, done.output
    assert (done.record.platform_digest, done.record.index_digest) == (own, pinned)
    assert imported(cluster) == [own]


@pytest.mark.parametrize("variant", ["v9", None])
def test_the_only_entry_that_can_be_meant_is_taken(
    cluster: LocalCluster, registry: Registry, variant: str | None
) -> None:
    own = registry.image(HERE)
    done = run(cluster, registry, registry.index(entry(own, HERE if variant else None, variant)))
    assert done.status == 0 and imported(cluster) == [own]


def test_an_index_without_the_platform_is_another_architecture(cluster: LocalCluster, registry: Registry) -> None:
    done = run(cluster, registry, registry.index(entry(registry.image(OTHER), OTHER)))
    assert f"it holds linux/{OTHER}" in refused(cluster, done, "architecture_mismatch")
    assert imported(cluster) == []


@pytest.mark.parametrize("in_index", [False, True])
def test_an_image_that_calls_itself_another_architectures_is_refused(
    cluster: LocalCluster, registry: Registry, in_index: bool
) -> None:
    digest = registry.image(OTHER)
    done = run(cluster, registry, registry.index(entry(digest, HERE)) if in_index else digest)
    assert f"for linux/{OTHER}, asked was linux/{HERE}" in refused(cluster, done, "architecture_mismatch")


def test_the_architecture_asked_for_counts(cluster: LocalCluster, registry: Registry) -> None:
    own, foreign = registry.image(HERE), registry.image(OTHER)
    digest = registry.index(entry(own, HERE), entry(foreign, OTHER))
    done = run(cluster, registry, digest, arch=OTHER)
    assert done.record.platform_digest == foreign, done.output


@pytest.mark.parametrize("place", ["pinned", "platform", "config"])
def test_other_bytes_than_the_digest_names_are_refused(cluster: LocalCluster, registry: Registry, place: str) -> None:
    own = registry.image(HERE)
    pinned = registry.index(entry(own, HERE))
    config = "sha256:" + next(name for name in registry.layers if name not in (layer[7:] for layer in LAYERS))
    path = {"pinned": f"manifests/{pinned}", "platform": f"manifests/{own}", "config": f"blobs/{config}"}[place]
    good = registry.now(f"/v2/{REPOSITORY}/{path}")
    registry.script(f"/v2/{REPOSITORY}/{path}", Reply(200, good.body + b" ", good.headers))
    done = run(cluster, registry, pinned)
    output = refused(cluster, done, "manifest_mismatch")
    assert registry.address in output and path.partition("/")[2] in output
    assert imported(cluster) == []


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"[]",
        document({"schemaVersion": 1, "fsLayers": []}),
        document({"manifests": [], "config": {}, "layers": []}),
        document(
            {"schemaVersion": 2, "config": {"mediaType": "application/vnd.cncf.helm.config.v1+json"}, "layers": []}
        ),
        document({"config": {"mediaType": CONFIG, "digest": "x"}, "layers": [{"mediaType": "application/spdx+json"}]}),
        document({"config": {"mediaType": CONFIG, "digest": "../../x"}, "layers": [{"mediaType": LAYER}]}),
    ],
)
def test_what_is_no_image_is_said_so(cluster: LocalCluster, registry: Registry, content: bytes) -> None:
    refused(cluster, run(cluster, registry, registry.add("manifests", content)), "no_image")


@pytest.mark.parametrize("fault", ["none", "unannounced", "dripping"])
def test_an_endless_manifest_is_given_up(cluster: LocalCluster, registry: Registry, fault: Any) -> None:
    digest = "sha256:" + 64 * "d"
    registry.script(f"/v2/{REPOSITORY}/manifests/{digest}", BadReply(200, b" " * 5_000_000, fault=fault))
    assert "4194304 bytes" in refused(cluster, run(cluster, registry, digest), "no_image")


def test_a_second_answer_with_other_layers_is_noticed(cluster: LocalCluster, registry: Registry) -> None:
    """Enroot asks for the manifest again and compares nothing."""
    digest = registry.image()
    registry.layers.append("e" * 64)
    done = run(cluster, registry, digest)
    assert "gave Enroot other layers" in refused(cluster, done, "manifest_mismatch")


def test_only_the_images_own_layers_come_from_the_layer_cache(cluster: LocalCluster, registry: Registry) -> None:
    cluster.hook.prepare("")
    cache = next((cluster.workspace / "users").iterdir()) / "cache"
    for name in (LAYERS[0][7:], "f" * 64):
        (cache / name).write_text("kept")
    done = run(cluster, registry, registry.image())
    assert done.status == 0, done.output
    assert (cache / LAYERS[0][7:]).read_text() == "kept"
    assert (cache / LAYERS[1][7:]).read_text() == "new\n"


def test_switched_off_nothing_is_asked_and_the_record_says_so(cluster: LocalCluster, registry: Registry) -> None:
    cluster.profile["verify_manifest"] = False
    cluster.hook = cluster.new_hook()
    digest = registry.image(OTHER)
    done = run(cluster, registry, digest)
    assert done.status == 0 and done.record.platform_digest is None
    assert registry.requests == [] and imported(cluster) == [digest]


# -- answers


@pytest.fixture
def waits(cluster: LocalCluster) -> Callable[[], list[str]]:
    """Waiting takes no time; gives the seconds that the job meant to wait."""
    file = cluster.slurm.enroot / "waits"
    cluster.slurm.tool("sleep", f'echo "$1" >> {file}')
    return lambda: file.read_text().split() if file.exists() else []


@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, "registry_auth"), (404, "registry_not_found"), (410, "import_failed"), (501, "registry_unavailable")],
)
def test_a_refusal_is_told_apart_and_not_repeated(
    cluster: LocalCluster, registry: Registry, status: int, reason: str
) -> None:
    digest = registry.image()
    registry.script(f"/v2/{REPOSITORY}/manifests/{digest}", errors(status, "NO"))
    output = refused(cluster, run(cluster, registry, digest), reason)
    assert f"registry {registry.address}, repository {REPOSITORY}, account (none)" in output
    assert len(registry.requests) == 1


@pytest.mark.parametrize(
    ("bad", "wait"), [(Reply(500), "2"), (Reply(429, headers=[("Retry-After", "7")]), "7"), (BadReply(fault="closed"), "2")]
)
def test_what_passes_by_itself_is_asked_again(
    cluster: LocalCluster, registry: Registry, waits: Callable[[], list[str]], bad: Reply, wait: str
) -> None:
    digest = registry.image()
    path = f"/v2/{REPOSITORY}/manifests/{digest}"
    registry.script(path, bad, registry.now(path))
    done = run(cluster, registry, digest)
    assert done.status == 0, done.output
    assert [request.path for request in registry.requests].count(path) == 2
    assert waits() == [wait]


@pytest.mark.parametrize(
    ("bad", "reason", "meant"),
    [
        (Reply(503), "registry_unavailable", ["2", "4"]),
        (Reply(429, headers=[("Retry-After", "3600")]), "rate_limited", []),
        (BadReply(200, b"{", fault="truncated"), "registry_unavailable", ["2", "4"]),
    ],
)
def test_what_does_not_pass_may_be_retried_later(
    cluster: LocalCluster,
    registry: Registry,
    waits: Callable[[], list[str]],
    bad: Reply,
    reason: str,
    meant: list[str],
) -> None:
    digest = registry.image()
    registry.script(f"/v2/{REPOSITORY}/manifests/{digest}", bad)
    done = run(cluster, registry, digest)
    refused(cluster, done, reason)
    explained = failures.explain(done.status, done.record.phase, {"slurm.out": done.output})
    assert explained.error.retryable and waits() == meant


def test_a_registry_that_is_down_is_named(
    cluster: LocalCluster, registry: Registry, waits: Callable[[], list[str]]
) -> None:
    with Registry() as down:
        assert isinstance(down, Registry)
        digest = down.image()
    done = run(cluster, down, digest, insecure=True)
    assert down.address in refused(cluster, done, "registry_unavailable") and waits()


# -- logins


def netrc(*hosts: str, login: str = "robot", password: str = PASSWORD) -> bytes:
    return "".join(f"machine {host} login {login} password {password}\n" for host in hosts).encode()


def basic(login: str = "robot", password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()


def left_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


class Tokens(RecordingServer):
    """A token service that gives everybody a token, and only the account a good one."""

    token = "good.token-_~+/="

    def reply(self, request: Request) -> Reply:
        good = request.authorization == basic()
        return Reply(200, document({"access_token": self.token if good else "worthless"}))


@pytest.fixture
def tokens(registry: Registry) -> Iterator[Tokens]:
    with Tokens() as server:
        assert isinstance(server, Tokens)
        registry.accepted = f"Bearer {Tokens.token}"
        # Capitals, no quotes, an own query, more rights than needed, another scheme first: all seen in the wild.
        registry.challenge = (
            f'Basic realm="old", BEARER Realm=http://localhost:{server.port}/token?tenant=t , '
            f'service="the service", scope="repository:{REPOSITORY}:pull,push"'
        )
        yield server


def test_a_basic_login_is_sent_once_it_is_asked_for(cluster: LocalCluster, registry: Registry) -> None:
    registry.challenge, registry.accepted = 'Basic realm="x"', basic()
    done = run(cluster, registry, registry.image(), netrc("127.0.0.1"))
    assert done.status == 0, done.output
    assert registry.requests[0].authorization is None
    assert {request.authorization for request in registry.requests[1:]} == {basic()}
    assert PASSWORD not in done.output and left_in(cluster.workspace) == []


def test_the_password_goes_to_the_token_service_and_the_token_to_the_registry(
    cluster: LocalCluster, registry: Registry, tokens: Tokens
) -> None:
    done = run(cluster, registry, registry.image(), netrc("127.0.0.1", "localhost"))
    assert done.status == 0, done.output
    (asked,) = tokens.requests
    scope = f"repository:{REPOSITORY}:pull"
    assert sorted(asked.query) == [("scope", scope), ("service", "the service"), ("tenant", "t")]
    assert asked.authorization == basic()
    assert set(registry.authorizations) == {registry.accepted}
    assert left_in(cluster.workspace) == [] and Tokens.token not in done.output


def test_without_a_line_for_the_token_service_the_account_is_named(
    cluster: LocalCluster, registry: Registry, tokens: Tokens
) -> None:
    done = run(cluster, registry, registry.image(), netrc("127.0.0.1"))
    output = refused(cluster, done, "registry_auth")
    assert "account robot" in output and tokens.authorizations == []


@pytest.mark.parametrize("credentials", [b"", None])
def test_a_wanted_login_that_nobody_gave_is_said_so(
    cluster: LocalCluster, registry: Registry, credentials: bytes | None
) -> None:
    registry.challenge, registry.accepted = 'Basic realm="x"', basic()
    done = run(cluster, registry, registry.image(), credentials)
    assert "account (none)" in refused(cluster, done, "registry_auth")
    assert imported(cluster) == []


def test_no_login_reaches_the_host_behind_a_redirect(cluster: LocalCluster, registry: Registry) -> None:
    registry.challenge, registry.accepted = 'Basic realm="x"', basic()
    digest = registry.image()
    config = next(name for name in registry.layers if name not in (layer[7:] for layer in LAYERS))
    path = f"/v2/{REPOSITORY}/blobs/sha256:{config}"
    with Storage(registry.now(path)) as storage:
        registry.script(path, Reply(307, headers=[("Location", f"http://127.0.0.1:{storage.port}/signed?key=k")]))
        done = run(cluster, registry, digest, netrc("127.0.0.1"))
        assert done.status == 0, done.output
        assert [request.target for request in storage.requests] == ["/signed?key=k"]
        assert storage.authorizations == []


class Storage(RecordingServer):
    """Where a registry keeps its blobs."""

    def __init__(self, answer: Reply) -> None:
        super().__init__()
        self._answer = answer

    def reply(self, request: Request) -> Reply:
        return self._answer


def test_plain_http_is_asked_only_where_it_is_allowed(cluster: LocalCluster, registry: Registry) -> None:
    cluster.profile["insecure_registries"] = []
    cluster.hook = cluster.new_hook()
    done = run(cluster, registry, registry.image())
    assert registry.requests == [] and done.status != 0
    done = run(cluster, registry, registry.image(), insecure=True)
    assert done.status == 0, done.output


def test_the_accounts_own_credentials_are_found_where_the_sites_configuration_says(
    cluster: LocalCluster, registry: Registry, tmp_path: Path
) -> None:
    """Their passwords may be commands; those of other hosts are not run."""
    registry.challenge, registry.accepted = 'Basic realm="x"', basic()
    own, ran = tmp_path / "own", tmp_path / "ran"
    own.mkdir()
    other = netrc("other.example", password=f"$(touch {ran})")
    (own / ".credentials").write_bytes(other + netrc("127.0.0.1", password=f"$(echo {PASSWORD})"))
    site = cluster.slurm.root / "etc/enroot"
    (site / "enroot.conf.d").mkdir(parents=True)
    (site / "enroot.conf").write_text("#ENROOT_CONFIG_PATH /nowhere\nENROOT_SQUASH_OPTIONS -x\n")
    (site / "enroot.conf.d/10-site.conf").write_text(f"ENROOT_CONFIG_PATH  ${{HOME:+{own}}}\n")
    done = run(cluster, registry, registry.image())
    assert done.status == 0, done.output
    assert not ran.exists() and left_in(cluster.workspace) == []


def test_a_restarted_job_does_not_go_on_with_another_login(cluster: LocalCluster, registry: Registry) -> None:
    request = import_request(image=f"{registry.address}/{REPOSITORY}@{registry.image()}")
    plan, job_id = cluster.submit(request, netrc("127.0.0.1"))
    (Path(plan.attempt_directory) / "enroot-config/.credentials").unlink()
    done = Outcome(plan, job_id, cluster.slurm.run(job_id, restarts=1))
    assert "used up" in refused(cluster, done, "import_failed") and registry.requests == []


def test_a_superseded_job_leaves_the_other_jobs_login_alone(cluster: LocalCluster, registry: Registry) -> None:
    request = import_request(image=f"{registry.address}/{REPOSITORY}@{registry.image()}")
    plan, job_id = cluster.submit(request, netrc("127.0.0.1"))
    directory = Path(plan.attempt_directory)
    (directory / "claim").mkdir()
    (directory / "claim/job_id").write_text("999 0\n")
    (directory / "cache").mkdir()
    assert failures.EXIT_CODES[cluster.slurm.run(job_id)].reason == "superseded"
    assert (directory / "enroot-config/.credentials").exists() and (directory / "cache").exists()


def test_the_staged_files_hold_no_secret_but_the_one(cluster: LocalCluster, registry: Registry) -> None:
    plan, _ = cluster.submit(import_request(), netrc("127.0.0.1"))
    (place,) = left_in(Path(plan.attempt_directory))
    assert place.name == ".credentials" and place.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in json.dumps(plan.model_dump(mode="json"))
