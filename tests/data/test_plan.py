"""The plan: every sample once an epoch, in an order that depends on nothing but seed and epoch."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.data.permutation import SMALL, permute
from tfdist.data.plan import Plan
from tfdist.errors import ConfigError


def order(n: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return permute(np.arange(n), n, seed, epoch)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 5000) | st.integers(SMALL - 2, SMALL + 2), seed=st.integers(), epoch=st.integers(0, 10**6))
def test_an_epoch_has_each_sample_once(n, seed, epoch):
    assert np.array_equal(np.sort(order(n, seed, epoch)), np.arange(n))


@settings(max_examples=20, deadline=None)
@given(n=st.integers(5000, 200_000), seed=st.integers(0, 2**64))
def test_larger_epochs_have_each_sample_once_too(n, seed):
    assert np.array_equal(np.bincount(order(n, seed), minlength=n), np.ones(n))


@pytest.mark.parametrize("n", [10**9, 2**31, 2**40 + 1, 2**62])
def test_a_part_of_a_huge_order_has_no_position_twice_and_none_outside(n):
    ranks = np.unique(np.concatenate([np.arange(20_000), n - 1 - np.arange(20_000)]))
    positions = permute(ranks, n, 7, 3)
    assert len(np.unique(positions)) == len(ranks)
    assert positions.min() >= 0 and positions.max() < n


@pytest.mark.parametrize("n", [1000, 100_000])
def test_epochs_and_seeds_have_orders_of_their_own(n):
    orders = [order(n, seed, epoch) for seed in range(4) for epoch in range(4)]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            # Two random orders agree in one place on average; 12 have a probability of 1e-9.
            assert np.count_nonzero(one == other) < 12


@pytest.mark.parametrize("n", [5, 4096, 5000, 50_000])
def test_each_place_gets_each_sample_equally_often_over_the_epochs(n):
    epochs, bins = 2000, 5
    firsts = np.concatenate(
        [permute(np.array([0, 1, n - 1]), n, 11, epoch)[:, None] for epoch in range(epochs)], axis=1
    )
    for place in firsts:
        counts = np.bincount(place * bins // n, minlength=bins)
        chi_square = ((counts - epochs / bins) ** 2 / (epochs / bins)).sum()
        assert chi_square < 29, counts  # 4 degrees of freedom: probability 1e-5


@pytest.mark.parametrize("n", [4000, 5000, 65_536, 10**9])
def test_neighbours_in_the_order_are_not_neighbours_in_the_source(n):
    positions = permute(np.arange(4000), n, 5, 0).astype(np.float64)
    for lag in (1, 2, 16, 256):
        # The standard error of a correlation of 4000 pairs is 0.016.
        assert abs(np.corrcoef(positions[:-lag], positions[lag:])[0, 1]) < 0.08


def test_all_orders_of_three_samples_come_up():
    assert len({tuple(order(3, 0, epoch)) for epoch in range(100)}) == 6


def test_the_order_is_the_one_of_earlier_releases():
    # A run that is resumed with a later release must go on in the same order: these numbers never change.
    assert order(10, seed=1, epoch=2).tolist() == [4, 9, 3, 2, 1, 8, 6, 5, 0, 7]
    assert permute(np.arange(5), 10**9, 1, 2).tolist() == [329550039, 177070397, 97442886, 905746415, 425471786]


@given(
    n=st.integers(1, 300),
    batch=st.integers(1, 64),
    shuffle=st.booleans(),
    epoch=st.integers(0, 5),
    cut=st.floats(0, 1),
)
def test_the_batches_of_an_epoch_cut_anywhere_hold_each_sample_once(n, batch, shuffle, epoch, cut):
    plan = Plan(n, batch, shuffle)
    parts = []
    for step in range(plan.steps_per_epoch):
        middle = round(cut * plan.rows(step))
        parts += [plan.positions(epoch, step, 0, middle), plan.positions(epoch, step, middle)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert all(part.dtype == np.int64 for part in parts)


def test_without_shuffle_the_order_is_the_source_s():
    plan = Plan(10, 4, shuffle=False)
    assert [plan.positions(3, step).tolist() for step in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_drop_remainder_leaves_out_the_short_batch_and_others_in_each_epoch():
    plan = Plan(10, 4, drop_remainder=True)
    assert plan.steps_per_epoch == 2 and plan.rows(1) == 4
    left_out = [
        frozenset(range(10)) - {int(p) for step in range(2) for p in plan.positions(epoch, step)} for epoch in range(9)
    ]
    assert len(set(left_out)) > 1


def test_fewer_samples_than_a_batch_are_one_short_batch():
    plan = Plan(3, 8)
    assert plan.steps_per_epoch == 1 and plan.rows(0) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 0}, "num_samples = 0: must be at least 1"),
        ({"num_samples": 10.0}, "num_samples = 10.0: must be an integer"),
        ({"global_batch_size": 0}, "global_batch_size = 0"),
        ({"global_batch_size": True}, "must be an integer, not bool"),
        ({"seed": "0"}, "seed = '0': must be an integer"),
        ({"num_samples": 3, "drop_remainder": True}, "global batch of at most 3"),
    ],
)
def test_what_can_t_be_planned_is_refused_with_the_remedy(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Plan(**{"num_samples": 10, "global_batch_size": 4, **arguments})


@pytest.mark.parametrize(
    "wanted", [(-1, 0, 0, 1), (0, 3, 0, 1), (0, -1, 0, 1), (0, 2, 0, 3), (0, 0, 3, 2), (0, 0, -1, 2)]
)
def test_rows_that_do_not_exist_are_refused(wanted):
    with pytest.raises(ValueError, match=r"must be|not within"):
        Plan(10, 4).positions(*wanted)


def test_a_plan_can_t_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(10, 4).seed = 1  # type: ignore[misc]
