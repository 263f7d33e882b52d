# SPDX-License-Identifier: Apache-2.0
"""SlurmJobTrigger and the look that all waiting tasks of a cluster share, on a fake cluster."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import Coroutine
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger
from pydantic import ValidationError

from airflow_slurm_images.core.errors import ClusterUnavailableError
from airflow_slurm_images.core.observation import Observation, Watch
from airflow_slurm_images.hooks.ssh_exchange import ClusterAccessError
from airflow_slurm_images.triggers import images, observer
from airflow_slurm_images.triggers.images import SlurmJobTrigger, WaitOutcome
from airflow_slurm_images.triggers.observer import SharedObserver
from tests.airflow.contexts import handle
from tests.airflow.fake_hook import Answer, FakeHook, done, running

INTERVAL = 0.2


class Hooks(list[FakeHook]):
    """The fake hooks made so far, and how they answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Answer = running
        self.options: dict[str, Any] = {}

    def current(self, watch: Watch) -> Observation:
        return self.answer(watch)


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    made = Hooks()

    async def make(_handle: Any, **options: Any) -> FakeHook:
        await asyncio.sleep(0)  # looking up a connection takes a turn of the loop
        made.append(FakeHook(made.current))
        made.options = options
        return made[-1]

    monkeypatch.setattr(observer, "_hook", make)
    return made


async def events_of(*triggers: SlurmJobTrigger) -> list[Any]:
    """The event of each, or what ended it."""
    return list(await asyncio.gather(*map(event_of, triggers), return_exceptions=True))


async def event_of(trigger: SlurmJobTrigger) -> dict[str, Any]:
    events = trigger.run()
    try:
        return (await anext(events)).payload  # type: ignore[no-any-return]
    finally:
        await events.aclose()  # type: ignore[attr-defined]


def play(story: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(story, 20))


def trigger(**fields: Any) -> SlurmJobTrigger:
    return SlurmJobTrigger(handle(**fields), poll_interval=INTERVAL)


# -- what is stored in the database


def test_a_trigger_survives_its_way_through_the_database() -> None:
    job = handle(cluster="lab", profile={"memory": "1G"})
    first = SlurmJobTrigger(job, 17, pending_timeout=60, run_timeout=3600, stream="try3", cancel_on_kill=False)
    path, arguments = first.serialize()
    assert path == "airflow_slurm_images.triggers.images.SlurmJobTrigger"
    again = SlurmJobTrigger(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)
    known = {"job", "poll_interval", "pending_timeout", "run_timeout", "stream", "cancel_on_kill", "generation"}
    assert known == set(arguments)


def test_the_event_is_plain_json_and_whole_in_itself(hooks: Hooks) -> None:
    hooks.answer = done
    one = trigger(job_id=11)
    event = json.loads(json.dumps(play(event_of(one))))
    outcome = WaitOutcome.from_event(event)
    assert outcome.handle.model_dump(mode="json") == one.job
    assert outcome.verdict.kind == "succeeded"
    assert outcome.record is not None and outcome.record.job_id == 11


def test_the_outcome_names_the_job_that_ran_the_attempt(hooks: Hooks) -> None:
    """A duplicate submission may have won the claim."""

    def claimed(watch: Watch) -> Observation:
        return Observation(done(watch).evidence, record=done(watch).record, claimed_by=12)

    hooks.answer = claimed
    assert WaitOutcome.from_event(play(event_of(trigger(job_id=11)))).handle.job_id == 12


# -- one look for all


def test_fifty_waiting_tasks_cost_one_command_an_interval(hooks: Hooks) -> None:
    async def story() -> None:
        tasks = [asyncio.create_task(event_of(trigger(job_id=number))) for number in range(1, 51)]
        await asyncio.sleep(5.5 * INTERVAL)
        hooks.answer = done
        await asyncio.gather(*tasks)
        while not any(hook.closed for hook in hooks):
            await asyncio.sleep(0.01)

    play(story())
    (hook,) = [hook for hook in hooks if hook.looks]  # those made in the same turn lose, unused
    times = [moment for moment, _, _ in hook.looks]
    assert all(later - earlier >= INTERVAL * 0.9 for earlier, later in pairwise(times))
    assert 4 <= len(times) <= 8
    assert all(len(jobs) == 50 for _, jobs, _ in hook.looks[1:])
    assert hook.closed == 1


def test_the_shortest_interval_counts_for_all(hooks: Hooks) -> None:
    async def story() -> None:
        slow = asyncio.create_task(event_of(SlurmJobTrigger(handle(job_id=1), poll_interval=60)))
        quick = asyncio.create_task(event_of(SlurmJobTrigger(handle(job_id=2), poll_interval=INTERVAL)))
        await asyncio.sleep(4.5 * INTERVAL)
        hooks.answer = done
        await asyncio.gather(slow, quick)

    play(story())
    assert {tuple(sorted(jobs)) for _, jobs, _ in hooks[0].looks} == {(1, 2)}


def test_each_cluster_of_a_federation_is_asked_by_itself(hooks: Hooks) -> None:
    hooks.answer = done

    async def story() -> None:
        await asyncio.gather(event_of(trigger(job_id=1, cluster="a")), event_of(trigger(job_id=2, cluster="b")))

    play(story())
    assert sorted((cluster, jobs) for _, jobs, cluster in hooks[0].looks) == [("a", [1]), ("b", [2])]


def test_connections_workspaces_and_profiles_do_not_mix(hooks: Hooks) -> None:
    hooks.answer = done

    async def story() -> None:
        await asyncio.gather(
            *(event_of(trigger(**fields)) for fields in ({}, {"slurm_conn_id": "b"}, {"workspace": "/w2"}, {}))
        )

    play(story())
    assert sorted(len(hook.looks[0][1]) for hook in hooks if hook.looks) == [1, 1, 2]


def test_an_observer_belongs_to_its_loop(hooks: Hooks) -> None:
    """dag.test() and a restarted triggerer run new loops; a connection is looked up anew each time."""
    hooks.answer = done
    job = handle()
    for _ in range(2):
        play(event_of(SlurmJobTrigger(job, poll_interval=INTERVAL)))
    assert [len(hook.looks) for hook in hooks] == [1, 1]


def test_who_comes_after_the_last_one_left_is_served_too(hooks: Hooks) -> None:
    hooks.answer = done

    async def story() -> None:
        for number in range(1, 6):
            await event_of(trigger(job_id=number))
            await asyncio.sleep(0.002 * number)

    play(story())
    assert sum(len(hook.looks) for hook in hooks) == 5


def much_output(watch: Watch) -> Observation:
    """An ended job with more output than a log takes."""
    return replace(done(watch, (b"x" * 1023 + b"\n") * (watch.log_bytes // 1024)), log_offset=watch.log_offset or 0)


def test_the_output_of_an_ended_job_holds_its_end_up_for_no_interval(hooks: Hooks) -> None:
    hooks.answer = lambda watch: much_output(watch) if watch.job_id == 1 else running(watch)

    async def story() -> None:
        waiting = asyncio.create_task(event_of(SlurmJobTrigger(handle(job_id=2), poll_interval=3600)))
        ended = SlurmJobTrigger(handle(job_id=1), poll_interval=3600)
        assert (await event_of(ended))["verdict"]["kind"] == "succeeded"
        waiting.cancel()

    play(story())
    looks = [jobs for hook in hooks for _, jobs, _ in hook.looks]
    assert sum(2 in jobs for jobs in looks) <= 1  # who still waits is asked about once an interval
    assert 2 <= len(looks) <= 4


# -- a connection that changes


def test_a_refused_login_is_tried_again_with_the_connection_as_it_is_now(hooks: Hooks) -> None:
    """A key was changed, or a certificate renewed, while tasks wait all the time."""
    refusals: list[int] = []

    def answer(watch: Watch) -> Observation:
        if len(hooks) == 1:
            refusals.append(watch.job_id)
            raise ClusterAccessError("The login node refused the login")
        return done(watch)

    hooks.answer = answer
    assert play(event_of(trigger()))["verdict"]["kind"] == "succeeded"
    assert (len(refusals), [len(hook.looks) for hook in hooks], hooks[0].closed) == (1, [1, 1], 1)


def test_a_connection_that_cannot_be_had_is_doubt_and_is_asked_for_again(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, asked = observer._hook, []

    async def make(job: Any, **options: Any) -> Any:
        asked.append(job.slurm_conn_id)
        if len(asked) == 2:
            raise RuntimeError("the API server is away")
        return await made(job, **options)

    def answer(watch: Watch) -> Observation:
        if len(asked) == 1:
            raise ClusterAccessError("The login node refused the login")
        return done(watch)

    monkeypatch.setattr(observer, "_hook", make)
    hooks.answer = answer
    assert play(event_of(trigger()))["verdict"]["kind"] == "succeeded"
    assert len(asked) == 3


def test_a_cluster_that_is_away_costs_no_look_up_of_the_connection(hooks: Hooks) -> None:
    looks: list[Watch] = []

    def answer(watch: Watch) -> Observation:
        looks.append(watch)
        if len(looks) == 1:
            raise ClusterUnavailableError("the line is cut")
        return done(watch)

    hooks.answer = answer
    assert play(event_of(trigger()))["verdict"]["kind"] == "succeeded"
    assert len(hooks) == 1


# -- isolation


def test_a_malformed_handle_fails_alone(hooks: Hooks) -> None:
    async def story() -> list[Any]:
        bad = [SlurmJobTrigger({"job_id": 1}), trigger(job_name="x\n1 2 3"), trigger(run_directory="/a b")]
        waiting = [asyncio.create_task(event_of(one)) for one in (*bad, trigger(job_id=5))]
        await asyncio.sleep(2 * INTERVAL)
        hooks.answer = done
        return list(await asyncio.gather(*waiting, return_exceptions=True))

    *failed, event = play(story())
    assert [type(failure) for failure in failed] == [ValidationError] * 3
    assert event["verdict"]["kind"] == "succeeded"


def test_an_answer_that_breaks_one_task_leaves_the_others_alone(hooks: Hooks) -> None:
    def answer(watch: Watch) -> Observation:
        return Observation(None) if watch.job_id == 1 else done(watch)  # type: ignore[arg-type]

    hooks.answer = answer

    broken, *others = play(events_of(*(trigger(job_id=number) for number in (1, 2, 3))))
    assert isinstance(broken, AttributeError)
    assert [event["verdict"]["kind"] for event in others] == ["succeeded", "succeeded"]


def test_a_cluster_that_is_away_is_doubt_for_all_and_passes(hooks: Hooks, caplog: pytest.LogCaptureFixture) -> None:
    looks: list[Watch] = []

    def answer(watch: Watch) -> Observation:
        looks.append(watch)
        if len(looks) <= 2:
            raise ClusterUnavailableError("the line is cut")
        return done(watch)

    hooks.answer = answer
    assert play(event_of(trigger()))["verdict"]["kind"] == "succeeded"


def test_a_fault_of_ours_leaves_nobody_waiting(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_observer: SharedObserver) -> float:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(SharedObserver, "_next_look", broken)
    failures = play(events_of(trigger(job_id=1), trigger(job_id=2)))
    assert [type(failure) for failure in failures] == [ZeroDivisionError] * 2


def test_a_look_that_fails_for_an_unknown_cause_is_doubt_not_failure(hooks: Hooks) -> None:
    looks: list[int] = []

    def answer(watch: Watch) -> Observation:
        looks.append(watch.job_id)
        if len(looks) == 1:
            raise ZeroDivisionError("a bug")
        return done(watch)

    hooks.answer = answer
    assert play(event_of(trigger()))["verdict"]["kind"] == "succeeded"


def test_lines_go_to_the_log_of_their_own_task(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow files a triggerer's log lines by a context variable of the coroutine that writes them."""
    whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody")
    written: list[tuple[str, str]] = []

    class Log(logging.LoggerAdapter[logging.Logger]):
        def log(self, level: int, msg: object, *args: object, **_: Any) -> None:
            written.append((whose.get(), str(msg) % args))

    monkeypatch.setattr(SlurmJobTrigger, "log", Log(logging.getLogger("t"), {}))
    hooks.answer = lambda watch: done(watch, f"output of {watch.job_id}\n".encode())

    async def one(number: int) -> None:
        whose.set(f"task {number}")
        await event_of(trigger(job_id=number))

    async def story() -> None:
        await asyncio.gather(*(asyncio.create_task(one(number)) for number in (1, 2, 3)))

    play(story())
    outputs = sorted((task, line) for task, line in written if line.startswith("output"))
    assert outputs == [(f"task {number}", f"output of {number}") for number in (1, 2, 3)]


# -- ends of waiting


def test_a_cancelled_wait_leaves_the_job_alone(hooks: Hooks) -> None:
    """That is how a triggerer stops: the next one goes on from the database."""

    async def story() -> None:
        first, second = (asyncio.create_task(event_of(trigger(job_id=number))) for number in (1, 2))
        await asyncio.sleep(1.5 * INTERVAL)
        first.cancel()
        await asyncio.sleep(1.5 * INTERVAL)
        hooks.answer = done
        assert (await second)["verdict"]["kind"] == "succeeded"
        with pytest.raises(asyncio.CancelledError):
            await first

    play(story())
    assert hooks[0].cancelled == []
    assert hooks[0].looks[-1][1] == [2]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_kill_cancels_once_in_one_quick_attempt(hooks: Hooks, wanted: bool) -> None:
    job = handle(job_id=9, cluster="lab", generation=2)
    play(SlurmJobTrigger(job, cancel_on_kill=wanted).on_kill())
    cancelled = [what for hook in hooks for what in hook.cancelled]
    if not wanted:
        assert cancelled == []
        return
    assert [what[:3] for what in cancelled] == [(None, job["job_name"], "lab")]
    assert hooks[0].cancel_options == [{"generation": 2}]
    assert cancelled[0][3] <= 5  # Airflow gives the hook of a kill few seconds
    assert hooks.options["connect_attempts"] == 1 and hooks.options["conn_timeout"] <= 3
    assert hooks[0].closed == 1


@pytest.mark.parametrize(
    ("state", "tells_kills", "cancels"),
    [
        ("failed", False, True),
        ("success", False, True),
        ("removed", False, True),
        (None, False, False),  # not known
        ("None", False, False),  # cleared: the next try adopts the job
        ("scheduled", False, False),
        ("deferred", False, False),  # the triggerer goes, another one comes
        ("failed", True, False),  # Airflow calls on_kill by itself
    ],
)
def test_where_airflow_tells_no_kills_the_state_of_the_task_decides(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch, state: str | None, tells_kills: bool, cancels: bool
) -> None:
    async def task_state(_self: Any) -> str | None:
        return state

    monkeypatch.setattr(images, "_TELLS_KILLS", tells_kills)
    monkeypatch.setattr(SlurmJobTrigger, "_task_state", task_state)

    async def story() -> None:
        waiting = asyncio.create_task(event_of(trigger(job_id=9)))
        await asyncio.sleep(1.5 * INTERVAL)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    play(story())
    assert [what[0] for hook in hooks for what in hook.cancelled] == ([None] if cancels else [])


@pytest.mark.parametrize(("map_index", "key"), [(-1, "t"), (3, "t_3")])
def test_the_state_is_that_of_this_task_instance(monkeypatch: pytest.MonkeyPatch, map_index: int, key: str) -> None:
    asked: list[dict[str, Any]] = []

    def states(**what: Any) -> dict[str, dict[str, str]]:
        asked.append(what)
        return {"r": {key: "failed"}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    one = trigger()
    one.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=map_index)  # type: ignore[assignment]
    assert play(one._task_state()) == "failed"
    assert asked == [{"dag_id": "d", "task_ids": ["t"], "run_ids": ["r"], "map_index": map_index}]


def test_on_kill_is_airflows_own_hook_where_it_has_one() -> None:
    assert not hasattr(BaseTrigger, "on_kill") or asyncio.iscoroutinefunction(SlurmJobTrigger.on_kill)
