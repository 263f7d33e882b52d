"""What an import makes, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .images import (
    OCI_INDEX,
    OCI_MANIFEST,
    Tree,
    build,
    compression,
    content,
    listing,
)
from .registries import DockerRegistry, OddRegistry
from .runner import Enroot, path_without

STEPS = [
    "[INFO] Querying registry for permission grant",
    "[INFO] Permission granted",
    "[INFO] Fetching image manifest list",
    "[INFO] Fetching image manifest",
    "[INFO] Downloading 2 missing layers...",
    "[INFO] Extracting image layers...",
    "[INFO] Converting whiteouts...",
    "[INFO] Creating squashfs filesystem...",
]


def _steps(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("[")]


def test_a_successful_import_reports_its_steps_and_mksquashfs_figures(enroot: Enroot, registry: DockerRegistry) -> None:
    result = enroot.import_(registry.uri("team/tool:1"))
    assert result.status == 0, result.err
    assert _steps(result.err) == STEPS
    assert "Filesystem size" in result.out + result.err


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640)])
def test_the_file_s_mode_follows_the_umask(enroot: Enroot, registry: DockerRegistry, umask: int, mode: int) -> None:
    assert enroot.import_(registry.uri("team/tool:1"), umask=umask).status == 0
    assert (enroot.base / "image.sqsh").stat().st_mode & 0o7777 == mode


def test_layers_are_laid_over_each_other(enroot: Enroot, registry: DockerRegistry) -> None:
    image = enroot.imported(registry, "team/tool:1")
    files = listing(image)
    assert [path for path in files if path.startswith("srv/")] == [
        "srv/added",
        "srv/emptied",
        "srv/emptied/new",
        "srv/kept",
        "srv/private",
        "srv/replaced",
    ]
    assert content(image, "srv/replaced") == "new\n"
    assert not [path for path in files if path.startswith("dev/")]
    assert {line.split()[1] for line in files.values()} == {"0/0"}
    assert files["srv/private"].startswith("-rw-------")


def test_a_whiteout_hides_a_directory_and_everything_in_it(enroot: Enroot, odd: OddRegistry) -> None:
    layers = [
        Tree({"a/b/c": "deep", "a/file": "x"}, {"link": "a"}),
        Tree({"a/.wh.b": "", "link/now": "a directory"}),
        Tree({"a/file/now": "a directory"}),
    ]
    odd.add("team/tool", build(layers), "1", media_type=OCI_MANIFEST)
    result = enroot.import_(odd.uri("team/tool:1"))
    assert result.status == 0, result.err
    files = listing(enroot.base / "image.sqsh")
    found = [path for path in files if path.startswith(("a", "link"))]
    assert found == ["a", "a/file", "a/file/now", "link", "link/now"]


def test_the_image_s_configuration_becomes_files(enroot: Enroot, registry: DockerRegistry) -> None:
    """Its own etc/fstab is gone; volumes are mounts now."""
    image = enroot.imported(registry, "team/tool:1")
    assert content(image, "etc/environment") == "PATH=/opt/tools:/bin\nFROM_IMAGE=yes\n"
    assert content(image, "etc/fstab").split()[:3] == ["${ENROOT_ROOTFS}/volume", "/volume", "none"]
    assert "# a.label its value\n" in content(image, "etc/rc")
    assert {"etc/rc.local", "app/dir"} <= set(listing(image))


def test_the_default_name_is_made_from_repository_and_tag(enroot: Enroot, registry: DockerRegistry) -> None:
    result = enroot("import", registry.uri("team/tool:1"))
    assert result.status == 0, result.err
    assert (enroot.base / "team+tool+1.sqsh").is_file()


def test_an_existing_file_is_left_alone_and_the_registry_not_asked(enroot: Enroot, odd: OddRegistry) -> None:
    target = enroot.write(enroot.base / "image.sqsh", "precious")
    result = enroot.import_(odd.uri("team/tool:1"))
    assert (result.status, result.err) == (1, f"[ERROR] File already exists: {target}\n")
    assert (target.read_text(), odd.asked) == ("precious", [])


def test_a_missing_target_directory_is_noticed_at_once(enroot: Enroot, odd: OddRegistry) -> None:
    result = enroot.import_(odd.uri("team/tool:1"), "no/such/image.sqsh")
    target = enroot.base / "no/such/image.sqsh"
    assert (result.status, result.err) == (1, f"[ERROR] No such file or directory: {target}\n")
    assert odd.asked == []


def test_an_unwritable_target_directory_is_noticed_last(enroot: Enroot, registry: DockerRegistry) -> None:
    closed = enroot.base / "closed"
    closed.mkdir(mode=0o555)
    enroot.account.own(closed)
    result = enroot.import_(registry.uri("team/tool:1"), "closed/image.sqsh")
    assert result.status == 1
    assert "Could not create destination file: Permission denied" in result.err
    assert _steps(result.err) == STEPS


def test_a_single_manifest_of_another_architecture_is_only_a_warning(enroot: Enroot, registry: DockerRegistry) -> None:
    result = enroot.import_(registry.uri("team/tool:1"), "image.sqsh", "-a", "aarch64")
    assert result.status == 0
    assert "[WARN] Image architecture doesn't match the requested one: amd64 != arm64\n" in result.err
    assert (enroot.base / "image.sqsh").is_file()


def test_architectures_are_named_as_uname_does(enroot: Enroot, registry: DockerRegistry) -> None:
    result = enroot.import_(registry.uri("team/tool:1"), "image.sqsh", "-a", "arm64")
    assert (result.status, result.err) == (1, "[ERROR] Unsupported architecture: arm64\n")


@pytest.mark.parametrize(("arch", "word"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("ppc64le", "ppc64le")])
def test_the_platform_is_chosen_from_an_index(
    enroot: Enroot, odd: OddRegistry, base_layer: Tree, arch: str, word: str
) -> None:
    manifests = []
    for name in ("arm64", "amd64", "ppc64le"):
        image = build([base_layer.plus({"which": name})], architecture=name)
        odd.add("team/tool", image, image.digest, media_type=OCI_MANIFEST)
        entry = {"digest": image.digest, "mediaType": OCI_MANIFEST, "size": len(image.manifest)}
        manifests.append({**entry, "platform": {"architecture": name, "os": "linux"}})
    index = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})
    odd.bodies["/v2/team/tool/manifests/1"] = (OCI_INDEX, index.encode())
    result = enroot.import_(odd.uri("team/tool:1"), "image.sqsh", "-a", arch)
    assert result.status == 0, result.err
    assert "[WARN]" not in result.err
    assert content(enroot.base / "image.sqsh", "which") == word


@pytest.mark.parametrize("options", ["-comp zstd -Xcompression-level 1 -noD -exit-on-error", "-comp gzip -noappend"])
def test_squash_options_are_mksquashfs_s(enroot: Enroot, registry: DockerRegistry, options: str) -> None:
    result = enroot.import_(registry.uri("team/tool:1"), env={"ENROOT_SQUASH_OPTIONS": options})
    assert result.status == 0, result.err
    assert compression(enroot.base / "image.sqsh") == options.split()[1]


def test_the_default_compression_is_lzo(enroot: Enroot, registry: DockerRegistry) -> None:
    assert compression(enroot.imported(registry, "team/tool:1")) == "lzo"


def test_a_failing_mksquashfs_fails_the_import(enroot: Enroot, registry: DockerRegistry) -> None:
    result = enroot.import_(registry.uri("team/tool:1"), env={"ENROOT_SQUASH_OPTIONS": "-comp no-such"})
    assert result.status == 1
    assert not (enroot.base / "image.sqsh").exists()


@pytest.mark.parametrize("processors", ["1", "2"])
def test_the_number_of_processors_is_mksquashfs_s(enroot: Enroot, registry: DockerRegistry, processors: str) -> None:
    result = enroot.import_(registry.uri("team/tool:1"), env={"ENROOT_MAX_PROCESSORS": processors})
    assert f"Using {processors} processor" in result.out + result.err


def test_temporary_files_are_gone_after_success_and_failure(enroot: Enroot, registry: DockerRegistry) -> None:
    enroot.imported(registry, "team/tool:1")
    assert enroot.import_(registry.uri("team/tool:1"), "other.sqsh", env={"ENROOT_SQUASH_OPTIONS": "-x"}).status
    assert list(enroot.paths["tmp"].iterdir()) == []


@pytest.mark.parametrize("missing", ["curl", "jq", "parallel", "zstd", "mksquashfs"])
def test_a_missing_program_is_named(enroot: Enroot, odd: OddRegistry, missing: str) -> None:
    path = path_without(enroot.base / "bin", missing, enroot.program)
    result = enroot.import_(odd.uri("team/tool:1"), env={"PATH": path})
    assert (result.status, result.err) == (1, f"[ERROR] Command not found: {missing}\n")


def test_no_symlink_or_directory_is_left_in_place_of_the_file(enroot: Enroot, registry: DockerRegistry) -> None:
    """A dangling link is followed: the image is written where it leads."""
    target = enroot.base / "image.sqsh"
    target.symlink_to("elsewhere.sqsh")
    enroot.imported(registry, "team/tool:1")
    assert target.is_symlink() and (enroot.base / "elsewhere.sqsh").is_file()
    assert Path(target).resolve() == enroot.base / "elsewhere.sqsh"


def test_two_imports_at_once_share_a_cache(enroot: Enroot, registry: DockerRegistry) -> None:
    uri = registry.uri("team/tool:1")
    processes = [enroot.popen("import", "-o", f"{number}.sqsh", uri) for number in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert listing(enroot.base / "0.sqsh").keys() == listing(enroot.base / "1.sqsh").keys()


def test_an_opaque_directory_cannot_be_imported_in_a_user_namespace(enroot: Enroot, registry: DockerRegistry) -> None:
    """So only starts may be wrapped in one; its helper needs the capabilities of the first namespace."""
    before = ["unshare", "--user", "--map-current-user"]
    result = enroot.import_(registry.uri("team/tool:1"), before=before)
    assert result.status == 1
    assert "enroot-aufs2ovlfs: failed to create opaque ovlfs whiteout: " in result.err
    assert "Operation not permitted" in result.err
