"""Image references, seen in what a registry is asked for."""

from __future__ import annotations

import pytest

from .registries import OddRegistry
from .runner import Enroot

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("reference", "asked"),
    [
        (f"#team/tool:sha256:{HEX}", f"team/tool/manifests/sha256:{HEX}"),
        (f"#a/b/c-d.e_f:sha256:{HEX}", f"a/b/c-d.e_f/manifests/sha256:{HEX}"),
        ("#team/tool:1.2-rc_3", "team/tool/manifests/1.2-rc_3"),
        ("#team/tool", "team/tool/manifests/latest"),
        ("#tool:1", "tool/manifests/1"),
        (f"#team/tool@sha256:{HEX}", f"team/tool/manifests/sha256:{HEX}"),
        (f"#team/tool:1@sha256:{HEX}", f"team/tool/manifests/sha256:{HEX}"),
        ("/team/tool:1", "team/tool/manifests/1"),
        (f"/team/tool:1@sha256:{HEX}", f"team/tool/manifests/sha256:{HEX}"),
        (f"/team/tool@sha256:{HEX}", f"team/tool/manifests/sha256:{HEX}"),
    ],
)
@pytest.mark.parametrize("user", ["", "somebody@"])
def test_repository_and_tag(enroot: Enroot, odd: OddRegistry, reference: str, asked: str, user: str) -> None:
    result = enroot.import_(f"docker://{user}{odd.address}{reference}")
    assert result.status == 1
    error = f"[ERROR] URL http://{odd.address}/v2/{asked} returned error code: 404 Not Found"
    assert result.last_error_line == error
    assert [request.path for request in odd.asked] == [f"/v2/{asked}"]


@pytest.mark.parametrize(
    ("uri", "asked"),
    [
        ("docker://ubuntu", "registry-1.docker.io/v2/library/ubuntu/manifests/latest"),
        (f"docker://ubuntu@sha256:{HEX}", f"registry-1.docker.io/v2/library/ubuntu/manifests/sha256:{HEX}"),
        ("docker://team/tool:1", "registry-1.docker.io/v2/team/tool/manifests/1"),
        (f"docker://team/tool:1@sha256:{HEX}", f"registry-1.docker.io/v2/team/tool/manifests/sha256:{HEX}"),
        ("docker://registry.example/team/tool:1", "registry.example/v2/team/tool/manifests/1"),
        (
            f"docker://registry-1.docker.io#library/ubuntu:sha256:{HEX}",
            f"registry-1.docker.io/v2/library/ubuntu/manifests/sha256:{HEX}",
        ),
    ],
)
def test_the_registry_s_host(enroot: Enroot, odd: OddRegistry, uri: str, asked: str) -> None:
    """A proxy sees where a request goes without it leaving the machine."""
    enroot.import_(uri, env={"http_proxy": f"http://{odd.address}"})
    assert [request.path for request in odd.asked] == [f"http://{asked}"]


@pytest.mark.parametrize(
    "uri",
    ["docker://", "docker://host:1#Team/tool:1", "docker://host:1#team/tool:a b", "docker://host:1#a#b:1"],
)
def test_what_is_no_reference_is_refused_unasked(enroot: Enroot, uri: str) -> None:
    result = enroot.import_(uri)
    assert (result.status, result.err) == (1, f"[ERROR] Invalid image reference: {uri}\n")


@pytest.mark.parametrize("uri", ["http://host/image", "oci://host/image", "team/tool:1", "/dir/file"])
def test_other_schemes_are_refused(enroot: Enroot, uri: str) -> None:
    result = enroot.import_(uri)
    assert (result.status, result.err) == (1, f"[ERROR] Invalid argument: {uri}\n")


def test_a_docker_daemon_needs_its_own_program(enroot: Enroot) -> None:
    result = enroot.import_("dockerd://image")
    assert (result.status, result.err) == (1, "[ERROR] Command not found: docker\n")
