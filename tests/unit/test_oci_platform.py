# SPDX-License-Identifier: Apache-2.0
"""One platform, whatever it is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm_images.core.errors import InvalidRequestError
from airflow_slurm_images.core.platform import Platform


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["amd64", "x86_64", "X86_64", "x86-64", " amd64 "], "linux/amd64"),
        (["arm64", "aarch64"], "linux/arm64"),
        (["arm", "armv7l", "armhf", "armv7"], "linux/arm"),
        (["armv6l", "armel"], "linux/arm/v6"),
        (["386", "i386", "i686"], "linux/386"),
        (["ppc64le"], "linux/ppc64le"),
        (["s390x"], "linux/s390x"),
        (["riscv64"], "linux/riscv64"),
        (["loongarch64", "loong64"], "linux/loong64"),
        (["newarch9"], "linux/newarch9"),
    ],
)
def test_uname_and_oci_names_are_one(names: list[str], expected: str) -> None:
    assert {str(Platform.requested(name)) for name in names} == {expected}


def test_the_default_variant_and_none_are_one() -> None:
    assert Platform.of("arm64", variant="v8") == Platform.of("aarch64")
    assert Platform.of("arm", variant="7") == Platform.of("armv7l")
    assert Platform.of("arm64", variant="v9") != Platform.of("arm64")


@pytest.mark.parametrize(
    ("arch", "os", "variant"), [("", "linux", None), ("amd 64", "linux", None), ("amd64", "", None),
                                ("amd64", "linux", "v7;"), ("linux/amd64", "linux", None)],
)  # fmt: skip
def test_what_names_no_platform_is_refused(arch: str, os: str, variant: str | None) -> None:
    with pytest.raises(InvalidRequestError, match="names no platform"):
        Platform.requested(arch, os=os, variant=variant)


@given(st.text(max_size=40), st.text(max_size=20), st.none() | st.text(max_size=20))
def test_any_text_is_either_a_stable_platform_or_refused(arch: str, os: str, variant: str | None) -> None:
    try:
        platform = Platform.requested(arch, os=os, variant=variant)
    except InvalidRequestError:
        return
    assert Platform.of(platform.architecture, os=platform.os, variant=platform.variant) == platform
