"""A training whose members are killed or frozen and replaced, again and again; each change is measured.

A replacement gets a task number of its own, as from a pool of machines: a task that is lost three times in ten minutes
has to wait before it may join again, which is none of what is measured here.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jobs
import numpy as np
from stamps import Stamps

from tfdist.observe.events import read_events
from tfdist.testing import LocalCluster

PATIENCE = 90.0  # seconds for any one thing to happen
MEDIAN_OF = 40  # steps before an event, whose median is taken for the duration of a step


@dataclasses.dataclass(frozen=True)
class Loss:
    """One member was lost. All in seconds.

    Args:
        gap: From the signal until the last survivor committed the next step.
        step: Median duration of a step before.
        noticed: From the signal until a survivor began to look for a new roster; this and the next three are of the
            survivor that came last.
        agreed: Until the survivors had a roster.
        formed: Until they had formed a group and compared their states.
        redone: Until the step was done again.
    """

    gap: float
    step: float
    noticed: float
    agreed: float
    formed: float
    redone: float


@dataclasses.dataclass(frozen=True)
class Join:
    """One member joined. In seconds, except for `bytes`, the size of the state that it received.

    Args:
        ready: From the fork until the survivors looked for a new roster.
        first_step: From the fork until the joiner's first common step was committed.
        stall: Longest time between two steps of a survivor.
        step: Median duration of a step before.
        agreed: Of the stall: until there was a roster.
        formed: Of the stall: forming, meeting, the transfer.
        redone: Of the stall: the step after.
    """

    ready: float
    first_step: float
    stall: float
    step: float
    agreed: float
    formed: float
    redone: float
    bytes: int


class Training:
    """`members` workers that train until the end of the `with` block."""

    def __init__(self, members: int, **options: Any) -> None:
        self.cluster = LocalCluster(members)
        self.folder = Path(self.cluster.directory)
        self.options = {**options, "folder": str(self.folder)}
        self.pids: dict[int, int] = {}  # of the living members, by task
        self._next_task = 0
        self._events: list[dict[str, Any]] = []
        self._offset = 0
        try:
            for _ in range(members):
                self.fork()
            self.wait_steps(MEDIAN_OF)
        except BaseException:
            self.cluster.close()
            raise

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def fork(self) -> int:
        """Starts one more worker; returns its task."""
        task, self._next_task = self._next_task, self._next_task + 1
        self.pids[task] = self.cluster.start_worker(task, jobs.train, self.options).forked.pid
        return task

    def stamps(self, task: int) -> Stamps:
        return Stamps(jobs.stamps_of(self.folder, task))

    def wait_steps(self, count: int, tasks: Iterable[int] | None = None) -> None:
        """Waits until these members have done `count` more steps."""
        goals = {task: self.stamps(task).count() + count for task in (self.pids if tasks is None else tasks)}
        self._wait(lambda: all(self.stamps(t).count() >= goal for t, goal in goals.items()), f"{count} steps are done")

    def lose(self, victim: int, how: str = "kill", *, replace_at_once: bool = False) -> tuple[Loss, tuple[int, float]]:
        """Kills or freezes a member, and has another one started: at once, or when the survivors have recovered.

        Returns:
            What it cost, and (task, time of the fork) of the replacement, for `join`.
        """
        del self.pids[victim]
        survivors = tuple(self.pids)
        at = time.monotonic()
        (self.cluster.kill if how == "kill" else self.cluster.freeze)(victim)
        replacement = self._fork_now() if replace_at_once else None
        formed = self._formations(survivors, survivors, at)
        self._wait(
            lambda: all(len(self.stamps(task).read(formed[task]["monotonic"])) >= 2 for task in survivors),
            "the survivors go on",
        )
        if how != "kill":
            self.cluster.kill(victim)  # it has been shown to be frozen; it is replaced like one that was killed
        return self._loss(survivors, formed, at), replacement or self._fork_now()

    def join(self, replacement: tuple[int, float]) -> Join:
        """Waits until the replacement trains with the others."""
        task, forked_at = replacement
        others = tuple(other for other in self.pids if other != task)
        formed = self._formations((*others, task), tuple(self.pids), forked_at)
        self._wait(lambda: all(len(self.stamps(t).read(formed[t]["monotonic"])) >= 2 for t in formed), "all go on")
        slowest, stall, parts = -1, 0.0, (0.0, 0.0, 0.0)
        for other in others:
            numbers, at = formed[other]["numbers"], formed[other]["monotonic"]
            before, after = self.stamps(other).before(at, 1)["time"][-1], self.stamps(other).read(at)["time"][0]
            if after - before > stall:
                slowest, stall = other, float(after - before)
                parts = (numbers["agree"], numbers["seconds"] - numbers["agree"], float(after - at))
        began = formed[slowest]["monotonic"] - formed[slowest]["numbers"]["seconds"]
        first = float(self.stamps(task).read()["time"][0])
        step = self._median_step(others, forked_at)
        transferred = formed[task]["numbers"]["transferred"]
        return Join(began - forked_at, first - forked_at, stall, step, *parts, transferred)

    # --- how it is measured ---

    def _fork_now(self) -> tuple[int, float]:
        at = time.monotonic()
        return self.fork(), at

    def _loss(self, survivors: tuple[int, ...], formed: dict[int, dict[str, Any]], at: float) -> Loss:
        # A survivor may have committed one step more than another before the group broke; the next one is new to all.
        last = max(int(self.stamps(t).before(formed[t]["monotonic"], 1)["step"][-1]) for t in survivors)
        done = {t: self._time_of(t, last + 1) for t in survivors}
        slowest = max(done, key=lambda t: done[t])
        numbers, formed_at = formed[slowest]["numbers"], formed[slowest]["monotonic"]
        noticed = formed_at - numbers["seconds"] - at
        parts = (noticed, numbers["agree"], numbers["seconds"] - numbers["agree"], done[slowest] - formed_at)
        return Loss(done[slowest] - at, self._median_step(survivors, at), *parts)

    def _time_of(self, task: int, step: int) -> float:
        self._wait(lambda: bool((self.stamps(task).read()["step"] >= step).any()), f"worker {task} does step {step}")
        records = self.stamps(task).read()
        return float(records["time"][records["step"] >= step][0])

    def _median_step(self, tasks: Iterable[int], before: float) -> float:
        steps = [np.diff(self.stamps(task).before(before, MEDIAN_OF)["time"]) for task in tasks]
        return float(np.median(np.concatenate(steps)))

    def _formations(self, tasks: Iterable[int], members: Iterable[int], since: float) -> dict[int, dict[str, Any]]:
        """By task: the event in which it formed a group of `members`."""
        wanted, roster = set(tasks), [f"worker/{task}" for task in sorted(members)]
        found: dict[int, dict[str, Any]] = {}

        def complete() -> bool:
            new, self._offset = read_events(self.folder / "events.jsonl", self._offset)
            self._events += [event for event in new if event["kind"] == "formation"]
            for event in self._events:
                task = int(event["task"].rpartition("/")[2])
                if event["monotonic"] >= since and event["numbers"]["members"] == roster and task in wanted:
                    found[task] = event
            return found.keys() == wanted

        self._wait(complete, f"workers {sorted(wanted)} form a group of {roster}")
        self._events.clear()
        return found

    def _wait(self, true: Callable[[], bool], what: str) -> None:
        self.cluster.wait_until(true, what, PATIENCE)
