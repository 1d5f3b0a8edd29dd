"""What a process knows is put together from views, verdicts and notices; no store and no network is needed."""

from tfdist.membership import detection
from tfdist.membership.detection import Verdict
from tfdist.membership.keys import StoreView
from tfdist.membership.policy import RosterPolicy, decide_next
from tfdist.membership.roster import Member, Roster
from tfdist.membership.run_state import RunState
from tfdist.tf_config import Task


def member(index, life="a"):
    return Member(Task("worker", index), f"{life}{index}" * 4, "host", 2222, 4000 + index)


ME, OTHER = member(0), member(1)


def made():
    """Returns (state, what it told, the verdicts to set)."""
    told: list[tuple[int, str]] = []
    verdicts: dict[Member, Verdict] = {}
    living = Verdict(detection.LIVING, "connected")
    state = RunState(
        ME, (ME.task,), RosterPolicy(), lambda m: verdicts.get(m, living), lambda g, s: told.append((g, s))
    )
    return state, told, verdicts


def roster(generation, *members, lost=()):
    return Roster(generation, tuple(sorted(members, key=lambda m: m.task)), "test", lost)


def test_an_older_view_never_replaces_a_newer_one():
    state, _, _ = made()
    state.take_view(StoreView(roster(2, ME), 9), 0.0)
    state.take_view(StoreView(roster(1, ME, OTHER), 8), 0.0)
    state.take_view(StoreView(), 0.0)
    assert state.store.roster == roster(2, ME)


def test_a_member_that_was_lost_three_times_is_held_back():
    state, _, _ = made()
    again = member(1, "b")
    generation = 1
    for _ in range(3):
        state.take_view(StoreView(roster(generation, ME, OTHER), generation), float(generation))
        lost = roster(generation + 1, ME, lost=(OTHER.task,))
        state.take_view(StoreView(lost, generation + 1, {again: 1}), float(generation + 1))
        generation += 2
    assert state.requests.join_waiting == ()
    made_roster, reason = decide_next(6.0, state.policy_view(6.0), state.policy)
    assert made_roster is None and "worker/1 was removed 3 times in 600 s, waits 10.0 s more" in reason
    state.take_view(state.store, 17.0)
    assert state.requests.join_waiting == (again,)


def test_a_loss_is_told_once_and_not_if_a_newer_roster_planned_it():
    lost = Verdict(detection.LOST, "connection closed")
    state, told, verdicts = made()
    state.watch(roster(1, ME, OTHER))
    verdicts[OTHER] = lost
    state.take_verdict(OTHER, lost)
    state.take_verdict(OTHER, lost)
    assert told == [(1, "worker/1 lost (connection closed)")] and state.lost == {OTHER.task: "connection closed"}

    state, told, verdicts = made()
    state.watch(roster(1, ME, OTHER))
    state.take_asking(ME, 1)
    state.take_view(StoreView(roster(2, ME), 2), 0.0)
    state.take_verdict(OTHER, lost)
    assert told == []


def test_a_loss_that_came_before_the_roster_is_watched_is_told_then():
    state, told, verdicts = made()
    verdicts[OTHER] = Verdict(detection.LOST, "connection closed")
    state.watch(roster(1, ME, OTHER))
    assert told == [(1, "worker/1 lost (connection closed)")]


def test_a_lost_and_a_silent_member_are_counted_apart():
    state, _, verdicts = made()
    verdicts[OTHER] = Verdict(detection.LOST, "no heartbeat for 5.2 s", silent=True)
    assert state.silent_losses(roster(1, ME, OTHER)) == 1
    verdicts[OTHER] = Verdict(detection.LOST, "connection closed")
    assert state.silent_losses(roster(1, ME, OTHER)) == 0
