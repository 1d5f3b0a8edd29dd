"""Barriers, notices, statuses and bulk state between the members of a roster."""

import logging

import pytest

from tests.membership.conftest import eventually, worker
from tfdist import errors
from tfdist.membership import meeting


def meet_all(cluster, sessions, roster, name, payloads):
    futures = [cluster.call(s.meet, roster, name, p, 5.0) for s, p in zip(sessions, payloads, strict=True)]
    return [f.result(8) for f in futures]


def test_all_get_the_payloads_of_all_again_and_again(cluster):
    sessions, roster = cluster.form(3)
    for step in range(20):
        payloads = [{"step": step, "from": i} for i in range(3)]
        for got in meet_all(cluster, sessions, roster, "step", payloads):
            assert got == {worker(i): payloads[i] for i in range(3)}


def test_one_who_is_ahead_is_not_confused_with_the_present_meeting(cluster):
    (a, b), roster = cluster.form(2)
    first = cluster.call(a.meet, roster, "x", {"n": 1}, 5.0)
    assert b.meet(roster, "x", {"n": 10}, 5.0)[worker(0)] == {"n": 1}
    ahead = cluster.call(b.meet, roster, "x", {"n": 20}, 5.0)
    assert first.result(5)[worker(1)] == {"n": 10}
    assert a.meet(roster, "x", {"n": 2}, 5.0)[worker(1)] == {"n": 20}
    assert ahead.result(5)[worker(0)] == {"n": 2}


def test_a_loss_ends_a_meeting_at_once(cluster):
    (a, b), roster = cluster.form(2)
    waiting = cluster.call(a.meet, roster, "x", {}, 8.0)
    b.close(say_goodbye=False)
    with pytest.raises(errors.MemberLostError, match="worker/1 lost") as caught:
        waiting.result(8)
    assert caught.value.tasks == (worker(1),) and caught.value.generation == 1


def test_one_who_met_all_may_leave_while_others_still_read(cluster):
    (a, b, c), roster = cluster.form(3)
    waiting = cluster.call(b.meet, roster, "bye", {}, 8.0)
    leaver = cluster.call(a.meet, roster, "bye", {}, 8.0)
    assert len(c.meet(roster, "bye", {}, 8.0)) == 3 and len(leaver.result(8)) == 3
    a.close()
    assert len(waiting.result(8)) == 3


def test_a_newer_roster_ends_a_meeting_at_once(cluster):
    (a, b, c), roster = cluster.form(3)
    waiting = cluster.call(a.meet, roster, "x", {}, 8.0)
    c.close(say_goodbye=False)
    eventually(lambda: b.lost, "the loss")
    with pytest.raises(errors.MemberLostError):
        waiting.result(8)
    other = cluster.call(b.next_roster, 1, timeout=8.0)
    with pytest.raises(errors.MemberLostError):
        a.meet(roster, "y", {}, 8.0)
    assert a.next_roster(1, timeout=8.0) == other.result(8)


def test_a_letter_that_a_broken_link_lost_is_sent_again(cluster):
    (a, b), roster = cluster.form(2)
    waiting = cluster.call(a.meet, roster, "x", {"n": 1}, 8.0)
    eventually(lambda: b._meetings._box._letters, "the letter")
    with b._state.condition:
        b._meetings._box._letters.clear()  # as if it had been lost on the way
    link = a._network._links[b.me.incarnation]
    link._sock.shutdown(2)
    assert b.meet(roster, "x", {"n": 2}, 8.0) == waiting.result(8)
    assert a.lost == {} and b.lost == {}


def test_a_meeting_that_takes_too_long_names_who_did_not_come(cluster):
    (a, _), roster = cluster.form(2)
    with pytest.raises(errors.WaitTimeoutError, match=r"meeting 'x': worker/1 did not come in 0\.1 s"):
        a.meet(roster, "x", {}, 0.1)


def test_one_who_is_waited_for_is_named_with_its_phase(cluster, caplog, monkeypatch):
    monkeypatch.setattr(meeting, "WARN_SECONDS", 0.05)
    (a, b), roster = cluster.form(2)
    b.announce("user callback on_epoch_end")
    b.publish(epoch=3, step=7)
    shown = eventually(lambda: (s := a.statuses().get("worker/1")) and s["facts"] and s, "the status")
    assert shown["phase"] == "user callback on_epoch_end" and shown["facts"] == {"epoch": 3, "step": 7}
    with caplog.at_level(logging.WARNING), pytest.raises(errors.WaitTimeoutError):
        a.meet(roster, "x", {}, 0.3)
    assert "for: worker/1 in phase 'user callback on_epoch_end'" in caplog.text


def test_a_notice_reaches_all_others(cluster):
    (a, b, c), _ = cluster.form(3)
    got = []
    for session in (b, c):
        session.on_message("saved", lambda task, payload: got.append((task, payload)))
    a.send_all("saved", {"step": 3})
    eventually(lambda: len(got) == 2, "the notices")
    assert got == [(worker(0), {"step": 3})] * 2


def test_state_is_transferred_with_its_header(cluster):
    (a, b), roster = cluster.form(2)
    parts = [bytearray(range(256)) * 10_000, b"", memoryview(b"tail")]
    a.serve_state(lambda generation: ({"generation": generation, "step": 9}, parts))
    seen: list[int] = []
    size = 2_560_004
    header, data = b.fetch_state(a.me, 1, accept=lambda h: size * (h["step"] == 9), timeout=5, on_chunk=seen.append)
    assert header == {"generation": 1, "step": 9} and data == b"".join(bytes(p) for p in parts)
    assert seen == [1 << 20, 2 << 20, size] and roster.generation == 1


def test_state_of_another_size_or_none_is_refused(cluster):
    (a, b), _ = cluster.form(2)
    with pytest.raises(errors.TransferError, match="serves no state"):
        b.fetch_state(a.me, 1, accept=lambda h: 3, timeout=5)
    a.serve_state(lambda generation: ({}, [b"1234"]))
    with pytest.raises(errors.TransferError, match="offers 4 bytes of state, 3 are expected"):
        b.fetch_state(a.me, 1, accept=lambda h: 3, timeout=5)

    def broken(generation):
        raise ValueError("not at a boundary")

    a.serve_state(broken)
    with pytest.raises(errors.TransferError, match="not at a boundary"):
        b.fetch_state(a.me, 1, accept=lambda h: 4, timeout=5)


def test_state_that_changes_while_it_is_sent_is_refused(cluster):
    (a, b), _ = cluster.form(2)
    data = bytearray(3 << 20)

    class Digest:
        def __init__(self, **_):
            pass

        def update(self, chunk):
            pass

        def hexdigest(self):
            return "0" * 32

    a.serve_state(lambda generation: ({}, [data]))
    with pytest.MonkeyPatch.context() as patch:
        from tfdist.membership import transfer

        real = transfer.hashlib.blake2b
        made = []

        def digest(**options):
            made.append(1)
            return Digest() if len(made) == 1 else real(**options)

        patch.setattr(transfer.hashlib, "blake2b", digest)
        with pytest.raises(errors.TransferError, match="checksum differs"):
            b.fetch_state(a.me, 1, accept=lambda h: 3 << 20, timeout=5)
