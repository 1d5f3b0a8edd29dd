"""Sessions agree on rosters: at the start, after a loss, with joiners and leavers."""

import threading

import pytest

from tests.membership.conftest import eventually, worker
from tfdist import errors
from tfdist.membership import keys, records
from tfdist.membership.roster import dump


def test_the_first_roster_has_all_expected_members(cluster):
    sessions, roster = cluster.form(3)
    assert roster.generation == 1 and roster.tasks == tuple(worker(i) for i in range(3))
    assert roster.chief == worker(0) and all(s.me in roster for s in sessions)
    assert roster.reason == "start with 3 members"


def test_the_first_roster_starts_without_the_missing_after_start_timeout(cluster):
    one = cluster.start(0, (0, 1), start_timeout=0.3)
    one.ready()
    assert one.next_roster(0, timeout=5).tasks == (worker(0),)


def test_a_start_below_min_workers_fails_and_says_who_is_missing(cluster):
    one = cluster.start(0, (0, 1), start_timeout=0.3, low=2)
    one.ready()
    with pytest.raises(errors.StartTimeoutError, match="worker/1 missing"):
        one.next_roster(0)


def test_a_host_that_does_not_resolve_is_named_and_waited_for(cluster):
    one = cluster.start(0, (0, 1), start_timeout=1.0, low=2)
    other = cluster.start(1, (0, 1), host="no-such-host.invalid")
    one.ready()
    other.ready()
    what = r"worker/1 is registered, but host 'no-such-host\.invalid' does not resolve"
    with pytest.raises(errors.StartTimeoutError, match=what):
        one.next_roster(0)


def test_a_lost_member_is_told_once_and_the_others_go_on(cluster):
    (a, b, c), roster = cluster.form(3)
    b.close(say_goodbye=False)
    for session in (a, c):
        assert eventually(lambda s=session: s.lost, "the loss") == {worker(1): "connection closed"}
    after = cluster.next_roster([a, c], roster.generation)
    assert after.tasks == (worker(0), worker(2)) and after.lost == (worker(1),)
    assert after.reason == "worker/1 lost (connection closed); 3 -> 2 members"
    assert a.lost == {} and [t for t in cluster.told_to(a) if "lost" in t] == ["worker/1 lost (connection closed)"]


def test_if_the_lowest_member_does_not_propose_the_next_one_does(cluster):
    (a, b, c), roster = cluster.form(3)
    c.close(say_goodbye=False)
    eventually(lambda: b.lost, "the loss")
    got = b.next_roster(roster.generation, timeout=5)  # a is busy elsewhere and does not ask
    assert got.tasks == (worker(0), worker(1))
    assert eventually(lambda: [t for t in cluster.told_to(a) if "generation 2 replaces 1" in t], "the notice")
    assert a.next_roster(roster.generation, timeout=5) == got


def test_many_proposers_make_one_roster(cluster):
    sessions, roster = cluster.form(5)
    sessions[2].close(say_goodbye=False)
    living = [s for s in sessions if s is not sessions[2]]
    for _ in range(3):
        roster = cluster.next_roster(living, roster.generation)
    assert roster.generation == 4 and len(roster.members) == 4


def test_a_joiner_is_seen_by_all_and_admitted_when_they_ask(cluster):
    (a, b), roster = cluster.form(2)
    c = cluster.start(2, (0, 1))
    c.ready()
    joined = cluster.call(c.next_roster, 0, timeout=8.0)
    for session in (a, b):
        assert eventually(lambda s=session: s.requests().join_waiting, "the joiner") == (c.me,)
    after = cluster.next_roster([a, b], roster.generation)
    assert joined.result(8) == after and after.reason == "worker/2 joins; 2 -> 3 members"
    eventually(lambda: not a.requests().join_waiting, "that nobody waits")


def test_nobody_is_announced_as_joiner_where_there_is_no_room(cluster):
    sessions = [cluster.start(i, (0, 1), high=2) for i in range(2)]
    for session in sessions:
        session.ready()
    roster = cluster.next_roster(sessions, 0)
    cluster.start(2, (0, 1)).ready()
    eventually(lambda: len(sessions[0]._state.store.ready) == 1, "the request")
    sessions[0]._watch.wake()
    assert sessions[0].requests().join_waiting == () and roster.generation == 1


def test_a_leaver_hands_over_and_the_others_are_not_alarmed(cluster):
    (a, b), roster = cluster.form(2)
    a.request_leave("preempted")
    assert a.leaving_requested
    for session in (a, b):
        assert eventually(lambda s=session: s.requests().leaving, "the request") == (worker(0),)
    left = cluster.call(a.next_roster, roster.generation, leaving=True, timeout=8.0)
    after = b.next_roster(roster.generation, timeout=8.0)
    assert left.result(8) == after and after.tasks == (worker(1),) and after.chief == worker(1)
    a.close("preempted")
    b.watch_members(after)
    assert not [t for t in cluster.told_to(b) if "lost" in t]


def test_a_member_hears_once_that_it_is_to_be_drained(cluster):
    (a, b), _ = cluster.form(2)
    told: list[str] = []
    a.on_drain(lambda: told.append("a"))
    b.on_drain(lambda: told.append("b"))
    records.ask_to_drain(a.store, worker(1))
    eventually(lambda: told, "the request")
    threading.Event().wait(1.5)  # longer than two looks
    assert told == ["b"]
    with pytest.raises(errors.ConfigError, match=r"worker/5.*is not a member of the run \(worker/0, worker/1\)"):
        records.ask_to_drain(a.store, worker(5))


def test_the_last_one_cannot_hand_over(cluster):
    (a,), roster = cluster.form(1)
    with pytest.raises(errors.TooFewWorkersError, match="nobody stays"):
        a.next_roster(roster.generation, leaving=True)


def test_a_replacement_takes_the_place_of_a_lost_member(cluster):
    (a, b), roster = cluster.form(2)
    b.close(say_goodbye=False)
    again = cluster.start(1)
    again.ready()
    joined = cluster.call(again.next_roster, 0, timeout=8.0)
    eventually(lambda: a.lost and a.requests().join_waiting, "loss and replacement")
    after = cluster.next_roster([a], roster.generation)
    assert joined.result(8) == after and after.tasks == roster.tasks and after != roster
    assert after.member(worker(1)) == again.me and "worker/1 lost" in after.reason and "worker/1 joins" in after.reason


def test_survivors_below_min_workers_wait_and_then_give_up(cluster):
    (a, b), roster = cluster.form(2, low=2, join_timeout=0.4)
    b.close(say_goodbye=False)
    with pytest.raises(errors.TooFewWorkersError, match="below min_workers = 2, for join_timeout"):
        a.next_roster(roster.generation)


def test_survivors_below_min_workers_go_on_with_a_joiner(cluster):
    (a, b), roster = cluster.form(2, low=2)
    b.close(say_goodbye=False)
    waiting = cluster.call(a.next_roster, roster.generation, timeout=8.0)
    c = cluster.start(2)
    c.ready()
    assert c.next_roster(0, timeout=8.0) == waiting.result(8)


def test_if_nobody_is_lost_the_same_members_form_a_new_group(cluster):
    sessions, roster = cluster.form(2)
    after = cluster.next_roster(sessions, roster.generation)
    assert after.members == roster.members and after.generation == 2 and "same members again" in after.reason


def test_one_who_is_removed_gets_to_know(cluster):
    (a, b), roster = cluster.form(2)
    without = type(roster)(2, (a.me,), "worker/1 lost (no heartbeat for 5.2 s)", (worker(1),))
    entry = a.store.get("roster")
    assert a.store.compare_and_set("roster", entry.version, dump(without.to_json()))
    with pytest.raises(errors.RemovedError, match=r"generation 2: worker/1 lost \(no heartbeat"):
        b.next_roster(roster.generation, timeout=5)
    with pytest.raises(errors.RemovedError):
        b.meet(roster, "x", {}, 5)


def test_a_second_process_with_the_same_task_is_refused_naming_both(cluster):
    cluster.start(0)
    with pytest.raises(errors.ClaimedError, match=r"127\.0\.0\.1:2000 holds it"):
        cluster.start(0)


def test_a_dead_process_gives_way_to_its_successor(cluster):
    cluster.start(0).close(say_goodbye=False)
    cluster.start(0).ready()


def test_a_joiner_of_a_run_whose_members_are_all_gone_never_starts_anew_silently(cluster):
    (a, b), _ = cluster.form(2)
    a.close(say_goodbye=False)
    b.close(say_goodbye=False)
    again = cluster.start(0, (0,), lease_duration=0.6)
    again.ready()
    with pytest.raises(errors.StateLostError, match="generation 1"):
        again.next_roster(0)
    anew = again.next_roster(0, found_anew=True, timeout=5)  # with a checkpoint in hand
    assert anew.generation == 2 and anew.members == (again.me,) and "starts anew" in anew.reason


def test_an_error_of_one_stops_all_with_its_traceback(cluster):
    (a, b, c), roster = cluster.form(3)
    waiting = cluster.call(a.meet, roster, "step", {}, 8.0)
    asking = cluster.call(b.next_roster, roster.generation, timeout=8.0)
    c.report_error("Traceback ...\nValueError: bad shape")
    for future in (waiting, asking):
        with pytest.raises(errors.PeerFailedError, match="ValueError: bad shape") as caught:
            future.result(8)
        assert caught.value.worker == worker(2)
    b.report_error("later")
    assert a.job_error == b.job_error and a.job_error.task == worker(2)
    assert eventually(lambda: cluster.told_to(a), "the notice") == ["worker/2 failed: ValueError: bad shape"]


def test_a_worker_that_is_started_again_clears_its_own_error(cluster):
    first = cluster.start(0, (0,))
    first.report_error("x")
    first.close()
    again = cluster.start(0, (0,))
    again.ready()
    assert again.next_roster(0, timeout=5).generation == 1


def test_a_process_that_arrives_after_the_end_is_told(cluster):
    (a, b), roster = cluster.form(2)
    a.finish()
    assert not b.store.get(keys.END)  # the other one may have more to do
    b.finish()
    with pytest.raises(errors.RunEndedError):
        b.next_roster(roster.generation)
    with pytest.raises(errors.RunEndedError):
        cluster.start(2)


def test_runs_with_other_ids_do_not_meet(cluster):
    one = cluster.start(0, (0,), run_id="one")
    two = cluster.start(0, (0,), run_id="two")
    for session in (one, two):
        session.ready()
        assert session.next_roster(0, timeout=5).members == (session.me,)
