# SPDX-License-Identifier: Apache-2.0
"""What stands before curl while Enroot imports: of the verified manifest it gets the bytes of the digest, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import MANIFEST, REPOSITORY, BadReply, MisbehavingRegistry, errors
from tests.shell.fake_slurm.login import LocalCluster
from tests.shell.fake_slurm.registry import IMPORT, Registry, refused, run

# As in Enroot 4.1.2 (docker.sh, common.sh): the body goes to a descriptor, the status is all that curl prints.
ASK = """
set -euo pipefail
body="${{here}}/body"
exec {{out}}> "${{body}}"
status=0
options=(-o "/proc/self/fd/${{out}}" -w '%{{http_code}}' --retry 0 -SsL {options})
code=$(curl "${{options[@]}}" -- "{url}" 2> "${{here}}/errors") || status=$?
echo "${{code}} ${{status}}" > "${{here}}/outcome"
"""


class Asked:
    """An Enroot that asks one question, and what it got."""

    def __init__(self, cluster: LocalCluster, registry: Registry) -> None:
        self.cluster, self.registry = cluster, registry
        self.digest = registry.image()
        self.manifest = f"/v2/{REPOSITORY}/manifests/{self.digest}"
        self.good = registry.now(self.manifest)

    def ask(self, *later: Reply, path: str = "", options: str = "-H 'Accept: x/y'") -> None:
        """Run the job; the registry's answers are `later` once the job itself has the manifest."""
        self.registry.script(self.manifest, self.good, *later)
        url = f"http://{self.registry.address}{path or self.manifest}"
        self.cluster.slurm.enroot_does("import", ASK.format(options=options, url=url) + IMPORT)
        self.done = run(self.cluster, self.registry, self.digest)
        outcome = self._file("outcome").read_text() if self._file("outcome").exists() else ""
        self.code, _, self.status = outcome.strip().partition(" ")
        self.body = self._file("body").read_bytes()

    def _file(self, name: str) -> Path:
        return self.cluster.slurm.enroot / name

    @property
    def errors(self) -> str:
        return self._file("errors").read_text()


@pytest.fixture
def enroot(cluster: LocalCluster, registry: Registry) -> Asked:
    return Asked(cluster, registry)


def test_the_bytes_that_were_verified_pass(enroot: Asked) -> None:
    enroot.ask(enroot.good)
    assert (enroot.code, enroot.status, enroot.body) == ("200", "0", enroot.good.body)
    assert enroot.done.status == 0, enroot.done.output
    assert not (enroot.done.directory / "bin").exists()


@pytest.mark.parametrize("body", [b"{}", b"", b"x" * 5_000_000])
def test_other_bytes_do_not_and_the_job_says_so(cluster: LocalCluster, enroot: Asked, body: bytes) -> None:
    enroot.ask(Reply(200, body, [("Content-Type", MANIFEST)]))
    assert enroot.body == b"" and enroot.status != "0"
    if len(body) < 5_000_000:  # more than a manifest may have is cut off, and no other manifest
        output = refused(cluster, enroot.done, "manifest_mismatch")
        assert f"gave Enroot other bytes than {enroot.digest} names" in output


def test_bytes_behind_a_redirect_are_held_to_it_too(cluster: LocalCluster, enroot: Asked, registry: Registry) -> None:
    registry.script("/elsewhere", Reply(200, b"{}"))
    enroot.ask(Reply(307, headers=[("Location", "/elsewhere")]))
    assert enroot.body == b""
    refused(cluster, enroot.done, "manifest_mismatch")


@pytest.mark.parametrize("status", [401, 404, 503])
def test_an_error_keeps_its_status_and_gives_nothing_to_read(enroot: Asked, status: int) -> None:
    enroot.ask(errors(status, "MANIFEST_UNKNOWN"))
    assert (enroot.code, enroot.status, enroot.body) == (str(status), "0", b"")


def test_a_transfer_that_breaks_off_keeps_curls_status_and_words(enroot: Asked) -> None:
    enroot.ask(BadReply(200, b"{}", fault="truncated"))
    assert (enroot.status, enroot.body) == ("18", b"") and "curl: (18)" in enroot.errors


def test_a_try_that_failed_is_not_before_the_bytes_of_the_next(enroot: Asked) -> None:
    enroot.ask(errors(503, "UNAVAILABLE"), enroot.good, options="--retry 2")
    assert (enroot.code, enroot.body) == ("200", enroot.good.body)


def test_the_question_about_the_login_is_none_of_its_business(enroot: Asked) -> None:
    enroot.ask(errors(401, "UNAUTHORIZED"), options="-I")
    assert enroot.code == "401" and b"401 Unauthorized" in enroot.body
    enroot.ask(Reply(200, b"{}"), options="-G -v")
    assert (enroot.code, enroot.body) == ("200", b"{}") and "< HTTP/1.1 200" in enroot.errors


@pytest.mark.parametrize("path", ["/v2/team/manifests/blobs/x", f"/v2/{REPOSITORY}/manifests/sha256:1"])
def test_everything_else_is_curls_own_affair(enroot: Asked, registry: MisbehavingRegistry, path: str) -> None:
    registry.script(path, Reply(200, b"a blob"))
    enroot.ask(path=path)
    assert (enroot.code, enroot.status, enroot.body) == ("200", "0", b"a blob")


def test_where_scratch_runs_no_programs_the_guards_stand_in_the_attempt(cluster: LocalCluster, enroot: Asked) -> None:
    cluster.slurm.tool("chmod", 'case "$*" in */asi-*/bin/*) exit 0 ;; esac\nexec /bin/chmod "$@"')
    enroot.ask(Reply(200, b"{}"))
    assert enroot.body == b""
    refused(cluster, enroot.done, "manifest_mismatch")


def test_where_no_programs_run_at_all_nothing_is_imported(cluster: LocalCluster, enroot: Asked) -> None:
    cluster.slurm.tool("chmod", 'case "$*" in */bin/mkdir) exit 0 ;; esac\nexec /bin/chmod "$@"')
    cluster.slurm.enroot_does("import", IMPORT)
    done = run(cluster, enroot.registry, enroot.digest)
    assert "no program can run below" in refused(cluster, done, "no_scratch")
    assert cluster.slurm.enroot_calls("import") == []
