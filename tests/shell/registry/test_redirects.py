# SPDX-License-Identifier: Apache-2.0
"""Where a registry's redirects lead the job, and what counts as the same host."""

from __future__ import annotations

import httpx
import pytest

from tests.cluster.http_servers import Reply
from tests.cluster.misbehaving_registry import REPOSITORY
from tests.shell.fake_slurm.login import LocalCluster
from tests.shell.fake_slurm.registry import Registry, imported, refused, run

from .functions import call
from .test_login import basic, netrc


@pytest.mark.parametrize("base", ["https://r.example/v2/a/manifests/x?y=/z", "https://r.example:5000", "http://r/t?u"])
@pytest.mark.parametrize(
    "location",
    ["https://b.example/c?d=e", "//b.example/c", "/c/d?e=f", "c", "c/d?e=https://f/", "?g=h", "http://my_b.example/c"],
)
def test_a_location_is_taken_as_the_worker_takes_it(base: str, location: str) -> None:
    taken, expected = httpx.URL(call("asi::target", base, location)), httpx.URL(base).join(location)
    assert (taken.scheme, taken.netloc) == (expected.scheme, expected.netloc)
    assert taken.raw_path.lstrip(b"/") == expected.raw_path.lstrip(b"/")  # no path is "/"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://R.Example/a", "https://r.example:443/b", True),
        ("http://r.example:80", "http://r.example?q", True),
        ("https://r.example", "http://r.example", False),
        ("https://r.example", "https://r.example:80", False),
        ("https://r.example:5000/", "https://r.example:5001/", False),
        ("https://r.example@b.example/", "https://r.example/", False),
    ],
)
def test_spellings_of_one_host_are_one(one: str, other: str, same: bool) -> None:
    assert (call("asi::origin", one) == call("asi::origin", other)) is same


def test_a_redirect_within_the_registry_keeps_the_login(cluster: LocalCluster, registry: Registry) -> None:
    registry.challenge, registry.accepted = 'Basic realm="x"', basic()
    digest = registry.image()
    path = f"/v2/{REPOSITORY}/manifests/{digest}"
    registry.script(f"/v2/{REPOSITORY}/manifests/other", registry.now(path))
    registry.script(path, Reply(307, headers=[("Location", "other?x=y")]))
    done = run(cluster, registry, digest, netrc("127.0.0.1"))
    assert done.status == 0 and imported(cluster) == [digest], done.output


@pytest.mark.parametrize("location", ["", "file:///etc/passwd", "http://u:p@127.0.0.1/"])
def test_a_redirect_to_nowhere_ends_the_job(cluster: LocalCluster, registry: Registry, location: str) -> None:
    digest = registry.image()
    registry.script(f"/v2/{REPOSITORY}/manifests/{digest}", Reply(307, headers=[("Location", location)]))
    assert "a place that is not followed" in refused(cluster, run(cluster, registry, digest), "import_failed")


def test_redirects_without_end_end_the_job(cluster: LocalCluster, registry: Registry) -> None:
    digest = registry.image()
    path = f"/v2/{REPOSITORY}/manifests/{digest}"
    registry.script(path, Reply(302, headers=[("Location", path)]))
    assert "redirects without end" in refused(cluster, run(cluster, registry, digest), "import_failed")
    assert len(registry.requests) == 6
