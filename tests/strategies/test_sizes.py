"""Fewer samples than a batch, fewer rows than members: those without rows take part all the same."""

import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_training


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (3, {"batch": 2, "samples": 21}),  # one member of three is idle, two in the last step of an epoch
        (3, {"samples": 7}),  # less than one global batch
        (2, {"samples": 1, "data": "tf.data", "shuffle": False}),
    ],
)
def test_members_without_rows_take_part(cluster_of, plain, workers, options):
    results = cluster_of(workers).run(jobs.train, options, timeout=60)
    assert sorted(results.values) == list(range(workers))
    assert_same_training(results, plain(**options))
