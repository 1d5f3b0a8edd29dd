"""Faults at scripted places: what happens to a worker when its code reaches a point (tfdist/observe/points.py).

    LocalCluster(workers=3, faults=[faults.kill(1, step=7), faults.freeze(2, step=12, seconds=3)])

Each fault is written to a file before it happens, so that a test can show that it did: LocalCluster.assert_all_fired().
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist import errors
from tfdist.observe import points

FAULTS_VARIABLE = "TFDIST_FAULTS"  # the faults as JSON
FIRED_VARIABLE = "TFDIST_FAULTS_FIRED"  # the file that tells which of them happened
_ACTIONS = ("kill", "freeze", "thaw", "terminate", "raise", "slow", "hold_gil")


class InjectedError(RuntimeError):
    """What a `raise_in` fault raises: stands for a user's own error."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault. Build it by the functions below.

    Args:
        action: What happens.
        worker: Index of the worker it happens to.
        step: Committed step at which it happens; None: at any.
        point: Name of the point.
        phase: Phase of the point, such as "fit"; None: any.
        incarnation: 0 for the first process of the task, 1 for its first replacement; None: any.
        facts: Further facts of the point that must be equal.
        nth: Happens from the nth time on that all of this is so.
        times: How many times it happens; None: every time.
        seconds: Of a freeze, a delay, a held GIL.
        target: Index of the worker that a `thaw` thaws.
        message: Of the error raised.
    """

    action: str
    worker: int
    step: int | None = None
    point: str = "step_begin"
    phase: str | None = None
    incarnation: int | None = 0
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    nth: int = 1
    times: int | None = 1
    seconds: float | None = None
    target: int | None = None
    message: str = ""

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise errors.ConfigError("action", self.action, f"must be one of {', '.join(_ACTIONS)}")
        if self.point not in points.POINTS:
            raise errors.ConfigError("point", self.point, f"must be one of {', '.join(points.POINTS)}")
        if self.seconds is not None and self.seconds <= 0:
            raise errors.ConfigError("seconds", self.seconds, "must be above 0")
        if self.nth < 1:
            raise errors.ConfigError("nth", self.nth, "must be at least 1, which is the first time")

    def matches(self, point: str, facts: Mapping[str, Any]) -> bool:
        """Whether it is for this point with these facts (the worker and the incarnation aside)."""
        wanted = {**self.facts}
        if self.step is not None:
            wanted["step"] = self.step
        if self.phase is not None:
            wanted["phase"] = self.phase
        return point == self.point and all(name in facts and facts[name] == value for name, value in wanted.items())


def kill(worker: int, step: int | None = None, point: str = "step_begin", **more: Any) -> Fault:
    """SIGKILL. Further arguments, here and below: phase, incarnation, facts, nth, times."""
    return Fault("kill", worker, step, point, **more)


def freeze(
    worker: int, step: int | None = None, point: str = "step_begin", *, seconds: float | None = None, **more: Any
) -> Fault:
    """SIGSTOP; with `seconds` the cluster thaws it that much later."""
    return Fault("freeze", worker, step, point, seconds=seconds, **more)


def thaw(target: int, *, when: int, step: int | None = None, point: str = "step_begin", **more: Any) -> Fault:
    """The cluster thaws worker `target` once worker `when` has reached the point and `target` is frozen."""
    return Fault("thaw", when, step, point, target=target, **more)


def terminate(worker: int, step: int | None = None, point: str = "step_begin", **more: Any) -> Fault:
    """SIGTERM, as a scheduler that takes the machine away sends it."""
    return Fault("terminate", worker, step, point, **more)


def raise_in(
    worker: int, step: int | None = None, point: str = "step_begin", *, message: str = "injected", **more: Any
) -> Fault:
    """Raises InjectedError."""
    return Fault("raise", worker, step, point, message=message, **more)


def slow(worker: int, step: int | None = None, point: str = "in_step", *, seconds: float, **more: Any) -> Fault:
    """Sleeps at the point; without a step every time that it is reached."""
    return Fault("slow", worker, step, point, seconds=seconds, **{"times": None if step is None else 1, **more})


def hold_gil(worker: int, step: int | None = None, point: str = "in_step", *, seconds: float, **more: Any) -> Fault:
    """Sleeps in C code without releasing the GIL, so that no Python thread of the worker runs meanwhile."""
    return Fault("hold_gil", worker, step, point, seconds=seconds, **more)


def to_json(faults: Sequence[Fault]) -> str:
    """The faults as text, for the environment variable TFDIST_FAULTS."""
    return json.dumps([dataclasses.asdict(fault) for fault in faults])


def from_json(text: str) -> list[Fault]:
    """The faults again. Raises ConfigError if the text is not what `to_json` wrote."""
    try:
        return [Fault(**entry) for entry in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise errors.ConfigError(FAULTS_VARIABLE, text, f"must be what faults.to_json wrote ({error})") from error


def install_from_environment() -> Callable[[], None] | None:
    """Installs the faults that TFDIST_FAULTS has for this process; returns what takes them away, if there are any."""
    worker = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    incarnation = int(os.environ.get("TFDIST_INCARNATION_NUMBER", "0"))
    mine = {
        number: fault
        for number, fault in enumerate(from_json(os.environ[FAULTS_VARIABLE]))
        if fault.worker == worker and fault.incarnation in (None, incarnation)
    }
    return points.on_reach(_Injector(mine, incarnation, os.environ.get(FIRED_VARIABLE))) if mine else None


class _Injector:
    def __init__(self, faults: Mapping[int, Fault], incarnation: int, fired_path: str | None) -> None:
        self._faults, self._incarnation, self._fired_path = faults, incarnation, fired_path
        self._matched = dict.fromkeys(faults, 0)
        self._lock = threading.Lock()  # points are reached by several threads

    def __call__(self, point: str, **facts: Any) -> None:
        for number, fault in self._faults.items():
            if not fault.matches(point, facts):
                continue
            with self._lock:
                self._matched[number] += 1
                turn = self._matched[number] - fault.nth
            if turn >= 0 and (fault.times is None or turn < fault.times):
                self._report(number, fault, facts)
                _act(fault)

    def _report(self, number: int, fault: Fault, facts: Mapping[str, Any]) -> None:
        if self._fired_path is None:
            return
        line = {
            "fault": number,
            "action": fault.action,
            "worker": fault.worker,
            "incarnation": self._incarnation,
            "facts": facts,
        }
        descriptor = os.open(self._fired_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, json.dumps(line, default=str).encode() + b"\n")
        finally:
            os.close(descriptor)


def _act(fault: Fault) -> None:
    signals = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "terminate": signal.SIGTERM}
    if fault.action in signals:
        os.kill(os.getpid(), signals[fault.action])
    elif fault.action == "raise":
        raise InjectedError(fault.message)
    elif fault.action == "slow":
        time.sleep(fault.seconds or 0.0)  # the fault itself
    elif fault.action == "hold_gil":
        # PyDLL, unlike CDLL, keeps the GIL during the call; poll() without descriptors is a sleep in milliseconds.
        ctypes.PyDLL(None).poll(None, 0, int((fault.seconds or 0.0) * 1000))
