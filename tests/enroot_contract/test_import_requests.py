"""What an import asks a registry for, and what it makes of the answers."""

from __future__ import annotations

import socket
import time

import pytest

from .images import OCI_MANIFEST, Image, Tree, build, digest_of
from .registries import DockerRegistry, OddRegistry
from .runner import Enroot


@pytest.mark.parametrize("tag", ["nope", "sha256:" + 64 * "0"])
def test_an_unknown_tag_or_digest(enroot: Enroot, registry: DockerRegistry, tag: str) -> None:
    result = enroot.import_(registry.uri(f"team/tool:{tag}"))
    url = f"http://{registry.address}/v2/team/tool/manifests/{tag}"
    assert result.status == 1
    assert result.last_error_line == f"[ERROR] URL {url} returned error code: 404 Not Found"


def test_a_digest_imports_what_was_pushed_under_it(enroot: Enroot, registry: DockerRegistry, image: Image) -> None:
    digest = registry.push(image, "team/pinned:1")
    assert enroot.import_(registry.uri(f"team/pinned:{digest}")).status == 0


def test_nothing_listening_ends_with_curl_s_status(enroot: Enroot) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        result = enroot.import_(f"docker://127.0.0.1:{port}#team/tool:1")
    assert result.status == 7
    assert result.last_error_line.startswith(f"curl: (7) Failed to connect to 127.0.0.1 port {port} ")


def test_an_unknown_host_ends_with_curl_s_status(enroot: Enroot) -> None:
    result = enroot.import_("docker://no-such-host.invalid:5000#team/tool:1")
    assert result.status == 6
    assert result.last_error_line == "curl: (6) Could not resolve host: no-such-host.invalid"


@pytest.mark.parametrize("value", ["no", "N", "false", "False", None])
def test_plain_http_needs_to_be_allowed(enroot: Enroot, odd: OddRegistry, value: str | None) -> None:
    result = enroot.import_(odd.uri("team/tool:1"), env={"ENROOT_ALLOW_HTTP": value})
    assert (result.status, odd.asked) == (35, [])
    assert result.last_error_line.startswith("curl: (35) ")


def test_a_server_error_is_named(enroot: Enroot, odd: OddRegistry) -> None:
    odd.statuses["/v2/team/tool/manifests/1"] = [503]
    result = enroot.import_(odd.uri("team/tool:1"))
    assert result.status == 1
    assert result.last_error_line.endswith("/v2/team/tool/manifests/1 returned error code: 503 Service Unavailable")


def test_transfer_retries_are_curl_s(enroot: Enroot, odd: OddRegistry, plain_image: Image) -> None:
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    odd.statuses["/v2/team/tool/manifests/1"] = [503]
    result = enroot.import_(odd.uri("team/tool:1"), env={"ENROOT_TRANSFER_RETRIES": "1"})
    assert result.status == 0, result.err


def test_the_first_request_is_a_head_that_names_no_media_type(
    enroot: Enroot, odd: OddRegistry, plain_image: Image
) -> None:
    odd.add("team/tool", plain_image, "1", media_type=OCI_MANIFEST)
    assert enroot.import_(odd.uri("team/tool:1")).status == 0
    first, second, third = odd.asked[:3]
    assert (first.method, first.headers["Accept"]) == ("HEAD", "*/*")
    assert "manifest.list.v2+json" in second.headers["Accept"]
    assert "manifest.v2+json" in third.headers["Accept"]
    assert "oci.image.manifest.v1+json" in third.headers["Accept"]


def test_an_old_registry_has_no_oci_manifest_for_that_first_request(enroot: Enroot, registry: DockerRegistry) -> None:
    """The same image pushed as Docker schema 2 imports."""
    result = enroot.import_(registry.uri("team/oci:1"))
    assert result.status == 1
    assert result.last_error_line.endswith("/v2/team/oci/manifests/1 returned error code: 404 Not Found")


def test_an_oci_manifest_is_fine_where_the_registry_shows_it(
    enroot: Enroot, odd: OddRegistry, plain_image: Image
) -> None:
    odd.add("team/tool", plain_image, plain_image.digest, media_type=OCI_MANIFEST)
    assert enroot.import_(odd.uri(f"team/tool:{plain_image.digest}")).status == 0


def test_the_manifest_is_not_compared_with_the_digest_asked_for(
    enroot: Enroot, odd: OddRegistry, plain_image: Image
) -> None:
    """So a pinned import is only as good as a check of ours."""
    wrong = digest_of(b"something else")
    odd.add("team/tool", plain_image, wrong, media_type=OCI_MANIFEST)
    assert enroot.import_(odd.uri(f"team/tool:{wrong}")).status == 0


@pytest.mark.parametrize("body", [b"{}", b'{"config": {"digest": "sha256:00"}}', b"[]"])
def test_a_manifest_without_layers_is_refused(enroot: Enroot, odd: OddRegistry, body: bytes) -> None:
    odd.bodies["/v2/team/tool/manifests/1"] = (OCI_MANIFEST, body)
    result = enroot.import_(odd.uri("team/tool:1"))
    url = f"http://{odd.address}/v2/team/tool/manifests/1"
    assert result.status == 1
    assert result.last_error_line == f"[ERROR] Could not parse digest information from {url}"


def test_a_manifest_that_is_no_json_is_refused(enroot: Enroot, odd: OddRegistry) -> None:
    odd.bodies["/v2/team/tool/manifests/1"] = (OCI_MANIFEST, b"<html>")
    result = enroot.import_(odd.uri("team/tool:1"))
    assert result.status == 1
    assert "[ERROR] Could not process JSON input" in result.err


def test_the_number_of_connections_is_bounded(enroot: Enroot, odd: OddRegistry) -> None:
    image = build([Tree({f"file-{number}": "x"}) for number in range(6)])
    odd.add("team/tool", image, "1", media_type=OCI_MANIFEST)
    odd.before_blob = lambda: time.sleep(0.1)
    assert enroot.import_(odd.uri("team/tool:1"), env={"ENROOT_MAX_CONNECTIONS": "2"}).status == 0
    assert odd.busiest == 2


def test_digest_prints_what_the_tag_stands_for(enroot: Enroot, registry: DockerRegistry, image: Image) -> None:
    digest = registry.push(image, "team/moving:1")
    result = enroot("digest", registry.uri("team/moving:1"))
    assert (result.status, result.out) == (0, f"{digest}\n")


def test_an_old_registry_cannot_show_an_image_without_a_history(enroot: Enroot, registry: DockerRegistry) -> None:
    """Without media types it is asked for the oldest format, which is made from the history."""
    registry.push(build([Tree({"file": "x"})], history=False), "team/no-history:1")
    result = enroot.import_(registry.uri("team/no-history:1"))
    assert result.status == 1
    assert result.last_error_line.endswith("/manifests/1 returned error code: 400 Bad Request")
