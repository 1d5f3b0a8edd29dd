"""The store is away while `fit` runs: training goes on; a change of members waits until it is back.

TFDIST_STORE_AWAY_SECONDS (default 8, which is four times its leases) says for how long.
"""

import os
import time

import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_training
from tests.strategies.test_loss import last_roster
from tfdist.testing.faults import slow

AWAY = float(os.environ.get("TFDIST_STORE_AWAY_SECONDS", "8"))
PACE = 0.1  # seconds that a step takes at least
EPOCHS_AWAY = round(AWAY / PACE / 8) + 4


@pytest.mark.timeout(AWAY * 3 + 120)
@pytest.mark.parametrize("loss", [False, True], ids=["nothing happens", "a worker dies meanwhile"])
def test_training_goes_on_without_the_store(cluster_of, plain, tmp_path, loss):
    folder, hidden = tmp_path / "store", tmp_path / "hidden"
    folder.mkdir()
    pace = [slow(task, point="step_begin", seconds=PACE) for task in range(3)]
    cluster = cluster_of(3, faults=pace, store=f"sqlite:///{folder}/run.db")
    options = {"epochs": EPOCHS_AWAY}
    for task in range(3):
        cluster.start_worker(task, jobs.train, options)
    cluster.wait_for_event("formation", count=3)
    before = time.monotonic()
    folder.rename(hidden)
    if loss:
        time.sleep(AWAY / 2)  # the fault lies in the middle of it
        cluster.kill(1)
    time.sleep(max(0.0, AWAY - (time.monotonic() - before)))
    running = [process.task for process in cluster.results().processes if process.code is None]
    assert running == ([0, 2] if loss else [0, 1, 2])
    assert len(cluster.events("formation")) == 3  # nobody has changed anything while it was away
    hidden.rename(folder)
    results = cluster.wait(AWAY * 2 + 60)
    assert_same_training(results, plain(**options), uses=EPOCHS_AWAY)
    assert last_roster(results) == ([0, 2] if loss else [0, 1, 2])
    assert all("the store is back" in results.last(task).output for task in (0, 2))
