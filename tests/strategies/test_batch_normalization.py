"""BatchNormalization: statistics are the mean over the members, the same bits everywhere, moved once per step."""

import numpy as np

from tests.strategies import jobs
from tests.strategies.checks import assert_same_bits
from tests.strategies.models import EPOCHS, STEPS
from tfdist.testing.faults import kill

ROW = np.array([1.0, -2.0, 3.0, 0.5])
MOMENTUM = 0.9


def test_a_step_that_was_done_again_has_moved_the_statistics_once(cluster_of):
    """All rows are alike, so the moving statistics say how many steps moved them."""
    cluster = cluster_of(3, faults=[kill(1, step=5), kill(2, step=13)])
    results = cluster.run(jobs.train, {"kind": "batchnorm"}, timeout=90)
    cluster.assert_all_fired()
    assert list(results.values) == [0]
    left = MOMENTUM ** (EPOCHS * STEPS)
    weights = results.values[0]["weights"]
    np.testing.assert_allclose(weights["sequential/norm/moving_mean"], ROW * (1 - left), rtol=1e-9)
    np.testing.assert_allclose(weights["sequential/norm/moving_variance"], left * np.ones(4), rtol=1e-9)


def test_all_members_end_with_the_same_bits(cluster_of):
    options = {"kind": "batchnorm, other rows", "wait": {"12": 3}}
    cluster = cluster_of(3, faults=[kill(1, step=5)], restart=True)
    results = cluster.run(jobs.train, options, timeout=90)
    cluster.assert_all_fired()
    assert sorted(results.values) == [0, 1, 2]
    assert_same_bits(results)
    assert results.values[0]["iterations"] == EPOCHS * STEPS


def test_statistics_are_the_mean_over_the_members_weighted_by_their_rows(cluster_of):
    """One step of 5 rows on two members, 3 and 2: the mean of their means by rows is that of all rows."""
    options = {"kind": "batchnorm, other rows", "samples": 5, "epochs": 1, "shuffle": False}
    results = cluster_of(2).run(jobs.train, options, timeout=60)
    assert_same_bits(results)
    rows = np.random.RandomState(2).randn(90, 4)[:5]
    expected = (1 - MOMENTUM) * (3 * rows[:3].mean(0) + 2 * rows[3:].mean(0)) / 5
    np.testing.assert_allclose(results.values[0]["weights"]["sequential/norm/moving_mean"], expected, rtol=1e-9)
    spread = (1 - MOMENTUM) * (3 * rows[:3].var(0) + 2 * rows[3:].var(0)) / 5
    np.testing.assert_allclose(
        results.values[0]["weights"]["sequential/norm/moving_variance"], MOMENTUM + spread, rtol=1e-9
    )
