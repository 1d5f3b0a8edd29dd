"""The measured cost of saves: blocked time and slower steps, against the usual step."""

import pytest

from tfdist.checkpoint.cost import CostOfSaves
from tfdist.checkpoint.interval import IntervalPolicy, interval


def told(cost, steps, now=0.0):
    """Steps of these durations; returns when they have ended."""
    if not now:
        cost.step(now, False)
    for seconds, saving in steps:
        now += seconds
        cost.step(now, saving)
    return now


def test_steps_that_are_slower_while_a_save_is_written_are_its_cost():
    cost = CostOfSaves()
    now = told(cost, [(1.0, False)] * 10)
    assert cost.measured.saves == 0 and cost.measured.observed_seconds == pytest.approx(10.0)
    cost.held_up(0.25)
    told(cost, [(1.5, True), (1.0, True), (1.0, False)], now)
    assert cost.measured.saves == 1
    assert cost.measured.cost_seconds == pytest.approx(0.25 + 0.5)


def test_going_on_from_a_checkpoint_counts_as_a_failure_and_keeps_what_was_measured():
    first = CostOfSaves()
    told(first, [(1.0, False)] * 5)
    again = CostOfSaves(first.facts())
    assert again.measured.failures == 1 and again.measured.observed_seconds == pytest.approx(5.0)
    more, _ = interval(first.measured, IntervalPolicy(shortest=0.001))
    fewer, _ = interval(again.measured, IntervalPolicy(shortest=0.001))
    assert fewer < more
