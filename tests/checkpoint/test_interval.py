"""The interval between saves follows what saves cost and how often something fails."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.checkpoint.interval import (
    PRIOR_SECONDS,
    IntervalPolicy,
    IntervalState,
    Measured,
    daly,
    due,
    interval,
    time_between_failures,
)
from tfdist.errors import ConfigError

WIDE = IntervalPolicy(shortest=0.001, longest=1e9)


def lost(every: float, cost: float, between: float) -> float:
    """Expected share of time that is lost (Daly's model, equation 20, without the time of a restart)."""
    return between * (math.exp((every + cost) / between) - 1) / every - 1


@settings(max_examples=100, deadline=None)
@given(cost=st.floats(0.01, 100), between=st.floats(1000, 1e6))
def test_no_other_interval_loses_noticeably_less(cost, between):
    best = lost(daly(cost, between), cost, between)
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert lost(daly(cost, between) * factor, cost, between) >= best * 0.999


def test_for_cheap_saves_it_is_that_of_young():
    assert daly(0.1, 86400) == pytest.approx(math.sqrt(2 * 0.1 * 86400), rel=0.01)
    assert daly(300, 100) == 100  # a save that costs more than is gained


TABLE = [
    # (what, measured, seconds, the reason contains)
    ("nothing known", Measured(), math.sqrt(2 * PRIOR_SECONDS), "no failure in 0 s, one in another 86400 s assumed"),
    ("saves are cheap", Measured().saved(0.01).saved(0.03), math.sqrt(2 * 0.02 * PRIOR_SECONDS), "a save costs 0.02 s"),
    ("a week without failure", Measured().saved(1).observed(7 * 86400), math.sqrt(2 * 8 * 86400), "in 604800 s"),
    ("fails every hour", Measured(1, 1.0, 23, 86400.0), math.sqrt(2 * 7200), "23 failures in 86400 s"),
]


@pytest.mark.parametrize(("what", "measured", "seconds", "reason"), TABLE, ids=[row[0] for row in TABLE])
def test_the_interval_is(what, measured, seconds, reason):
    got, why = interval(measured, WIDE)
    assert got == pytest.approx(seconds, rel=0.03) and reason in why


def test_it_is_bounded_and_says_so():
    assert interval(Measured(1, 1e-6, 0, 0), IntervalPolicy())[0] == 30.0
    seconds, why = interval(Measured(1, 500.0, 0, 1e7), IntervalPolicy())
    assert seconds == 3600.0 and "bounded to 3600 s" in why


def test_more_failures_make_it_shorter():
    before = Measured().saved(1.0).observed(3600)
    assert interval(before.failed(), WIDE)[0] < interval(before, WIDE)[0]
    assert time_between_failures(before.failed())[0] == (3600 + PRIOR_SECONDS) / 2
    assert before.saved(-1.0).cost_seconds == 1.0 and before.observed(-5.0) == before  # a clock that went back


def test_a_save_is_due_when_the_interval_has_passed():
    state = IntervalState(Measured(1, 0.1, 0, 0.0), last_save=1000.0)
    seconds, _ = interval(state.measured, IntervalPolicy())
    assert due(1000.0 + seconds - 1, state, IntervalPolicy())[0] is False
    made, why = due(1000.1 + seconds, state, IntervalPolicy())
    assert made is True and f"{seconds:.0f} of {seconds:.0f} s since the last save" in why


@pytest.mark.parametrize("bad", [{"shortest": 0}, {"longest": 1.0}, {"prior_cost": math.inf}, {"shortest": True}])
def test_a_policy_out_of_bounds_is_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        IntervalPolicy(**bad)
