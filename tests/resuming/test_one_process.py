"""`fit` in one process is killed and started again: it ends with the bits of a training that was not interrupted."""

from typing import Any

import pytest

from tests.resuming import jobs
from tests.resuming.checks import assert_same_bits
from tfdist.testing.faults import kill

# Saves of every third step. A save waits for the one before, so that one is complete when the second has begun.
KINDS: dict[str, dict[str, Any]] = {
    "arrays": {},
    "the callback first in the list": {"order": "first"},
    "elastic_dataset": {"data": "elastic"},
    "tf.data with a shuffle": {"data": "tf.data"},
    "a generator of unknown length": {"data": "generator"},
    "a repeated data set with steps_per_epoch": {"data": "repeated"},
    "two fit calls, in the second": {"fits": 2, "epochs": 1},
    "two fit calls over tf.data": {"fits": 2, "epochs": 1, "data": "tf.data"},
    "several steps per execution": {"steps_per_execution": 4},
    "validation": {"validation": True},
    "each epoch": {"save": "epoch"},
    "each millisecond": {"save": {"milliseconds": 1}},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_killed_training_goes_on_where_it_was_saved(cluster_of, uninterrupted, tmp_path, name):
    options = KINDS[name]
    step = 24 if name == "each epoch" else 14  # batch 4 of epoch 2 or 1
    cluster = cluster_of(1, faults=[kill(0, step=step)], restart=True)
    given = {"checkpoint": {"if_busy": "wait"}, **options, "directory": str(tmp_path / "ckpt")}
    results = cluster.run(jobs.train, given, timeout=90)
    cluster.assert_all_fired()
    expected = uninterrupted(**{"checkpoint": {"if_busy": "wait"}, **options})
    assert_same_bits(results.values[0], expected)
    (event,) = results.events("resumed")
    done_again = len(results.values[0]["batches"])
    assert event["numbers"]["step"] > 0
    assert done_again < len(expected["batches"])
