"""The duration of a step when nothing happens, compared with TensorFlow's own strategy on the same batches.

Both trainings live at the same time and take turns, some steps each, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

import jobs
import numpy as np
from figures import bound, summary
from stamps import Stamps

from tfdist.testing import LocalCluster

ROUNDS = 10
START_SECONDS = 240.0
TURN_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and the bound for it.

    Args:
        layers, width: Of the hidden layers.
        steps: Steps of one turn that count.
        discarded: Steps at the beginning of a turn that do not: caches are another's then.
        warm_up: Steps before the first turn.
        limit: Step time as a part of TensorFlow's that must not be exceeded.
        parties: Who is measured, by name: options of the job.
    """

    layers: int
    width: int
    steps: int
    discarded: int
    warm_up: int
    limit: float
    parties: dict[str, dict[str, str]]


STOCK = {"strategy": "stock", "data": "tf.data"}
TFDIST = {"strategy": "tfdist", "data": "tf.data"}
ELASTIC = {"strategy": "tfdist", "data": "elastic"}
CASES = {
    "small": Case(4, 256, 30, 3, 40, 0.75, {"stock": STOCK, "tfdist": TFDIST, "tfdist, elastic_dataset": ELASTIC}),
    "large": Case(7, 2048, 2, 1, 3, 1.0, {"stock": STOCK, "tfdist": TFDIST}),
}
BATCH = 96  # can be divided by 2 and by 3, which TensorFlow's strategy needs


def run(events: int | None = None) -> dict[str, Any]:
    """Small and large model, 2 and 3 workers, `events` turns each."""
    results: dict[str, Any] = {"bounds": []}
    for name, case in CASES.items():
        for workers in (2, 3):
            found = _compare(case, workers, events or ROUNDS)
            results[f"{name}, {workers} workers"] = found
            for party, ratio in found["ratios"].items():
                what = f"steady state, {name} model, {workers} workers: {party} / stock"
                results["bounds"].append(bound(what, ratio["median"], case.limit, ""))
    return results


def _compare(case: Case, workers: int, rounds: int) -> dict[str, Any]:
    turns: dict[str, list[np.ndarray]] = {name: [] for name in case.parties}
    used: dict[str, list[float]] = {name: [] for name in case.parties}
    with contextlib.ExitStack() as stack:
        parties = {}
        for name, options in case.parties.items():  # one after the other: they would take each other's cores
            parties[name] = stack.enter_context(_Party(case, workers, options))
        for _ in range(rounds):
            for name, party in parties.items():
                before = party.processor_seconds()
                turns[name].append(party.turn(case.discarded + case.steps)[case.discarded :])
                used[name].append((party.processor_seconds() - before) / workers / (case.discarded + case.steps + 1))
    steps = {name: [float(np.median(turn)) for turn in of] for name, of in turns.items()}
    ratios = {
        name: summary([mine / stock for mine, stock in zip(of, steps["stock"], strict=True)])
        for name, of in steps.items()
        if name != "stock"
    }
    return {
        "step_ms": {name: summary([1e3 * s for s in of], 2) for name, of in steps.items()},
        "processor_ms_per_step_and_worker": {name: round(1e3 * float(np.mean(of)), 2) for name, of in used.items()},
        "ratios": ratios,
    }


class _Party:
    """One training that goes on only while it is its turn."""

    def __init__(self, case: Case, workers: int, options: dict[str, str]) -> None:
        self._cluster = LocalCluster(workers)
        folder = Path(self._cluster.directory)
        self._file, self._allowed = folder / "turns", 0
        self._stamps = [Stamps(jobs.stamps_of(folder, task)) for task in range(workers)]
        model = {"layers": case.layers, "width": case.width, "batch": BATCH}
        given = {**model, **options, "folder": str(folder), "turns": str(self._file)}
        try:
            self._allow(case.warm_up)
            started = [self._cluster.start_worker(task, jobs.train, given) for task in range(workers)]
            self._pids = [process.forked.pid for process in started]
            self._wait(START_SECONDS)
        except BaseException:
            self._cluster.close()
            raise

    def __enter__(self) -> _Party:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def turn(self, steps: int) -> np.ndarray:
        """Does so many steps; their durations in seconds (the first one is left out: it has the waiting in it)."""
        self._allow(self._allowed + steps + 1)
        self._wait(TURN_SECONDS)
        return np.diff(self._stamps[0].read()["time"][-(steps + 1) :])

    def processor_seconds(self) -> float:
        """Processor time that all workers have used so far, in steps of the system's clock tick (10 ms)."""
        ticks = 0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime, stime
        return ticks / os.sysconf("SC_CLK_TCK")

    def _allow(self, steps: int) -> None:
        self._allowed = steps
        temporary = self._file.with_suffix(".partial")
        temporary.write_text(str(steps))
        os.replace(temporary, self._file)

    def _wait(self, seconds: float) -> None:
        self._cluster.wait_until(
            lambda: all(stamps.count() >= self._allowed for stamps in self._stamps),
            f"{self._allowed} steps are done",
            seconds,
        )
