"""Pure decisions of the step protocol: who sends its state to whom, and who waits for the wrong thing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.strategies.alignment import decide
from tfdist.strategies.progress import Progress, plain
from tfdist.strategies.waiting import apart, others
from tfdist.tf_config import Task


def identity(clock: int, digest: int = 1, fresh: bool = False) -> dict[str, Any]:
    return {"clock": clock, "digest": digest, "fresh": fresh}


def worker(index: int) -> Task:
    return Task("worker", index)


W0, W1, W2 = (worker(i) for i in range(3))

CASES = [
    # all alike: nobody is behind
    ({W0: identity(7), W1: identity(7)}, W0, set(), ()),
    # one member had committed the step alone
    ({W0: identity(7), W1: identity(8, 2), W2: identity(7)}, W1, {W0, W2}, ()),
    # a joiner never is the source, however far it says it is
    ({W0: identity(9, 3, fresh=True), W1: identity(4)}, W1, {W0}, ()),
    # a joiner whose state happens to look the same is brought up all the same (its callbacks are not)
    ({W0: identity(4), W1: identity(4, fresh=True)}, W0, {W1}, ()),
    # founders: the lowest task's initial values
    ({W0: identity(0, 5, fresh=True), W1: identity(0, 6, fresh=True)}, W0, {W1}, ()),
    ({W0: identity(0, 5, fresh=True), W1: identity(0, 5, fresh=True)}, W0, set(), ()),
    # the same step, another state: that is a fault of somebody's code, and it is told
    ({W0: identity(7), W1: identity(7, 2)}, W0, {W1}, (W1,)),
]


@pytest.mark.parametrize(("identities", "source", "behind", "diverged"), CASES)
def test_the_most_advanced_member_that_holds_the_state_is_the_source(
    identities: dict[Task, dict[str, Any]], source: Task, behind: set[Task], diverged: tuple[Task, ...]
) -> None:
    decision = decide(identities)
    assert (decision.source, set(decision.behind), decision.diverged) == (source, behind, diverged)


@given(
    st.dictionaries(
        st.integers(0, 9).map(worker),
        st.builds(identity, st.integers(0, 5), st.integers(0, 2), st.booleans()),
        min_size=1,
    )
)
def test_a_source_is_never_behind_and_never_fresh_where_somebody_is_not(identities: dict[Task, dict[str, Any]]) -> None:
    decision = decide(identities)
    assert decision.source not in decision.behind
    holders = [i for i in identities.values() if not i["fresh"]]
    if holders:
        assert not identities[decision.source]["fresh"]
        assert identities[decision.source]["clock"] == max(i["clock"] for i in holders)


def test_members_that_wait_for_different_things_at_one_point_are_found() -> None:
    statuses = {"worker/1": {"facts": {"doing": "step 8", "clock": 7}}}
    sentence = apart("meeting 'call 2' 8", 7, others(statuses, ["worker/1", "worker/2"]))
    assert sentence is not None and "worker/1" in sentence and "step 8" in sentence


@pytest.mark.parametrize("facts", [{"doing": "step 8", "clock": 6}, {"doing": "in user code", "clock": 7}])
def test_a_member_that_is_behind_or_in_user_code_is_only_late(facts: dict[str, Any]) -> None:
    assert apart("meeting 'call 2' 8", 7, others({"worker/1": {"facts": facts}}, ["worker/1"])) is None


def test_progress_travels_as_json() -> None:
    sent = Progress(clock=5, committed=3, call=2, epoch=1, step=2, logs={"loss": 0.5}, fresh=False)
    received = Progress()
    received.adopt(sent.facts())
    assert received == sent
    assert plain({"a": [1, 2.0], "b": None}) == {"a": [1, 2.0], "b": None}
