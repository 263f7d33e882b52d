# SPDX-License-Identifier: Apache-2.0
"""Private registries from the connection to the published image, and where the password is not meanwhile and after."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm_images.core.errors import RegistryAuthError, RegistryTlsError
from airflow_slurm_images.hooks.registry import OciRegistryHook
from airflow_slurm_images.hooks.registry_login import import_login
from tests.enroot_contract.images import OCI_MANIFEST, base_tree, build
from tests.enroot_contract.registries import OddRegistry, odd_registry

from . import images as images_module
from . import procfs
from .box import Box
from .polling import wait_until
from .registries import Registries, Server
from .remains import private_home, user_processes
from .secret_hunt import Hunt
from .space import kill
from .works import Task, as_operator, import_task, wrapped

CONN_ID = "registry"
Connect = Callable[..., OciRegistryHook]
# A request takes milliseconds: before each one, wait until somebody has looked at what it was started with.
SEEN_FIRST = """\
mark="$(mktemp {}/XXXXXX)"
for _ in {{1..1000}}; do [[ -e "${{mark}}" ]] || break; sleep 0.02; done
exec {{real}} "$@"
"""


@pytest.fixture(scope="module")
def registries(
    tmp_path_factory: pytest.TempPathFactory, image_layouts: dict[str, Path]
) -> Iterator[tuple[Registries, str]]:
    """The registry in four set-ups, and the digest of `team/tool` in it."""
    with Registries(tmp_path_factory.mktemp("registries")) as registries:
        layout = image_layouts["nopython"]
        digest = images_module.push_layout(registries.open.address, layout, "team/tool", "1.0")
        yield registries, digest


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Make the Airflow connection to a registry; gives its hook."""
    monkeypatch.setenv("NO_PROXY", "*")

    def make(server: Server | str, login: str | None, password: str | None, **extra: Any) -> OciRegistryHook:
        address = server if isinstance(server, str) else server.address
        fields = {"conn_type": "oci_registry", "host": address, "extra": {"insecure": True, **extra}}
        account = {"login": login, "password": password} if login else {}
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(fields | account))
        return OciRegistryHook(CONN_ID)

    return make


def private_task(box: Box, hook: OciRegistryHook, image: str, name: str = "tool", **options: Any) -> Task:
    """What OciImportOperator makes of `registry_conn_id`."""
    task = import_task(box, image, name, insecure=True, **options)
    task.work = replace(task.work, credentials=partial(import_login, hook, image))
    return task


@pytest.fixture
def hunt(registries: tuple[Registries, str]) -> Hunt:
    return Hunt(registries[0].login, registries[0].password)


def places(box: Box) -> list[Path]:
    """Everything that outlives a job: workspace, spool and logs of the cluster, the node's temporary files."""
    return [box.root, *Path(tempfile.gettempdir()).glob("asi-*.??????")]


def texts(box: Box, task: Task) -> bytes:
    """The task log, and what Slurm tells of the job and its script."""
    job = str(task.handle.job_id)
    shown = as_operator(box, "scontrol", "show", "job", "-d", job)
    script = box.as_root(["scontrol", "write", "batch_script", job, "-"]).stdout
    return "\n".join([*task.lines, shown, script, task.handle.model_dump_json()]).encode()


# -- whole runs


@pytest.mark.parametrize("setup", ["basic", "bearer"])
def test_an_image_of_a_private_registry_is_published_and_the_password_is_nowhere(
    box_plain: Box,
    registries: tuple[Registries, str],
    connect: Connect,
    hunt: Hunt,
    setup: str,
) -> None:
    servers, digest = registries
    server: Server = getattr(servers, setup)
    hook = connect(server, servers.login, servers.password)
    image = f"{server.address}/team/tool:1.0@{digest}"
    asked = Path(tempfile.mkdtemp(prefix="asked-", dir=box_plain.root))
    asked.chmod(0o777)
    task = private_task(
        box_plain, hook, image, f"private-{setup}", **wrapped(box_plain, "curl", SEEN_FIRST.format(asked))
    )
    task.begin()
    credentials = task.directory / "enroot-config" / ".credentials"
    over = threading.Event()
    modes: set[int] = set()
    sampler = threading.Thread(target=_sample_until, args=(over, hunt, box_plain, asked, credentials, modes))
    sampler.start()
    try:
        task.wait()
    finally:
        over.set()
        sampler.join()
    record = task.finish()
    assert record.source is not None
    assert record.source.oci_digest == record.source.platform_digest == digest
    assert record.source.manifest_verified and record.source.index_digest is None
    assert "curl" in hunt.sampled and not hunt.seen
    assert modes == {0o600}
    assert hunt.files(*places(box_plain)) == []
    assert not hunt.is_in(texts(box_plain, task)) and not hunt.is_in(record.model_dump_json().encode())
    assert not credentials.parent.exists()


def _sample_until(over: threading.Event, hunt: Hunt, box: Box, asked: Path, credentials: Path, modes: set[int]) -> None:
    """While a request waits, look at the processes and at the login's file, which has to be there then."""
    while not over.wait(0.02):
        waiting = list(asked.iterdir())
        hunt.sample(box.space.pids())
        if waiting:
            modes.add(credentials.stat().st_mode & 0o777 if credentials.exists() else 0)
        for path in waiting:
            path.unlink()


@pytest.mark.parametrize("setup", ["basic", "bearer"])
def test_a_wrong_login_ends_soon_and_says_who_was_refused_where(
    box_plain: Box, registries: tuple[Registries, str], connect: Connect, setup: str
) -> None:
    servers, digest = registries
    server: Server = getattr(servers, setup)
    wrong = "wrong-but-secret-all-the-same"
    hook = connect(server, servers.login, wrong)
    task = private_task(box_plain, hook, f"{server.address}/team/tool@{digest}", "never")
    with pytest.raises(RegistryAuthError) as caught:
        task.run()
    text = str(caught.value)
    for part in (server.address, "team/tool", servers.login, "login and password", str(task.directory)):
        assert part in text
    assert task.completion()["elapsed_seconds"] < 30
    assert not (box_plain.workspace / "aliases" / "never.sqsh").exists()
    assert Hunt(servers.login, wrong).files(*places(box_plain)) == []


def test_without_a_connection_the_users_own_credentials_are_used_untouched(
    box_plain: Box, registries: tuple[Registries, str]
) -> None:
    servers, digest = registries
    # A password that Enroot would evaluate is the user's own affair.
    lines = "".join(
        f"machine {host} login {servers.login} password $(echo {servers.password})\n"
        for host in ("127.0.0.1", "localhost")
    )
    with private_home(box_plain, {".config/enroot/.credentials": lines}) as home:
        own = home / ".config" / "enroot" / ".credentials"
        before = own.read_bytes(), own.stat().st_mtime_ns
        for number, server in enumerate((servers.basic, servers.bearer)):
            image = f"{server.address}/team/tool@{digest}"
            record = import_task(box_plain, image, f"own-{number}", insecure=True).run()
            assert record.source is not None and record.source.manifest_verified
        assert (own.read_bytes(), own.stat().st_mtime_ns) == before
        hunt = Hunt(servers.login, servers.password)
        assert hunt.files(box_plain.workspace, *Path(tempfile.gettempdir()).glob("asi-*.??????")) == []


def test_a_private_ca_is_trusted_when_the_profile_names_it(
    box_plain: Box, registries: tuple[Registries, str], tmp_path: Path
) -> None:
    servers, digest = registries
    image = f"{servers.tls.address}/team/tool@{digest}"
    bundle = box_plain.root / "ca.pem"
    bundle.write_bytes(servers.ca_file.read_bytes())
    bundle.chmod(0o644)
    with pytest.raises(RegistryTlsError, match="CURL_CA_BUNDLE"):
        import_task(box_plain, image, "tls").run()
    record = import_task(box_plain, image, "tls", environment={"CURL_CA_BUNDLE": str(bundle)}).run()
    assert record.source is not None and record.source.manifest_verified


# -- killed runs


@pytest.fixture
def held() -> Iterator[tuple[OddRegistry, str]]:
    """A registry with a basic login that gives Enroot no blob before the test is over, and a digest in it."""
    over = threading.Event()
    with odd_registry() as odd:
        image = build([base_tree()])
        odd.add("team/tool", image, image.digest, media_type=OCI_MANIFEST)
        odd.basic = ("robot", "correct-horse-battery")

        def wait() -> None:
            asked = [request for request in odd.asked if "/blobs/" in request.path]
            if "airflow" not in asked[-1].headers.get("User-Agent", ""):
                over.wait(60)

        odd.before_blob = wait
        yield odd, image.digest
        over.set()


def _importing(box: Box, odd: OddRegistry, digest: str, connect: Connect, name: str) -> tuple[Task, Hunt]:
    """A job that Enroot's import has logged in for and that waits for a blob."""
    assert odd.basic is not None
    hook = connect(odd.address, *odd.basic)
    task = private_task(box, hook, f"{odd.address}/team/tool@{digest}", name)
    task.begin()
    assert wait_until(lambda: odd.busy > 0, 60)
    hunt = Hunt(*odd.basic)
    where = {path.relative_to(task.directory).parts[0] for path in hunt.files(task.directory)}
    assert where == {"enroot-config", "cache"}
    hunt.sample(box.space.pids())
    assert not hunt.seen
    return task, hunt


def test_a_cancelled_job_takes_its_secrets_along(
    box_plain: Box, held: tuple[OddRegistry, str], connect: Connect
) -> None:
    task, hunt = _importing(box_plain, *held, connect, "cancelled")
    task.lifecycle.cancel(task.handle)
    assert wait_until((task.directory / "completion.json").exists, 60)
    assert hunt.files(*places(box_plain)) == [] and not hunt.is_in(texts(box_plain, task))


def test_a_batch_shell_killed_alone_leaves_no_secret(
    box_plain: Box, held: tuple[OddRegistry, str], connect: Connect
) -> None:
    task, hunt = _importing(box_plain, *held, connect, "shell-killed")
    script = f"job{task.handle.job_id:05d}/slurm_script"
    shells = [pid for pid in box_plain.space.pids() if procfs.mentions(pid, script)]
    (step,) = {parent for pid in shells if procfs.name_of(parent := procfs.parent_of(pid) or 0) == "slurmstepd"}
    kill([pid for pid in shells if procfs.parent_of(pid) == step])
    assert wait_until(lambda: hunt.files(*places(box_plain)) == [], 15)


def test_what_a_dead_node_left_is_removed_at_the_next_contact(
    box_plain: Box, held: tuple[OddRegistry, str], connect: Connect
) -> None:
    task, hunt = _importing(box_plain, *held, connect, "node-died")
    box_plain.stop_slurmd(end_steps=True)
    try:
        assert wait_until(lambda: user_processes(box_plain) == [], 20)
        left = hunt.files(task.directory)
        assert left, "the test shows nothing if the job cleaned up"
        _age(task.directory / "job_id")
        task.hook.prepare(task.work.run_key)
        assert hunt.files(task.directory) == left, "the queue still has the job"
        as_operator(box_plain, "scontrol", "update", f"NodeName={box_plain.node}", "State=DOWN", "Reason=test")
        assert wait_until(lambda: task.handle.job_id not in [job.job_id for job in box_plain.active_jobs()], 30)
        task.hook.prepare(task.work.run_key)
    finally:
        box_plain.start_slurmd()
        box_plain.as_root(["scontrol", "update", f"NodeName={box_plain.node}", "State=RESUME"])
    assert hunt.files(*places(box_plain)) == []


def _age(path: Path) -> None:
    then = path.stat().st_mtime - 600
    os.utime(path, (then, then))


def test_a_pending_job_that_is_cancelled_leaves_no_secret(
    box_plain: Box, registries: tuple[Registries, str], connect: Connect, hunt: Hunt
) -> None:
    servers, digest = registries
    hook = connect(servers.basic, servers.login, servers.password)
    as_operator(box_plain, "scontrol", "update", f"PartitionName={box_plain.partition}", "State=DOWN")
    try:
        task = private_task(box_plain, hook, f"{servers.basic.address}/team/tool@{digest}", "pending")
        handle = task.begin()
        assert [path.name for path in hunt.files(task.directory)] == [".credentials"]
        task.hook.cancel(handle.job_id, handle.job_name, attempt=handle.attempt)
        assert hunt.files(*places(box_plain)) == []
    finally:
        as_operator(box_plain, "scontrol", "update", f"PartitionName={box_plain.partition}", "State=UP")
