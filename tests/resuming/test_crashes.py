"""kill -9 at random places, again and again: the end is that of a training that nobody has interrupted."""

from __future__ import annotations

import os
import random

import pytest

from tests.resuming import jobs
from tests.resuming.checks import assert_same_bits
from tfdist.checkpoint.store import CheckpointStore
from tfdist.testing.faults import kill

LIVES = int(os.environ.get("TFDIST_CRASHES", "50"))
EPOCHS = 12
# Where it dies: in a snapshot, a write, the commit, the retention, a resume, a step; and after how many times of it.
PLACES = [
    ("save_begin", 4),
    ("checkpoint_write", 60),
    ("checkpoint_commit", 6),
    ("checkpoint_prune", 3),
    ("resume", 1),
    ("step_begin", 12),
]


@pytest.mark.timeout(LIVES * 12 + 120)
def test_any_number_of_crashes_changes_nothing(cluster_of, uninterrupted, tmp_path):
    seed = int(os.environ.get("TFDIST_CRASHES_SEED", random.randrange(10**6)))
    print(f"TFDIST_CRASHES_SEED={seed}")
    draw = random.Random(seed)
    faults = []
    for life in range(LIVES):
        point, most = draw.choice(PLACES)
        faults.append(kill(0, point=point, nth=draw.randint(1, most), incarnation=life))
    cluster = cluster_of(1, faults=faults, restart=LIVES + 1)
    directory = tmp_path / "ckpt"
    options = {"epochs": EPOCHS, "save": 2, "checkpoint": {"if_busy": "wait"}}
    cluster.start_worker(0, jobs.train, {**options, "directory": str(directory)})
    store, seen = CheckpointStore(directory), 0

    def over() -> bool:
        nonlocal seen
        if directory.is_dir() and (newest := store.newest()) is not None:
            assert newest[0].step >= seen, "an older state than before"
            seen = newest[0].step
        else:
            assert not seen, "there was a valid checkpoint, and now there is none"
        return not cluster.running()

    cluster.wait_until(over, "the training is complete", timeout=LIVES * 10 + 60)
    results = cluster.wait(10)
    died = len(cluster.fired())
    print(f"{died} of {LIVES} lives ended early")
    assert died >= LIVES / 2, "too few crashes to prove anything"
    assert_same_bits(results.values[0], uninterrupted(**options))
