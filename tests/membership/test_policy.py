"""The next roster is decided by rules that hold for every view."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.errors import ConfigError, StoreError
from tfdist.membership.policy import BackOff, RosterPolicy, View, admissible, among_ourselves, decide_next
from tfdist.membership.roster import Member, Roster, dump, load, member_from_json, roster_from_json
from tfdist.tf_config import Task


def task(index):
    return Task("worker", index)


def member(index, life="a"):
    return Member(task(index), f"{life}{index}" * 4, f"host{index}", 2222, 4000 + index)


def roster(*indices, generation=3):
    return Roster(generation, tuple(member(i) for i in indices), "test")


def tasks(*indices):
    return tuple(task(i) for i in indices)


ALL = tasks(0, 1, 2)

TABLE = [
    # (what, view, policy, generation and tasks of the result or None, the reason contains)
    ("first waits for all", View(None, ALL, (member(0), member(1))), {}, None, "worker/2 missing, 2 of 3 ready"),
    ("first starts with all", View(None, ALL, (member(0), member(1), member(2))), {}, (1, 0, 1, 2), "start with 3"),
    ("first starts after start_timeout", View(None, ALL, (member(0), member(2)), waiting_since=-400), {}, (1, 0, 2),
     "without worker/1 after 400 s"),
    ("first needs min_workers", View(None, ALL, (member(2),), waiting_since=-400), {"min_workers": 2}, None,
     "1 ready, below min_workers = 2"),
    ("first with fewer places than tasks", View(None, ALL, (member(0), member(1))), {"max_workers": 2}, (1, 0, 1), "2"),
    ("one lost", View(roster(0, 1, 2), lost={task(1): "connection closed"}), {}, (4, 0, 2),
     "worker/1 lost (connection closed); 3 -> 2 members"),
    ("lost and joins", View(roster(0, 1, 2), ready=(member(3),), lost={task(1): "connection closed"}), {}, (4, 0, 2, 3),
     "worker/1 lost (connection closed); worker/3 joins; 3 -> 3 members"),
    ("leaves", View(roster(0, 1), leaving=frozenset(tasks(0))), {}, (4, 1), "worker/0 leaves; 2 -> 1 members"),
    ("a living one is not replaced", View(roster(0, 1), ready=(member(1, "b"),)), {}, None, "former incarnation"),
    ("a lost one is replaced", View(roster(0, 1), ready=(member(1, "b"),), lost={task(1): "x"}), {}, (4, 0, 1),
     "2 -> 2"),
    ("a lost incarnation is not taken again", View(roster(0, 1), ready=(member(1),), lost={task(1): "x"}), {}, (4, 0),
     "2 -> 1"),
    ("no room", View(roster(0, 1), ready=(member(2),)), {"max_workers": 2}, None, "2 members are the most"),
    ("held back", View(roster(0, 1), ready=(member(2),), held={task(2): "worker/2 waits 9 s"}), {}, None, "waits 9 s"),
    ("below min", View(roster(0, 1), lost={task(1): "x"}), {"min_workers": 2}, None,
     "1 members, below min_workers = 2"),
    ("nobody stays", View(roster(0, 1), ready=(member(2),), leaving=frozenset(tasks(0, 1))), {}, None, "no member"),
    ("nothing", View(roster(0, 1)), {}, None, "nothing changes"),
    ("asked just now", View(roster(0, 1), asked_at=-0.1, asked_by=frozenset(tasks(0, 1))), {}, None, "yet"),
    ("all asked a while ago", View(roster(0, 1), asked_at=-0.3, asked_by=frozenset(tasks(0, 1))), {}, (4, 0, 1),
     "same"),
    ("one asked", View(roster(0, 1), asked_at=-0.3, asked_by=frozenset(tasks(0))), {}, None, "0.3 of 5.0 s"),
    ("one asked long ago", View(roster(0, 1), asked_at=-6, asked_by=frozenset(tasks(0))), {}, (4, 0, 1), "same"),
    ("all gone", View(roster(0, 1), tasks(0), (member(0, "b"),), gone=True), {}, (4, 0), "starts anew"),
]  # fmt: skip


@pytest.mark.parametrize("what, view, policy, expected, reason", TABLE, ids=[row[0] for row in TABLE])
def test_the_next_roster_is(what, view, policy, expected, reason):
    made, why = decide_next(0.0, view, RosterPolicy(**policy))
    got = made and (made.generation, *(m.task.index for m in made.members))
    assert got == expected and reason in why
    assert made is None or made.reason == why


indices = st.frozensets(st.integers(0, 5))


@settings(max_examples=300, deadline=None)
@given(
    present=st.frozensets(st.integers(0, 5), min_size=1),
    first=st.booleans(),
    ready=st.lists(st.tuples(st.integers(0, 7), st.sampled_from("ab")), max_size=8, unique=True),
    lost=indices,
    leaving=indices,
    low=st.integers(1, 4),
    room=st.integers(0, 4) | st.none(),
    waited=st.sampled_from([0.0, 1000.0]),
)
def test_every_roster_keeps_the_rules(present, first, ready, lost, leaving, low, room, waited):
    current = None if first else roster(*sorted(present))
    view = View(
        current,
        tasks(0, 1, 2),
        tuple(member(i, life) for i, life in ready),
        {task(i): "gone" for i in lost} if current else {},
        frozenset(tasks(*leaving)) if current else frozenset(),
        waiting_since=-waited,
    )
    policy = RosterPolicy(low, None if room is None else low + room)
    made, reason = decide_next(0.0, view, policy)
    assert reason
    if made is None:
        return
    assert made.generation == (current.generation + 1 if current else 1)
    assert len(made.members) >= policy.min_workers
    if current:
        assert set(current.members) & set(made.members), "a member of the predecessor is in it"
        assert not any(m in made for m in current.members if m.task.index in lost | leaving)
        kept = [m for m in current.members if m.task.index not in lost | leaving]
        assert all(m in made for m in kept), "nobody who lives and stays is pushed out"
        assert len(made.members) <= max(policy.max_workers or 99, len(kept))
    else:
        assert len(made.members) <= (policy.max_workers or 99)
    joined = [m for m in made.members if not current or m not in current]
    assert all(m in view.ready for m in joined)
    assert roster_from_json(load("roster", dump(made.to_json())), "roster") == made


def test_who_may_join_is_the_same_for_announcing_and_deciding():
    view = View(roster(0, 1), ready=(member(1, "b"), member(2), member(3)))
    joiners, waiting = admissible(view, RosterPolicy(1, 3))
    assert joiners == (member(2),) and "worker/1 waits" in waiting and "worker/3 waits" in waiting


@pytest.mark.parametrize("low, high", [(0, None), (True, None), (2, 1), (1, True), (1.5, None)])
def test_bounds_that_cannot_be_are_refused(low, high):
    with pytest.raises(ConfigError, match=r"m(in|ax)_workers"):
        RosterPolicy(low, high)


def test_a_member_removed_three_times_in_ten_minutes_waits_longer_each_time():
    state = BackOff()
    for at in (0.0, 100.0):
        state = state.removed(task(1), at)
    assert state.wait(task(1), 100.0) == (0.0, "")
    state = state.removed(task(1), 200.0)
    assert state.wait(task(1), 200.0)[0] == 10.0 and "3 times" in state.wait(task(1), 200.0)[1]
    assert state.wait(task(1), 210.5)[0] == 0.0 and state.wait(task(2), 200.0)[0] == 0.0
    state = state.removed(task(1), 300.0)
    assert state.wait(task(1), 300.0)[0] == 20.0
    assert state.wait(task(1), 1000.0)[0] == 0.0
    for at in range(301, 330):
        state = state.removed(task(1), float(at))
    assert state.wait(task(1), 329.0)[0] == 600.0


@pytest.mark.parametrize(
    "change, field",
    [
        ({"task": "boss/1"}, "task"),
        ({"incarnation": "xyz"}, "incarnation"),
        ({"host": ""}, "host"),
        ({"host": "a" * 300}, "host"),
        ({"port": 70000}, "port"),
        ({"peer_port": True}, "peer_port"),
        ({"devices": -1}, "devices"),
    ],
)
def test_a_malformed_member_is_refused_with_key_and_field(change, field):
    with pytest.raises(StoreError, match=f"ready/worker/1.*{field}"):
        member_from_json({**member(1).to_json(), **change}, "ready/worker/1")


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"generation": 0}, {"members": []}, {"members": [3]}, {"reason": 3}, {"lost": ["x"]}],
)
def test_a_malformed_roster_is_refused_with_its_key(change):
    with pytest.raises(StoreError, match="roster"):
        roster_from_json({**roster(0, 1).to_json(), **change}, "roster")


def test_a_roster_with_a_task_twice_is_refused():
    value = roster(0, 1).to_json()
    value["members"] = [value["members"][0]] * 2
    with pytest.raises(StoreError, match="each task once"):
        roster_from_json(value, "roster")


@pytest.mark.parametrize("value", [b"", b"{", b"[1]", b"\xff", b"[" * 100000])
def test_what_is_no_json_object_is_refused_with_its_key(value):
    with pytest.raises(StoreError, match="'k'"):
        load("k", value)


def test_a_roster_knows_its_chief_and_ranks():
    three = roster(1, 2, 5)
    assert three.chief == task(1) and three.rank(task(5)) == 2 and three.tasks == tasks(1, 2, 5)
    assert three.member(task(2)) == member(2) and three.member(task(0)) is None and three.has("a1" * 4)


def test_members_that_recover_between_two_steps_take_nobody_in_however_few_they_are():
    view = View(roster(0, 1, 2), ready=(member(3),), lost={task(1): "connection closed", task(2): "no heartbeat"})
    policy = RosterPolicy(2, None, 10.0)
    alone, _ = decide_next(0.0, *among_ourselves(view, policy))
    assert alone is not None and alone.tasks == tasks(0)
    with_joiner, _ = decide_next(0.0, view, policy)
    assert with_joiner is not None and with_joiner.tasks == tasks(0, 3)


def test_the_first_roster_needs_min_workers_in_any_case():
    view = View(None, expected=tasks(0, 1), ready=(member(0),), waiting_since=-20.0)
    assert decide_next(0.0, *among_ourselves(view, RosterPolicy(2, None, 10.0)))[0] is None
