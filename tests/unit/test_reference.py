# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.reference import ImageReference, TagReference, redact

H64 = "0123456789abcdef" * 4
PIN = f"@sha256:{H64}"
OTHER = f"@sha256:{'f' * 64}"


def refused(text: str) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        ImageReference.parse(text)
    error = caught.value
    assert error.remedy
    assert error.details["part"]
    assert error.details["rule"]
    assert str(error.details["part"]) in str(error)
    assert str(error.details["rule"]) in str(error)
    assert len(error.message) < 500
    assert error.message.isprintable()
    return error


# REF-1: one URI form for every Enroot release


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        (f"acme/tool{PIN}", f"docker://registry-1.docker.io#acme/tool:sha256:{H64}"),
        (f"reg.example:5000/a/b/c{PIN}", f"docker://reg.example:5000#a/b/c:sha256:{H64}"),
        (f"localhost/a{PIN}", f"docker://localhost#a:sha256:{H64}"),
        (f"localhost:5000/a/b{PIN}", f"docker://localhost:5000#a/b:sha256:{H64}"),
        (f"127.0.0.1:5000/a{PIN}", f"docker://127.0.0.1:5000#a:sha256:{H64}"),
        (f"ghcr.io/o__o/r-e-p--o/x.y_z{PIN}", f"docker://ghcr.io#o__o/r-e-p--o/x.y_z:sha256:{H64}"),
    ],
)
def test_ref_1_digest_is_written_with_a_colon_and_the_registry_is_explicit(text: str, uri: str) -> None:
    assert ImageReference.parse(text).enroot_uri == uri


# REF-2: the tag is information only


def test_ref_2_the_tag_is_kept_as_information_and_left_out_of_the_uri() -> None:
    ref = ImageReference.parse(f"reg.example/a/b:1.2{PIN}")
    assert (ref.registry, ref.repository, ref.tag, ref.digest) == (
        "reg.example",
        "a/b",
        "1.2",
        f"sha256:{H64}",
    )
    assert ref.enroot_uri == f"docker://reg.example#a/b:sha256:{H64}"
    assert str(ref) == ref.canonical == f"reg.example/a/b:1.2{PIN}"


# REF-3: Enroot's own form


@pytest.mark.parametrize(
    "text",
    [
        f"nvcr.io#nvidia/x{PIN}",
        f"nvcr.io/nvidia/x{PIN}",
        f"nvcr.io#nvidia/x:sha256:{H64}",
        f"NVCR.io#nvidia/x{PIN}",
    ],
)
def test_ref_3_enroot_form_and_slash_form_are_the_same_reference(text: str) -> None:
    assert ImageReference.parse(text) == ImageReference.parse(f"nvcr.io/nvidia/x{PIN}")
    assert ImageReference.parse(text).enroot_uri.count("#") == 1


def test_ref_3_enroot_form_takes_a_port_and_a_tag() -> None:
    assert ImageReference.parse(f"r.example:5000#a/b:1{PIN}").canonical == f"r.example:5000/a/b:1{PIN}"
    assert ImageReference.parse(f"master:5000#a:sha256:{H64}").enroot_uri == f"docker://master:5000#a:sha256:{H64}"


@pytest.mark.parametrize(
    "text",
    [
        f"nvcr.io#nvidia#x{PIN}",
        f"nvcr.io/nvidia#x{PIN}",
        f"#nvidia/x{PIN}",
        f"nvcr.io#{PIN}",
        f"nvcr.io#/x{PIN}",
        f"nvcr.io#x:1:sha256:{H64}",
        f"nvcr.io#x:sha256:{H64}{PIN}",
        f"user@nvcr.io#x:sha256:{H64}",
        f"master#a/b{PIN}",
    ],
)
def test_ref_3_a_misplaced_hash_is_refused(text: str) -> None:
    refused(text)


# REF-4: the split is ours


@pytest.mark.parametrize(
    ("text", "registry"),
    [
        (f"team.registry.example/ns/app{PIN}", "team.registry.example"),
        (f"master:5000/ns/app{PIN}", "master:5000"),
        (f"localhost/ns/app{PIN}", "localhost"),
        (f"team/ns/app{PIN}", "registry-1.docker.io"),
        (f"Team.Registry.Example:5000/ns/app{PIN}", "team.registry.example:5000"),
    ],
)
def test_ref_4_a_first_component_with_dot_colon_or_localhost_is_the_registry(text: str, registry: str) -> None:
    assert ImageReference.parse(text).registry == registry


@pytest.mark.parametrize("text", [f"reg.example{PIN}", f"reg.example:5000{PIN}", f"localhost:5000{PIN}"])
def test_ref_4_a_registry_alone_is_not_taken_for_a_docker_hub_image(text: str) -> None:
    assert refused(text).details["part"] == "repository"


# REF-5: one component on a private registry


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        (f"reg.example:5000/busybox{PIN}", True),
        (f"reg.example:5000/a/busybox{PIN}", False),
        (f"busybox{PIN}", False),
        (f"docker.io/busybox{PIN}", False),
    ],
)
def test_ref_5_a_single_component_on_a_private_registry_needs_enroot_4(text: str, needed: bool) -> None:
    assert ImageReference.parse(text).needs_enroot_4 is needed


# REF-6: Docker Hub's names


@pytest.mark.parametrize(
    "name",
    [
        "docker.io/ubuntu",
        "index.docker.io/library/ubuntu",
        "ubuntu",
        "library/ubuntu",
        "registry-1.docker.io/ubuntu",
        "Docker.IO/library/ubuntu",
        "docker.io#ubuntu",
        "index.docker.io#library/ubuntu",
    ],
)
def test_ref_6_every_name_of_docker_hub_is_its_api_host_with_library_once(name: str) -> None:
    ref = ImageReference.parse(name + PIN)
    assert ref.enroot_uri == f"docker://registry-1.docker.io#library/ubuntu:sha256:{H64}"
    assert ref == ImageReference.parse(f"ubuntu{PIN}")


def test_ref_6_docker_hub_with_a_port_is_refused() -> None:
    assert "without a port" in refused(f"docker.io:443/ubuntu{PIN}").message


# What is refused, by part


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "reference"),
        ("ubuntu", "digest"),
        ("ubuntu:22.04", "digest"),
        ("ubuntu:latest", "digest"),
        ("ubuntu@", "digest"),
        ("ubuntu@latest", "digest"),
        ("ubuntu@sha256:", "digest"),
        (f"ubuntu@sha256:{H64[:-1]}", "digest"),
        (f"ubuntu@sha256:{H64}0", "digest"),
        (f"ubuntu@sha256:{H64.upper()}", "digest"),
        (f"ubuntu@SHA256:{H64}", "digest"),
        (f"ubuntu@sha256:{'g' * 64}", "digest"),
        (f"ubuntu@sha512:{H64}{H64}", "digest"),
        (f"ubuntu@md5:{H64[:32]}", "digest"),
        (f"ubuntu@{H64}", "digest"),
        (f"ubuntu{PIN}{OTHER}", "digest"),
        (f"ubuntu{PIN}:1", "digest"),
        (f"ubuntu:sha256:{H64}", "digest"),
        (f"@sha256:{H64}", "repository"),
        (f"docker://ubuntu{PIN}", "scheme"),
        (f"https://reg.example/a{PIN}", "scheme"),
        (f"oci+x://reg.example/a{PIN}", "scheme"),
        (f" ubuntu{PIN}", "reference"),
        (f"ubuntu{PIN}\n", "reference"),
        (f"ubu\tntu{PIN}", "reference"),
        (f"ubu\u00a0ntu{PIN}", "reference"),
        (f"ubu\u200bntu{PIN}", "reference"),
        (f"ubu\x00ntu{PIN}", "reference"),
        (f"ubu\x1b[31mntu{PIN}", "reference"),
        (f"ubu;ntu{PIN}", "reference"),
        (f"$(id)/x{PIN}", "reference"),
        (f"ubu`id`{PIN}", "reference"),
        (f"ubu'ntu{PIN}", "reference"),
        (f'ubu"ntu{PIN}', "reference"),
        (f"ubu\\ntu{PIN}", "reference"),
        (f"ubu*{PIN}", "reference"),
        (f"ubüntu{PIN}", "reference"),
        (f"а/b{PIN}", "reference"),
        (f"ubuntu٣{PIN}", "reference"),
        (f"[::1]:5000/a{PIN}", "registry"),
        (f"reg.example:/a{PIN}", "registry"),
        (f"reg.example:0/a{PIN}", "registry"),
        (f"reg.example:05000/a{PIN}", "registry"),
        (f"reg.example:65536/a{PIN}", "registry"),
        (f"reg.example:abc/a{PIN}", "registry"),
        (f"reg.example:1:2/a{PIN}", "registry"),
        (f":5000/a{PIN}", "registry"),
        (f"/a{PIN}", "registry"),
        (f"reg..example/a{PIN}", "registry"),
        (f".example/a{PIN}", "registry"),
        (f"reg.example./a{PIN}", "registry"),
        (f"-reg.example/a{PIN}", "registry"),
        (f"reg_x.example/a{PIN}", "registry"),
        (f"{'a' * 64}.example/a{PIN}", "registry"),
        (f"../a{PIN}", "registry"),
        (f"reg.example/{PIN}", "repository"),
        (f"reg.example/a//b{PIN}", "repository"),
        (f"reg.example/a/{PIN}", "repository"),
        (f"reg.example/../b{PIN}", "repository"),
        (f"reg.example/a/./b{PIN}", "repository"),
        (f"reg.example/A/b{PIN}", "repository"),
        (f"Ubuntu{PIN}", "repository"),
        (f"Team/app{PIN}", "repository"),
        (f"reg.example/-a{PIN}", "repository"),
        (f"reg.example/a-{PIN}", "repository"),
        (f"reg.example/a___b{PIN}", "repository"),
        (f"reg.example/a..b{PIN}", "repository"),
        (f"reg.example/a._b{PIN}", "repository"),
        (f"ubuntu:{PIN}", "tag"),
        (f"ubuntu:.x{PIN}", "tag"),
        (f"ubuntu:-x{PIN}", "tag"),
        (f"ubuntu:a:b{PIN}", "tag"),
        (f"ubuntu:a/b{PIN}", "registry"),
        (f"reg.example/ubuntu:a/b{PIN}", "tag"),
        (f"ubuntu:{'a' * 129}{PIN}", "tag"),
        (f"reg.example/{'a' * 250}{PIN}", "name"),
        (f"reg.example/{'a/' * 600}b{PIN}", "reference"),
    ],
)
def test_anything_but_a_well_formed_pinned_reference_is_refused_by_part(text: str, part: str) -> None:
    error = refused(text)
    if text == f"ubuntu:sha256:{H64}":
        assert error.details["part"] in {"digest", "tag"}
    else:
        assert error.details["part"] == part


@pytest.mark.parametrize("value", [None, 7, b"ubuntu", ["ubuntu"], True])
def test_a_value_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="not text"):
        ImageReference.parse(value)  # type: ignore[arg-type]


def test_limits_of_the_specification_are_met_exactly() -> None:
    assert ImageReference.parse(f"a:{'t' * 128}{PIN}").tag == "t" * 128
    longest = f"reg.example/{'a' * (255 - len('reg.example/'))}"
    assert ImageReference.parse(longest + PIN).canonical == longest + PIN
    assert refused(f"{longest}a{PIN}").details["part"] == "name"


def test_a_long_value_is_shortened_in_the_message() -> None:
    error = refused("x" * 5000)
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    "text",
    [
        f"bob:hunter2@reg.example/app{PIN}",
        f"bob:hunter2@reg.example:5000/app:1{PIN}",
        "bob:hunter2@reg.example/app:1",
        f"https://bob:hunter2@reg.example/app{PIN}",
        f"bob:hunter2@ubuntu{PIN}",
        f"bob:hunter2@ubuntu:22.04{PIN}",
        f"bob:hunter2@localhost:5000/a{PIN}",
        f"bob:hunter2@sha256:5000/a{PIN}",
        f"bob:hunter2@reg.example#app:sha256:{H64}",
        f"bob:hun@ter2@reg.example/app{PIN}",
        f"bob:hunter2;$(x)@reg.example/app{PIN}",
        f"bob:hunter2 x@reg.example/app{PIN}",
        f"bob:hunter2@reg.example/app{PIN}{OTHER}",
        f"bob:hunter2@reg.example/app@md5:{H64[:32]}",
        f"bob:hunter2@reg.example/app{PIN} ",
        "bob:hunter2@",
        f"reg.example/app?password=hunter2{PIN}",
    ],
)
def test_credentials_are_refused_and_never_repeated(text: str) -> None:
    error = refused(text)
    assert "hunter2" not in f"{error} {error.details} {error.remedy}"
    assert "ter2" not in str(error)


def test_credentials_are_named_as_such() -> None:
    assert refused(f"bob:pw@reg.example/app{PIN}").details["part"] == "credentials"
    assert "registry_conn_id" in str(refused(f"bob@reg.example/app{PIN}"))


# Construction


def test_a_reference_is_frozen_and_checks_its_parts() -> None:
    ref = ImageReference.parse(f"a/b{PIN}")
    with pytest.raises(dataclasses.FrozenInstanceError):
        ref.tag = "x"  # type: ignore[misc]
    with pytest.raises(InvalidRequestError):
        dataclasses.replace(ref, repository="A B")
    with pytest.raises(InvalidRequestError):
        dataclasses.replace(ref, digest="sha256:1")


# Unpinned references


def test_tag_reference_shares_the_grammar_and_can_be_pinned() -> None:
    tagged = TagReference.parse("docker.io/ubuntu:24.04")
    assert (tagged.registry, tagged.repository, tagged.tag, tagged.digest) == (
        "registry-1.docker.io",
        "library/ubuntu",
        "24.04",
        None,
    )
    assert tagged.pin(f"sha256:{H64}") == ImageReference.parse(f"ubuntu:24.04{PIN}")
    assert TagReference.parse(f"ubuntu{PIN}").digest == f"sha256:{H64}"


@pytest.mark.parametrize("text", ["ubuntu", "reg.example/a", "docker://ubuntu:1", "u:p@reg.example/a:1", "a:1 "])
def test_tag_reference_needs_a_tag_or_a_digest_and_refuses_the_rest(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        TagReference.parse(text)


# Properties

COMPONENT = st.from_regex(r"[a-z0-9]{1,6}((\.|_|__|-{1,3})[a-z0-9]{1,6}){0,2}", fullmatch=True)
LABEL = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?", fullmatch=True)
HOST = st.builds(lambda a, b: f"{a}.{b}", LABEL, LABEL)
REGISTRY = HOST | st.builds(lambda h, p: f"{h}:{p}", HOST | LABEL, st.integers(1, 65535))
TAG = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", fullmatch=True)
HEX = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)


@given(REGISTRY, st.lists(COMPONENT, min_size=1, max_size=4), st.none() | TAG, HEX, st.sampled_from("/#"))
def test_every_reference_of_the_grammar_is_read_and_reads_back(
    registry: str, components: list[str], tag: str | None, digest: str, separator: str
) -> None:
    repository = "/".join(components)
    suffix = f":{tag}" if tag else ""
    ref = ImageReference.parse(f"{registry}{separator}{repository}{suffix}@sha256:{digest}")
    assert (ref.registry, ref.repository, ref.tag) == (registry.lower(), repository, tag)
    assert ref.enroot_uri == f"docker://{registry.lower()}#{repository}:sha256:{digest}"
    assert ImageReference.parse(ref.canonical) == ref
    assert TagReference.parse(ref.canonical).canonical == ref.canonical


URI = re.compile(r"docker://[a-z0-9.-]+(:[1-9][0-9]{0,4})?#[a-z0-9._/-]+:sha256:[0-9a-f]{64}")
PIECES = st.sampled_from(
    [
        "a",
        "B",
        "/",
        ":",
        "@",
        "#",
        ".",
        "-",
        "_",
        "localhost",
        "docker.io",
        "5000",
        f"sha256:{H64}",
        PIN,
        "\n",
        " ",
        "$",
    ]
)


@given(st.text(max_size=40) | st.lists(PIECES, max_size=9).map("".join))
@example(f"a{PIN}")
def test_any_text_is_a_reference_with_a_safe_uri_or_a_documented_refusal(text: str) -> None:
    for candidate in (text, text + PIN):
        try:
            ref = ImageReference.parse(candidate)
        except InvalidRequestError as error:
            assert error.message.isprintable()
            assert len(error.message) < 500
        else:
            assert URI.fullmatch(ref.enroot_uri)
            assert ImageReference.parse(str(ref)) == ref


@given(st.text(max_size=2000))
def test_a_shown_value_is_one_bounded_printable_line(text: str) -> None:
    assert redact(text).isprintable()
    assert len(redact(text)) < 120


@pytest.mark.parametrize("name", ["docker.io", "index.docker.io", "registry.docker.io", "registry.hub.docker.com"])
def test_every_name_of_docker_hub_is_the_host_of_its_api(name: str) -> None:
    reference = ImageReference.parse(f"{name}/ubuntu@sha256:{'0' * 64}")
    assert (reference.registry, reference.repository) == ("registry-1.docker.io", "library/ubuntu")
