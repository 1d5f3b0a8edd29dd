"""The store's facts, and what happens while the store is away."""

import pytest

from tests.membership.conftest import eventually, worker
from tfdist import errors
from tfdist.membership.stores import MemoryStore


class FlakyStore(MemoryStore):
    """A store that can be taken away."""

    away = False

    def __getattribute__(self, name):
        if name in ("get", "put", "compare_and_set", "list", "delete") and self.away:
            raise errors.StoreUnavailableError("the store is away for a test")
        return super().__getattribute__(name)


def test_training_goes_on_without_the_store_and_a_change_waits_for_it(cluster, caplog):
    cluster.store = FlakyStore()
    (a, b, c), roster = cluster.form(3)
    cluster.store.away = True
    eventually(lambda: a.store_away and b.store_away and c.store_away, "that it is noticed")
    meetings = [cluster.call(s.meet, roster, "step", {}, 5.0) for s in (a, b, c)]
    assert all(len(m.result(8)) == 3 for m in meetings)
    c.close(say_goodbye=False)
    assert eventually(lambda: a.lost and b.lost, "the loss") == {worker(2): "connection closed"}
    waiting = [cluster.call(s.next_roster, 1, timeout=8.0) for s in (a, b)]
    with pytest.raises(errors.WaitTimeoutError, match="waiting for the store"):
        a.next_roster(1, timeout=0.1)
    cluster.store.away = False
    assert waiting[0].result(8) == waiting[1].result(8)
    eventually(lambda: not a.store_away, "that it is back")
    lines = [r.message for r in caplog.records if "away" in r.message or "back" in r.message]
    assert sum("training goes on" in line for line in lines) == 3
    assert eventually(lambda: sum(r.message == "the store is back" for r in caplog.records) == 2, "both say so")


def test_a_roster_of_one_is_fenced_when_its_lease_is_over(cluster):
    cluster.store = FlakyStore()
    (a,), _ = cluster.form(1, lease_duration=0.6)
    assert not a.fenced
    cluster.store.away = True
    eventually(lambda: a.fenced, "the end of the lease")
    cluster.store.away = False
    eventually(lambda: not a.fenced, "a renewal")


def test_the_first_facts_stand_and_the_first_difference_is_named(cluster):
    (a, b), _ = cluster.form(2)
    a.agree("call 1", [["batch size", 16], ["shapes", (4, 1)]])
    b.agree("call 1", [["batch size", 16], ["shapes", [4, 1]]])
    with pytest.raises(errors.IncompatibleError, match="batch size differs: 8 here, 16 in the run"):
        b.agree("call 1", [["batch size", 8], ["shapes", [3, 1]]])
    with pytest.raises(errors.IncompatibleError, match="fact 1"):
        b.agree("call 1", [["batch size", 16]])


def test_what_is_recorded_first_stands(cluster):
    (a, b), _ = cluster.form(2)
    assert a.recorded("call/1") is None
    assert a.record("call/1", {"loss": 1.5}) and not b.record("call/1", {"loss": 2.0})
    assert b.recorded("call/1") == {"loss": 1.5}


def test_the_highest_committed_step_only_grows(cluster):
    (a, b), roster = cluster.form(2)
    a.mark_committed(12)
    b.mark_committed(10)
    assert a.highest_committed() == 12
    eventually(lambda: b.highest_committed() == 12, "that the step of the other is written")
    cluster.next_roster([a, b], roster.generation)
    late = cluster.start(5)
    assert late.highest_committed() == 12


def test_a_malformed_roster_is_refused_with_its_key(cluster):
    one = cluster.start(0, (0,))
    one.store.put("roster", b"{}")
    with pytest.raises(errors.StoreError, match="roster holds a malformed value: format"):
        one.next_roster(0, timeout=5)


def test_a_malformed_request_of_one_does_not_stop_the_others(cluster):
    one = cluster.start(0, (0,))
    one.store.put("ready/worker/7", b"nonsense")
    one.ready()
    assert one.next_roster(0, timeout=5).members == (one.me,)
