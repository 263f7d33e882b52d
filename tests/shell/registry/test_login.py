# SPDX-License-Identifier: Apache-2.0
"""How the job logs in at a registry, and where its secrets do not go."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_slurm_images.core import failures
from airflow_slurm_images.core.challenge import parse_challenges, select
from tests.cluster.http_servers import RecordingServer, Reply, Request
from tests.cluster.misbehaving_registry import REPOSITORY, document, errors
from tests.shell.fake_slurm.login import LocalCluster, Outcome, import_request
from tests.shell.fake_slurm.registry import LAYERS, Registry, imported, refused, run

from .functions import call

PASSWORD = "not-to-be-seen-anywhere"


def netrc(*hosts: str, login: str = "robot", password: str = PASSWORD) -> bytes:
    return "".join(f"machine {host} login {login} password {password}\n" for host in hosts).encode()


def basic(login: str = "robot", password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()


def left_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


class Tokens(RecordingServer):
    """A token service that gives everybody a token, and only the account a good one."""

    token = "good.token-_~+/="

    def __init__(self) -> None:
        super().__init__()
        self.more: dict[str, str] = {}

    def reply(self, request: Request) -> Reply:
        good = request.authorization == basic()
        return Reply(200, document({"access_token": self.token if good else "worthless"} | self.more))


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


@pytest.mark.parametrize(
    "challenge",
    [
        'Bearer realm="{}"',
        'Bearer service="a, b=c",realm="{}",scope="repository:x/y:push,pull registry:catalog:*"',
        'bearer error="no realm=this, none", realm="{}"',
        'Negotiate abc==, Bearer service=plain , realm={} , Basic realm="other",service="not this"',
        'Basic realm="a bearer realm=b, none", charset="UTF-8", BEARER REALM="{}",service="s"',
        'Bearer error="none", Bearer realm="{}",service="s"',
    ],
)
def test_a_challenge_is_read_as_the_worker_reads_it(tmp_path: Path, challenge: str) -> None:
    header = challenge.format("https://tokens.example/token?a=b")
    found = call("asi::challenge", headers=["Date: today", f"www-AUTHENTICATE: {header}"], directory=tmp_path)
    scheme, _, parameters = found.partition(" ")
    chosen = select(parse_challenges([header]))
    assert chosen is not None and chosen.scheme == scheme == "bearer"
    for name in ("realm", "service", "scope"):
        assert call("asi::parameter", name, parameters) == chosen.params.get(name, "")


def test_a_bearer_challenge_that_names_no_token_service_leaves_the_basic_one(
    cluster: LocalCluster, registry: Registry
) -> None:
    registry.challenge, registry.accepted = 'Bearer service="s", Basic realm="x"', basic()
    done = run(cluster, registry, registry.image(), netrc("127.0.0.1"))
    assert done.status == 0, done.output


def test_the_token_services_host_may_be_written_in_capitals(
    cluster: LocalCluster, registry: Registry, tokens: Tokens
) -> None:
    registry.challenge = f'Bearer realm="http://LOCALHOST:{tokens.port}/token"'
    done = run(cluster, registry, registry.image(), netrc("127.0.0.1", "localhost"))
    assert done.status == 0, done.output


def test_an_empty_token_leaves_the_other_one(cluster: LocalCluster, registry: Registry, tokens: Tokens) -> None:
    tokens.more = {"token": ""}
    done = run(cluster, registry, registry.image(), netrc("127.0.0.1", "localhost"))
    assert done.status == 0, done.output


def test_a_token_that_expires_on_the_way_is_renewed(cluster: LocalCluster, registry: Registry, tokens: Tokens) -> None:
    digest = registry.image()
    config = next(name for name in registry.layers if name not in (layer[7:] for layer in LAYERS))
    path = f"/v2/{REPOSITORY}/blobs/sha256:{config}"
    expired = errors(401, "UNAUTHORIZED")
    expired.headers.append(("WWW-Authenticate", str(registry.challenge)))
    registry.script(path, expired, registry.now(path))
    done = run(cluster, registry, digest, netrc("127.0.0.1", "localhost"))
    assert done.status == 0, done.output
    assert len(tokens.requests) == 2 and left_in(cluster.workspace) == []


def test_a_login_that_another_host_of_the_token_service_refuses_is_a_refused_login(
    cluster: LocalCluster, registry: Registry
) -> None:
    """As nvcr.io, which hands on to authn.nvidia.com; once, as accounts get locked."""
    with Storage(errors(401, "UNAUTHORIZED")) as behind:
        location = f"http://127.0.0.1:{behind.port}/token?from=there"
        with Storage(Reply(307, headers=[("Location", location)])) as service:
            registry.challenge, registry.accepted = f'Bearer realm="http://localhost:{service.port}/token"', "none"
            done = run(cluster, registry, registry.image(), netrc("127.0.0.1", "localhost"))
            assert "account robot" in refused(cluster, done, "registry_auth")
            assert behind.authorizations == [basic()] and len(service.requests) == 1


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
    assert "restarted" in refused(cluster, done, "login_used_up") and registry.requests == []
    assert failures.EXIT_CODES[done.status].retryable


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
