"""Random kills, freezes and SIGTERMs for a while: the end is that of plain training.

TFDIST_CHAOS_SECONDS (default 30), TFDIST_CHAOS_PACE (seconds between faults, default "1-3") and TFDIST_CHAOS_SEED
(default: drawn) choose another run; the seed is printed.
"""

import os
import random
import time

import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_training
from tests.strategies.models import STEPS
from tfdist.testing.faults import slow

SECONDS = float(os.environ.get("TFDIST_CHAOS_SECONDS", "30"))
BETWEEN = tuple(float(s) for s in os.environ.get("TFDIST_CHAOS_PACE", "1-3").split("-"))
WORKERS = 3
PACE = 0.05  # seconds that a step takes at least
MANY = 1000  # replacements of one task


@pytest.mark.timeout(SECONDS * 4 + 300)
def test_random_faults_change_nothing(cluster_of, plain):
    seed = int(os.environ.get("TFDIST_CHAOS_SEED", random.randrange(10**6)))
    print(f"TFDIST_CHAOS_SEED={seed}")
    epochs = max(2, round(SECONDS / (2 * PACE * STEPS)))
    pace = [slow(task, point="step_begin", seconds=PACE, incarnation=None) for task in range(WORKERS)]
    cluster = cluster_of(WORKERS, faults=pace, restart=MANY)
    options = {"epochs": epochs}
    expected = plain(timeout=SECONDS / 2 + 90, **options)  # first: a fault of it is not found half an hour later
    for task in range(WORKERS):
        cluster.start_worker(task, jobs.train, options)
    cluster.wait_for_event("formation", count=WORKERS)
    done = Chaos(cluster, random.Random(seed)).run(SECONDS)
    results = cluster.wait(SECONDS * 3 + 60)
    print(done)
    assert len(done) >= SECONDS / (4 * BETWEEN[1]), "too few faults to prove anything"
    assert results.codes == dict.fromkeys(range(WORKERS), 0)
    assert_same_training(results, expected, uses=epochs)


class Chaos:
    """Does something to a worker every 1 to 3 seconds, as long as another one that holds the state is left alone."""

    def __init__(self, cluster, draw):
        self.cluster, self.draw = cluster, draw
        self.touched: set[int] = set()  # process ids that were killed, or asked to leave
        self.thaws: dict[int, float] = {}  # task -> when

    def run(self, seconds):
        end, done, due = time.monotonic() + seconds, [], 0.0
        while time.monotonic() < end and not self._over():
            now = time.monotonic()
            for task in [task for task, when in self.thaws.items() if when <= now]:
                self.thaw(task)
            if now >= due:
                due = now + self.draw.uniform(*BETWEEN)
                done += self._strike(now)
            time.sleep(0.05)
        for task in list(self.thaws):
            self.thaw(task)
        return done

    def thaw(self, task):
        del self.thaws[task]
        self.cluster.thaw(task)

    def _over(self):
        return any(process.code == 0 for process in self.cluster.results().processes)

    def _strike(self, now):
        processes = self.cluster.results().processes
        living = {process.pid: process for process in processes if process.code is None}
        formations = self.cluster.events("formation")
        newest = max(event["numbers"]["generation"] for event in formations)
        holders = {event["pid"] for event in formations if event["numbers"]["generation"] == newest}
        frozen = {pid for pid, process in living.items() if process.task in self.thaws}
        left_alone = (holders & living.keys()) - self.touched - frozen
        victims = [
            process for pid, process in living.items() if left_alone - {pid} and pid not in self.touched | frozen
        ]
        if not victims:
            return []
        victim = self.draw.choice(victims)
        action = self.draw.choice(["kill", "freeze", "terminate"])
        getattr(self.cluster, action)(victim.task)
        if action == "freeze":
            self.thaws[victim.task] = now + self.draw.uniform(0.3, 3.0)
        else:
            self.touched.add(victim.pid)
        return [f"{action} {victim.task}.{victim.incarnation}"]
