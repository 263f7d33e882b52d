# SPDX-License-Identifier: Apache-2.0
"""SSH servers as they are: busy, away for a while, with other keys, wanting a person to answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_slurm_images.core.errors import ClusterUnavailableError
from airflow_slurm_images.hooks.slurm import CONNECT_TIMEOUT, SlurmHook

from .box import Box
from .silent_path import SilentPath
from .sqsh import changed, false_python, place, squash, tree_of
from .works import CONN_ID, connection, inspect_task, slurm_hook

OTHER_HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3nVDYbRM5c8wuFkx7QTrHFzC0rO6j2mmHgjJcPLxyN"

INTERACTIVE = {
    "AuthenticationMethods": "keyboard-interactive",
    "KbdInteractiveAuthentication": "yes",
    "UsePAM": "yes",
}


@contextmanager
def server(box: Box, **options: str) -> Iterator[None]:
    """The login node's sshd with other options."""
    box.restart_sshd(**options)
    try:
        yield
    finally:
        box.restart_sshd()


def asked(hook: SlurmHook) -> str:
    login = hook.prepare(secrets.token_hex(16)).login
    hook.close()
    return login


def test_many_tasks_at_once_get_through_a_narrow_door(box_plain: Box) -> None:
    with server(box_plain, MaxStartups="5:50:10"), ThreadPoolExecutor(50) as pool:
        hooks = [slurm_hook(box_plain) for _ in range(50)]
        assert list(pool.map(asked, hooks)) == [box_plain.user] * 50


def test_a_server_that_is_away_for_a_while_costs_nothing(box_plain: Box, image_layouts: dict[str, Path]) -> None:
    """Twenty seconds in the middle of a running job: doubt, and success in the end."""
    tree = changed(tree_of(image_layouts["client"]), {})
    slow = false_python('/bin/sleep 15; exec /usr/bin/python3.11 "$@"')
    file = squash(changed(tree, slow), place(box_plain, "slow"))
    task = inspect_task(box_plain, file)
    task.begin()
    assert task.reaches("inspect")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(task.wait)
        time.sleep(1)
        box_plain.stop_sshd()
        time.sleep(20)
        box_plain.start_sshd()
        waiting.result()
    assert task.finish().inspection.inspection.kind == "client"
    assert any("poll failed" in line for line in task.lines)
    assert len(box_plain.squeue(task.handle.job_name)) == 1


def test_a_server_that_is_away_is_unavailable_and_may_be_retried(box_plain: Box) -> None:
    box_plain.stop_sshd()
    try:
        with pytest.raises(ClusterUnavailableError, match=str(box_plain.ssh_port)) as caught:
            asked(slurm_hook(box_plain, connect_attempts=2))
    finally:
        box_plain.start_sshd()
    assert caught.value.retryable


def test_a_path_that_goes_silent_costs_one_command_and_not_the_next(box_plain: Box) -> None:
    """As behind a firewall that forgot the connection: it is neither answered nor closed."""
    nothing = {"ASI_RUN_KEY": "", "ASI_SOURCE_DIGEST": "", "ASI_NAME": ""}
    with SilentPath(box_plain.ssh_host, box_plain.ssh_port) as path:
        through = connection(box_plain)
        through.port = path.port
        hook = SlurmHook(CONN_ID, connection=through)
        assert [hook.run("prepare", nothing).text("login") for _ in range(2)] == [box_plain.user] * 2
        assert path.connections == 1
        path.go_silent()
        with pytest.raises(ClusterUnavailableError):
            hook.run("prepare", nothing, timeout=2)
        assert hook.run("prepare", nothing).text("login") == box_plain.user
        assert path.connections == 2
        hook.close()


def refused(hook: SlurmHook) -> tuple[ClusterUnavailableError, float]:
    """The error of a login that cannot work, and how long it took to say so."""
    began = time.monotonic()
    with pytest.raises(ClusterUnavailableError) as caught:
        asked(hook)
    assert caught.value.retryable is False
    return caught.value, time.monotonic() - began


def test_a_server_that_wants_a_person_is_told_apart_at_once(box_plain: Box) -> None:
    with server(box_plain, **INTERACTIVE):
        error, seconds = refused(slurm_hook(box_plain))
    assert "keyboard-interactive" in error.message
    assert "without a person" in str(error.remedy)
    assert seconds < CONNECT_TIMEOUT


@pytest.mark.slow
def test_a_second_factor_after_the_key_is_named_within_the_time_of_a_connection(box_plain: Box) -> None:
    """The SSH library lets the server ask and waits for a person; to us that looks like a slow server."""
    methods = "publickey,keyboard-interactive"
    began = time.monotonic()
    with (
        server(box_plain, **INTERACTIVE | {"AuthenticationMethods": methods}),
        pytest.raises(ClusterUnavailableError, match="keyboard-interactive") as caught,
    ):
        asked(slurm_hook(box_plain))
    assert "without a person" in str(caught.value.remedy)
    assert time.monotonic() - began < CONNECT_TIMEOUT + 10


def test_a_refused_login_is_not_tried_again(box_plain: Box) -> None:
    with server(box_plain, AllowUsers=box_plain.other_user):
        before = box_plain.sshd.daemon.log.read_text().count("not allowed")
        error, _ = refused(slurm_hook(box_plain))
        after = box_plain.sshd.daemon.log.read_text().count("not allowed")
    assert f"{box_plain.user}@{box_plain.ssh_host}" in error.message
    assert after - before == 1


def test_another_host_key_than_the_known_one_is_refused(box_plain: Box) -> None:
    hook = SlurmHook(CONN_ID, connection=connection(box_plain, host_key=OTHER_HOST_KEY))
    error, _ = refused(hook)
    assert "host key" in error.message and "not the one" in error.message


def test_an_unknown_host_key_is_refused(box_plain: Box) -> None:
    error, _ = refused(SlurmHook(CONN_ID, connection=connection(box_plain, host_key=None)))
    assert "host key" in error.message and "not known" in error.message
