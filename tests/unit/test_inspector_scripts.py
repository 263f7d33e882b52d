# SPDX-License-Identifier: Apache-2.0
"""The inspector binds a console script to its own distribution, and finds the installer of a client image."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.trees.interpreters import Interpreter
from tests.unit.trees.prefix import Prefix, client_prefix, make_executable, metadata, record_line, script_text

VLLM_MODULE = "vllm.cli"


@pytest.fixture
def prefix(tmp_path: Path, interpreter: Interpreter) -> Prefix:
    prefix = Prefix.make(tmp_path, interpreter)
    prefix.environment["PATH"] = str(prefix.root / "bin")
    return prefix


def resolved(path: Path) -> str:
    return str(path.resolve())


def test_a_foreign_vllm_on_path_is_reported_and_not_used(tmp_path: Path, interpreter: Interpreter) -> None:
    prefix = Prefix.make(tmp_path, interpreter)
    prefix.add("vllm", "0.33.0+cu129", scripts=("vllm",))
    stub = make_executable(tmp_path / "usr" / "local" / "bin" / "vllm", "#!/bin/sh\nexit 1\n")
    prefix.environment["PATH"] = f"{stub.parent}:{prefix.root / 'bin'}"
    outcome = prefix.inspect("serving")
    own = resolved(prefix.root / "bin" / "vllm")
    assert outcome.inspection == {
        "kind": "serving",
        "server_type": "vllm",
        "runtime_version": "0.33.0+cu129",
        "executable_path": own,
    }
    assert outcome.image["path_executable"] == resolved(stub)
    assert outcome.image["warnings"] == [f"PATH finds {resolved(stub)}; the distribution's own script is {own}"]
    assert outcome.image["distributions"] == [{"name": "vllm", "version": "0.33.0+cu129"}]


def test_the_own_script_on_path_gives_no_warning(prefix: Prefix) -> None:
    prefix.add("vllm", scripts=("vllm",))
    outcome = prefix.inspect("serving")
    assert outcome.image["warnings"] == []
    assert outcome.image["path_executable"] == outcome.inspection["executable_path"]


def test_without_vllm_on_path_a_warning_says_so(prefix: Prefix) -> None:
    prefix.add("vllm", scripts=("vllm",))
    prefix.environment["PATH"] = "/nonexistent"
    outcome = prefix.inspect("serving")
    assert outcome.image["path_executable"] is None
    assert outcome.image["warnings"][0].startswith("PATH finds no vllm;")


def test_a_missing_record_is_made_up_for_by_place_and_content(prefix: Prefix, tmp_path: Path) -> None:
    info = prefix.add("vllm", scripts=("vllm",))
    (info / "RECORD").unlink()
    make_executable(tmp_path / "other" / "vllm", script_text("somebody.elses", "/bin/sh"))
    prefix.environment["PATH"] = f"{tmp_path / 'other'}:{prefix.root / 'bin'}"
    assert prefix.inspect("serving").inspection["executable_path"] == resolved(prefix.root / "bin" / "vllm")


def test_a_script_of_another_distribution_is_not_taken_for_ours(prefix: Prefix) -> None:
    info = prefix.add("vllm", scripts=("vllm",))
    (info / "RECORD").unlink()
    make_executable(prefix.root / "bin" / "vllm", script_text("somebody.elses", "/bin/sh"))
    assert prefix.inspect("serving").error_code == "script_missing"


@pytest.mark.parametrize("place", ["tools", "opt/custom/bin", "share/vllm/libexec"])
@pytest.mark.parametrize("absolute", [False, True])
def test_scripts_in_unusual_places_are_found_by_record(prefix: Prefix, place: str, absolute: bool) -> None:
    info = prefix.add("vllm")
    script = make_executable(prefix.root / place / "vllm", script_text(VLLM_MODULE, str(prefix.python)))
    listed = record_line(prefix.site, script)
    if absolute:
        listed = listed.replace(os.path.relpath(script, prefix.site), str(script))
    (info / "RECORD").write_text(f"vllm/__init__.py,,\n{listed}\n")
    assert prefix.inspect("serving").inspection["executable_path"] == resolved(script)


def test_a_bin_directory_is_preferred_to_other_listed_places(prefix: Prefix) -> None:
    info = prefix.add("vllm", scripts=("vllm",))
    make_executable(prefix.root / "etc" / "vllm", "data")
    record = (info / "RECORD").read_text()
    (info / "RECORD").write_text(f"../../../etc/vllm,,\n{record}")
    assert prefix.inspect("serving").inspection["executable_path"] == resolved(prefix.root / "bin" / "vllm")


def test_package_data_of_that_name_is_no_console_script(prefix: Prefix) -> None:
    info = prefix.add("vllm")
    make_executable(prefix.site / "vllm" / "bin" / "vllm", "#!/bin/sh\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\nvllm/bin/vllm,,\n")
    assert prefix.inspect("serving").error_code == "script_missing"


def test_quoted_paths_in_record_are_read(prefix: Prefix) -> None:
    info = prefix.add("vllm")
    script = make_executable(prefix.root / 'a, "b"' / "vllm", script_text(VLLM_MODULE, str(prefix.python)))
    digest = record_line(prefix.site, script).rpartition("vllm,")[2]
    (info / "RECORD").write_text(f'"../../../a, ""b""/vllm",{digest}\n')
    assert prefix.inspect("serving").inspection["executable_path"] == resolved(script)


def test_pip_target_leaves_a_record_for_another_place(prefix: Prefix, tmp_path: Path) -> None:
    target = tmp_path / "target"
    info = prefix.add("vllm", base=target)
    script = make_executable(target / "bin" / "vllm", script_text(VLLM_MODULE, str(prefix.python)))
    (info / "RECORD").write_text("vllm/__init__.py,,\n../../bin/vllm,,\n")
    prefix.environment["PYTHONPATH"] = str(target)
    assert prefix.inspect("serving").inspection["executable_path"] == resolved(script)


def test_site_packages_behind_a_link_keeps_its_scripts(prefix: Prefix, tmp_path: Path) -> None:
    prefix.add("vllm", scripts=("vllm",))
    moved = tmp_path / "elsewhere" / "packages"
    moved.parent.mkdir()
    prefix.site.rename(moved)
    prefix.site.symlink_to(moved)
    assert prefix.inspect("serving").inspection["executable_path"] == resolved(prefix.root / "bin" / "vllm")


def test_an_old_install_lists_its_files_in_installed_files(prefix: Prefix) -> None:
    info = prefix.site / "vllm-0.1.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text(metadata("vllm", "0.1"))
    (info / "installed-files.txt").write_text("../vllm/__init__.py\n../../../../bin/vllm\nPKG-INFO\n")
    script = make_executable(prefix.root / "bin" / "vllm", "#!/bin/sh\n")
    assert prefix.inspect("serving").inspection["executable_path"] == resolved(script)


@pytest.mark.parametrize(
    "header", ["# EASY-INSTALL-ENTRY-SCRIPT: 'vllm','console_scripts','vllm'", "__requires__ = 'VLLM==0.1'"]
)
def test_a_development_install_is_known_by_the_head_of_its_script(prefix: Prefix, tmp_path: Path, header: str) -> None:
    source = tmp_path / "source"
    (source / "vllm.egg-info").mkdir(parents=True)
    (source / "vllm.egg-info" / "PKG-INFO").write_text(metadata("vllm", "0.1.dev0"))
    (prefix.site / "easy-install.pth").write_text(f"{source}\n")
    script = make_executable(prefix.root / "bin" / "vllm", f"#!{prefix.python}\n{header}\nimport re\n")
    outcome = prefix.inspect("serving")
    assert outcome.inspection["runtime_version"] == "0.1.dev0"
    assert outcome.inspection["executable_path"] == resolved(script)


def test_an_editable_install_is_found_by_its_record(prefix: Prefix) -> None:
    info = prefix.add("vllm", scripts=("vllm",))
    (info / "direct_url.json").write_text('{"url": "file:///src/vllm", "dir_info": {"editable": true}}')
    outcome = prefix.inspect("serving")
    assert outcome.inspection["executable_path"] == resolved(prefix.root / "bin" / "vllm")
    assert outcome.image["editable_distributions"][0]["name"] == "vllm"


@pytest.mark.parametrize("fault", ["missing", "not executable", "directory", "dangling", "loop", "pipe", "device"])
def test_a_script_that_cannot_be_run_is_refused(prefix: Prefix, fault: str) -> None:
    prefix.add("vllm", scripts=("vllm",))
    script = prefix.root / "bin" / "vllm"
    if fault == "not executable":
        script.chmod(0o644)
    else:
        script.unlink()
    if fault == "directory":
        script.mkdir()
    elif fault in ("dangling", "loop", "device"):
        script.symlink_to({"dangling": "/nonexistent/vllm", "loop": "vllm", "device": "/dev/zero"}[fault])
    elif fault == "pipe":
        os.mkfifo(script, 0o755)
    assert prefix.inspect("serving").error_code == "script_missing"


def test_a_script_below_the_mounted_directory_is_not_the_image_s(prefix: Prefix) -> None:
    prefix.add("vllm", scripts=("vllm",))
    planted = make_executable(prefix.mount / "out" / "vllm", script_text(VLLM_MODULE, str(prefix.python)))
    (prefix.root / "bin" / "vllm").unlink()
    (prefix.root / "bin" / "vllm").symlink_to(planted)
    assert prefix.inspect("serving").error_code == "script_missing"


def test_a_dead_first_line_is_a_warning(prefix: Prefix) -> None:
    prefix.add("vllm", scripts=("vllm",))
    make_executable(prefix.root / "bin" / "vllm", script_text(VLLM_MODULE, "/root/.local/share/uv/none/bin/python3"))
    warnings = prefix.inspect("serving").image["warnings"]
    assert len(warnings) == 1
    assert "starts with #!/root/.local/share/uv/none/bin/python3" in warnings[0]


def test_a_path_that_cannot_stand_in_a_record_is_refused(prefix: Prefix) -> None:
    info = prefix.add("vllm")
    make_executable(prefix.root / "new\nline" / "vllm", script_text(VLLM_MODULE, str(prefix.python)))
    (prefix.root / "tools").symlink_to("new\nline")
    (info / "RECORD").write_text("../../../tools/vllm,,\n")
    assert prefix.inspect("serving").error_code == "unusable_path"


def test_without_vllm_the_next_python_is_to_be_asked(prefix: Prefix) -> None:
    prefix.add("torch")
    outcome = prefix.inspect("serving", "--without", "/usr/bin/python3")
    assert outcome.status == 93
    assert outcome.error_code == "runtime_missing"
    assert f"/usr/bin/python3, {prefix.python}" in outcome.stderr


def test_the_pythons_passed_over_are_warned_of(prefix: Prefix) -> None:
    prefix.add("vllm", scripts=("vllm",))
    outcome = prefix.inspect("serving", "--without", "/usr/bin/python3")
    assert outcome.image["warnings"] == [f"/usr/bin/python3 comes before {prefix.python} but has no vllm"]


def test_pip3_is_taken_where_there_is_no_pip(prefix: Prefix) -> None:
    prefix.add("pip", "23.1", scripts=("pip3",))
    outcome = prefix.inspect()
    assert outcome.inspection["installer_path"] == resolved(prefix.root / "bin" / "pip3")
    assert outcome.image["installer"] == "pip"


def test_a_distribution_s_pip_without_record_is_found_beside_it(tmp_path: Path, interpreter: Interpreter) -> None:
    prefix = client_prefix(tmp_path, interpreter)
    (prefix.site / "pip-24.0.dist-info" / "RECORD").unlink()
    (prefix.site / "pip-24.0.dist-info" / "entry_points.txt").write_text(
        "[console_scripts]\npip = pip._internal.cli.main:main\n"
    )
    script = make_executable(prefix.root / "bin" / "pip", script_text("pip._internal.cli.main", str(prefix.python)))
    assert prefix.inspect().inspection["installer_path"] == resolved(script)


def test_uv_installs_where_pip_is_missing(prefix: Prefix) -> None:
    info = prefix.add("uv", "0.9.1")
    script = make_executable(prefix.root / "bin" / "uv", "\x7fELF")
    (info / "RECORD").write_text("../../../bin/uv,,\n")
    outcome = prefix.inspect()
    assert outcome.inspection["installer_path"] == resolved(script)
    assert outcome.inspection["installer_version"] == "0.9.1"
    assert outcome.image["installer"] == "uv"


def test_a_uv_on_path_is_asked_for_its_version(prefix: Prefix, tmp_path: Path) -> None:
    uv = make_executable(
        tmp_path / "tools" / "uv", "#!/bin/sh\n[ \"$1\" = --version ] && echo 'uv 0.9.1 (abc 2030-01-01)'\n"
    )
    prefix.environment["PATH"] = f"{uv.parent}:/usr/bin:/bin"
    outcome = prefix.inspect()
    assert outcome.inspection["installer_path"] == resolved(uv)
    assert outcome.inspection["installer_version"] == "0.9.1"


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\nwhile :; do echo flood; done\n", "#!/nonexistent\n"]
)
def test_a_uv_that_does_not_answer_is_no_installer(prefix: Prefix, tmp_path: Path, text: str) -> None:
    uv = make_executable(tmp_path / "tools" / "uv", text)
    prefix.environment["PATH"] = f"{uv.parent}:/usr/bin:/bin"
    assert prefix.inspect().error_code == "installer_missing"


def test_without_any_installer_a_client_image_is_refused(prefix: Prefix) -> None:
    prefix.add("pip", "24.0")
    outcome = prefix.inspect()
    assert outcome.status == 91
    assert outcome.error_code == "installer_missing"
    assert "pip 24.0" in outcome.stderr
