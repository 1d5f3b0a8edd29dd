"""Which checkpoints stay."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.checkpoint.retention import Entry, RetentionPolicy, best, removable
from tfdist.errors import ConfigError


def entries(*steps, metrics=()):
    values = dict(zip(steps, metrics, strict=False))
    return [Entry(step, values.get(step)) for step in steps]


TABLE = [
    # (what, entries, policy, protected, removed, the reason contains)
    ("nothing there", [], {}, (), [], "no checkpoint"),
    ("few enough", entries(1, 2, 3), {}, (), [], "3 checkpoints, of which the newest 3 stay"),
    ("the oldest go", entries(1, 2, 3, 4, 5), {}, (), [1, 2], "5 checkpoints, of which the newest 3 stay"),
    ("in any order", entries(5, 1, 4, 2, 3), {}, (), [1, 2], "newest 3"),
    ("all stay", entries(1, 2, 3, 4, 5), {"max_to_keep": None}, (), [], "of which all stay"),
    ("some for ever", entries(10, 15, 20, 25, 30), {"max_to_keep": 1, "keep_every": 10}, (), [15, 25],
     "multiples of 10"),
    ("step 0 is a multiple", entries(0, 1, 2), {"max_to_keep": 1, "keep_every": 10}, (), [1], "multiples"),
    ("the lowest", entries(1, 2, 3, metrics=(0.5, 0.1, 0.9)), {"max_to_keep": 1, "mode": "min"}, (), [1],
     "the best (step 2, 0.1)"),
    ("the highest", entries(1, 2, 3, metrics=(0.5, 0.1, 0.4)), {"max_to_keep": 1, "mode": "max"}, (), [2],
     "the best (step 1, 0.5)"),
    ("the newest of equal ones", entries(1, 2, 3, metrics=(0.1, 0.1, 0.9)), {"max_to_keep": 1, "mode": "min"}, (), [1],
     "step 2"),
    ("NaN is never best", entries(1, 2, 3, metrics=(math.nan, 0.7, 0.9)), {"max_to_keep": 1, "mode": "min"}, (), [1],
     "step 2"),
    ("only NaN", entries(1, 2, metrics=(math.nan, math.nan)), {"max_to_keep": 1, "mode": "max"}, (), [1],
     "newest 1 stay"),
    ("infinity counts", entries(1, 2, 3, metrics=(-math.inf, 0.7, 0.9)), {"max_to_keep": 1, "mode": "min"}, (), [2],
     "step 1"),
    ("protected", entries(1, 2, 3), {"max_to_keep": 1}, {1, 99}, [2], "1 protected"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "some", "policy", "protected", "removed", "reason"), TABLE, ids=[r[0] for r in TABLE])
def test_removed_are(what, some, policy, protected, removed, reason):
    got, why = removable(some, RetentionPolicy(**policy), protected)
    assert got == removed and reason in why


metrics = st.none() | st.floats()
policies = st.builds(
    RetentionPolicy,
    max_to_keep=st.none() | st.integers(1, 4),
    keep_every=st.none() | st.integers(1, 5),
    mode=st.sampled_from([None, "min", "max"]),
)


@settings(max_examples=200, deadline=None)
@given(
    some=st.lists(st.builds(Entry, st.integers(0, 30), metrics), max_size=8, unique_by=lambda entry: entry.step),
    policy=policies,
    protected=st.frozensets(st.integers(0, 30), max_size=3),
)
def test_what_a_rule_keeps_is_kept_and_nothing_else(some, policy, protected):
    removed, reason = removable(some, policy, protected)
    left = [entry.step for entry in some if entry.step not in removed]
    newest = sorted(entry.step for entry in some)[-(policy.max_to_keep or 99) :]
    leader = best(some, policy.mode) if policy.mode else None
    for entry in some:
        kept = (
            entry.step in newest
            or entry.step in protected
            or bool(policy.keep_every and entry.step % policy.keep_every == 0)
            or entry == leader
        )
        assert kept == (entry.step in left)
    assert removed == sorted(removed) and (not some or max(entry.step for entry in some) in left)
    assert reason
    # Doing it again removes nothing more.
    rest = [entry for entry in some if entry.step in left]
    assert removable(rest, policy, protected)[0] == []


@pytest.mark.parametrize(
    "bad", [{"max_to_keep": 0}, {"max_to_keep": True}, {"keep_every": 1.5}, {"keep_every": -1}, {"mode": "auto"}]
)
def test_a_policy_out_of_bounds_is_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        RetentionPolicy(**bad)
