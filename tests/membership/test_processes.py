"""Members in processes of their own are killed, frozen, held up by the GIL, and thawed."""

import os
import signal

import pytest

from tests.membership.conftest import eventually, worker
from tfdist import errors


def contact(session, roster):
    """What `session` knows of worker/1."""
    return session._network._links[roster.members[1].incarnation].contact


@pytest.fixture
def pair(sqlite_cluster, member_process):
    """(session of worker/0 here, process of worker/1, their roster)."""
    here = sqlite_cluster.start(0)
    there = member_process(1)
    assert there.ask("start") is None
    there.ask("ready")
    here.ready()
    there.tell("next_roster", 0)
    roster = here.next_roster(0, timeout=8.0)
    here.watch_members(roster)
    assert there.answer() == [1, "worker/0", "worker/1"]
    eventually(lambda: contact(here, roster).heard_at, "the first heartbeat")
    return here, there, roster


def test_a_killed_process_is_lost_at_once_and_replaced(sqlite_cluster, member_process, pair):
    here, there, roster = pair
    there.signal(signal.SIGKILL)
    assert eventually(lambda: here.lost, "the loss") == {worker(1): "connection closed"}
    again = member_process(1)
    assert again.ask("start") is None
    again.ask("ready")
    again.tell("next_roster", 0)
    eventually(lambda: here.requests().join_waiting, "the replacement")
    after = here.next_roster(roster.generation, timeout=8.0)
    assert again.answer() == [after.generation, "worker/0", "worker/1"]


def test_a_frozen_process_is_found_and_removed_when_it_thaws(sqlite_cluster, pair):
    here, there, roster = pair
    there.signal(signal.SIGSTOP)
    assert "no heartbeat for" in eventually(lambda: here.lost, "the loss")[worker(1)]
    assert eventually(lambda: sqlite_cluster.told_to(here), "the notice")
    after = here.next_roster(roster.generation, timeout=8.0)
    assert after.tasks == (worker(0),)
    there.signal(signal.SIGCONT)
    assert there.ask("next_roster", 1)["error"] == "RemovedError"


def test_a_frozen_process_gives_way_to_its_successor_and_finds_out(member_process, pair):
    here, there, roster = pair
    there.signal(signal.SIGSTOP)
    again = member_process(1)
    assert again.ask("start") is None
    again.ask("ready")
    again.tell("next_roster", 0)
    eventually(lambda: here.lost and here.requests().join_waiting, "loss and successor")
    after = here.next_roster(roster.generation, timeout=8.0)
    assert again.answer() == [after.generation, "worker/0", "worker/1"]
    there.signal(signal.SIGCONT)
    assert there.ask("meet", "x")["error"] in ("RemovedError", "MemberLostError")
    assert there.ask("next_roster", 1)["error"] == "RemovedError"


def test_a_held_gil_is_not_a_loss_on_either_side(pair):
    here, there, roster = pair
    there.ask("hold_gil", 1.3)  # more than twice the heartbeat timeout
    assert here.lost == {} and there.ask("lost") == {}
    there.tell("meet", "after")
    assert set(here.meet(roster, "after", {}, 5.0)) == {worker(0), worker(1)}
    assert there.answer() == ["worker/0", "worker/1"]


def test_a_short_freeze_is_nothing(pair):
    here, there, roster = pair
    there.signal(signal.SIGSTOP)
    heard = contact(here, roster).heard_at
    eventually(lambda: here._clock() - heard > 0.35, "half the timeout")
    there.signal(signal.SIGCONT)
    there.tell("meet", "after")
    assert len(here.meet(roster, "after", {}, 5.0)) == 2 and here.lost == {}


def test_without_its_helper_process_a_thread_sends_the_heartbeats(pair):
    here, there, roster = pair
    os.kill(there.ask("helper_pid"), signal.SIGKILL)
    eventually(lambda: there.ask("helper_pid") is None, "the fall back to a thread")
    before = here._clock()
    eventually(lambda: contact(here, roster).heard_at > before + 0.3, "heartbeats of the thread")
    assert here.lost == {}


def test_the_helper_process_ends_with_its_parent(pair):
    _, there, _ = pair
    helper = there.ask("helper_pid")
    there.signal(signal.SIGKILL)
    there.process.wait(5)

    def gone():
        try:
            with open(f"/proc/{helper}/stat", encoding="ascii") as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    eventually(gone, "the end of the helper")


def test_a_source_that_dies_in_the_middle_is_a_lost_member(pair):
    here, there, roster = pair
    there.ask("serve", 64 << 20)
    with pytest.raises(errors.MemberLostError, match=r"worker/1 lost \(connection closed\)") as caught:
        here.fetch_state(roster.members[1], 1, accept=lambda header: 64 << 20, timeout=8.0)
    assert caught.value.tasks == (worker(1),)


def test_an_error_in_another_process_arrives_with_its_traceback(pair):
    here, there, roster = pair
    there.ask("report_error", "ValueError: there")
    with pytest.raises(errors.PeerFailedError, match="ValueError: there"):
        here.meet(roster, "step", {}, 5.0)
