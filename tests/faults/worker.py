# SPDX-License-Identifier: Apache-2.0
"""One step of one task try in a process of its own, which a test may kill at a named point.

Run in children of a fork server that has Airflow imported, so that a try costs milliseconds. The points are named
from outside: here, and only here, the hook is replaced by one that dies before or after a given verb.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.triggers.base import BaseTrigger

from airflow_slurm_images.core.decide import Limits
from airflow_slurm_images.hooks.slurm import SlurmHook
from airflow_slurm_images.operators import base as operator_module
from airflow_slurm_images.operators.images import OciImportOperator
from airflow_slurm_images.sensors import images as sensor_module
from airflow_slurm_images.sensors.images import SlurmJobSensor
from airflow_slurm_images.triggers import images as trigger_module
from airflow_slurm_images.triggers import observer as observer_module

VERBS = ("prepare", "stage", "submit", "adopt", "observe", "collect", "publish", "cancel")


class Instance:
    """What the product reads of a task instance; XComs go to a file, as they outlive the process."""

    def __init__(self, fields: Mapping[str, Any], xcoms: Path) -> None:
        self.dag_id, self.task_id, self.run_id = fields["dag_id"], fields["task_id"], fields["run_id"]
        self.map_index, self.try_number = fields["map_index"], fields["try_number"]
        self.max_tries = fields["max_tries"]
        self._xcoms = xcoms

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._xcoms.read_text())) if self._xcoms.exists() else {}

    def xcom_push(self, key: str, value: Any) -> None:
        self._xcoms.write_text(json.dumps({**self._read(), key: value}))

    def xcom_pull(self, key: str, **_: Any) -> Any:
        return self._read().get(key)


class OutletEvents:
    """Takes events for assets, and forgets them."""

    def __getitem__(self, key: object) -> Any:
        return SimpleNamespace(extra={}, add=lambda *_, **__: None)


def main(step: Mapping[str, Any]) -> None:
    """Do one step (``execute``, ``trigger`` or ``resume``) and write its outcome as JSON."""
    out = Path(step["out"])
    with out.with_suffix(".log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(step["env"])
    if step["clock_shift"]:
        _shift_clock(float(step["clock_shift"]))
    if step["die"]:
        _arm(*step["die"])
    if step["limits"]:
        for module in (operator_module, sensor_module, trigger_module):
            vars(module)["Limits"] = functools.partial(Limits, **step["limits"])
    try:
        outcome = _STEPS[step["what"]](step)
    except TaskDeferred as deferral:
        classpath, kwargs = deferral.trigger.serialize()
        timeout = deferral.timeout.total_seconds() if deferral.timeout else None
        outcome = {
            "deferred": {
                "classpath": classpath,
                "kwargs": kwargs,
                "method": deferral.method_name,
                "more": deferral.kwargs or {},
                "timeout": timeout,
            }
        }
    except Exception as err:
        outcome = {
            "error": type(err.__cause__ if isinstance(err, AirflowFailException) else err).__name__,
            "message": str(err),
            "retryable": not isinstance(err, AirflowFailException),
        }
    draft = out.with_suffix(".draft")
    draft.write_text(json.dumps(outcome))
    draft.rename(out)
    sys.stdout.flush()
    os._exit(0)  # what the fork server's own exit handlers would do is not a task's business


def _operator(step: Mapping[str, Any]) -> Any:
    kind = {"import": OciImportOperator, "sensor": SlurmJobSensor}[step["operator"]]
    task_id, retries = step["context"]["task_id"], step["context"]["retries"]
    operator = kind(task_id=task_id, retries=retries, **step["kwargs"])
    # As Airflow's task runner does it: the handler runs, then the task goes on until it is killed.
    signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
    return operator


def _context(step: Mapping[str, Any]) -> dict[str, Any]:
    return {"ti": Instance(step["context"], Path(step["xcoms"])), "outlet_events": OutletEvents()}


def _execute(step: Mapping[str, Any]) -> dict[str, Any]:
    found = _operator(step).execute(_context(step))
    return {"value": getattr(found, "xcom_value", found)}


def _resume(step: Mapping[str, Any]) -> dict[str, Any]:
    return {"value": _operator(step).resume_execution(step["method"], dict(step["arguments"]), _context(step))}


def _trigger(step: Mapping[str, Any]) -> dict[str, Any]:
    module, _, name = step["classpath"].rpartition(".")
    trigger: BaseTrigger = getattr(importlib.import_module(module), name)(**step["arguments"])

    async def first() -> Any:
        events = trigger.run()
        event = await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        return event

    return {"event": json.loads(json.dumps(asyncio.run(first()).payload))}


_STEPS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "execute": _execute,
    "resume": _resume,
    "trigger": _trigger,
}


def _arm(when: str, verb: str, number: int) -> None:
    """Have the process killed (SIGKILL) before or after the ``number``-th call of ``verb``."""
    calls = 0

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = real(self, *args, **kwargs)
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call

    assert verb in VERBS
    dying = type("DyingHook", (SlurmHook,), {verb: deadly(getattr(SlurmHook, verb))})
    for module in (operator_module, sensor_module, observer_module):
        vars(module)["SlurmHook"] = dying


def _shift_clock(seconds: float) -> None:
    """Let this worker's clock be wrong by so much."""
    real = time.time
    vars(time)["time"] = lambda: real() + seconds
