"""Shares: exact, fair and the same on every member."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.data.shares import bounds, shares

weights_lists = st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda weights: sum(weights) > 0)


@pytest.mark.parametrize(
    ("rows", "weights", "expected"),
    [
        (16, (1, 1, 1), (6, 5, 5)),
        (16, (1.0, 1.0), (8, 8)),
        (2, (1, 1, 1), (1, 1, 0)),  # fewer rows than members: the first ones serve
        (1, (1, 3), (0, 1)),
        (0, (1, 1), (0, 0)),
        (5, (0, 1), (0, 5)),  # weight 0: in the roster, but computes nothing
        (64, (1, 0.5, 0.5), (32, 16, 16)),
        (10, (0.1, 0.2, 0.7), (1, 2, 7)),
        (3, (5e-324, 5e-324), (2, 1)),  # the smallest floats there are
    ],
)
def test_rows_are_divided_by_weight_and_ties_go_to_the_lower_rank(rows, weights, expected):
    assert shares(rows, weights) == expected


@given(rows=st.integers(0, 10**7), weights=weights_lists)
def test_shares_sum_to_the_rows_and_are_within_one_of_their_part(rows, weights):
    counts = shares(rows, weights)
    assert sum(counts) == rows and min(counts) >= 0
    total = math.fsum(weights)
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - rows * (weight / total)) < 1 + 1e-6
        assert weight > 0 or count == 0


@given(rows=st.integers(0, 1000), members=st.integers(1, 40), scale=st.floats(1e-3, 1e3))
def test_equal_weights_give_equal_shares_and_never_more_to_a_higher_rank(rows, members, scale):
    counts = shares(rows, [scale] * members)
    assert max(counts) - min(counts) <= 1
    assert list(counts) == sorted(counts, reverse=True)


@given(rows=st.integers(0, 1000), weights=weights_lists)
def test_bounds_lie_end_to_end(rows, weights):
    edges = [bounds(rows, weights, rank) for rank in range(len(weights))]
    assert edges[0][0] == 0 and edges[-1][1] == rows
    assert all(before[1] == after[0] for before, after in pairwise(edges))


@pytest.mark.parametrize("weights", [(), (0.0, 0.0), (-1.0, 2.0), (math.inf,), (1.0, math.nan)])
def test_weights_that_divide_nothing_are_refused(weights):
    with pytest.raises(ValueError, match="weights must"):
        shares(4, weights)


def test_a_rank_outside_the_roster_is_refused():
    with pytest.raises(ValueError, match=r"rank must be in \[0, 2\)"):
        bounds(4, (1, 1), 2)
