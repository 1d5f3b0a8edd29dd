"""Strangers and malformed frames are dropped; silence is judged by rules."""

import json
import socket
import struct

import pytest

from tests.membership.conftest import eventually
from tfdist import errors
from tfdist.membership import detection, frames
from tfdist.membership.detection import Contact, judge

SENT_BY_STRANGERS = [
    ("nonsense", b"GET / HTTP/1.1\r\n\r\n"),
    ("a frame that is too large", struct.pack(">I", 1 << 30)),
    ("no JSON", struct.pack(">I", 3) + b"abc"),
    ("no object", frames.encode({})[:3] + b"\x02[]"),
    ("no hello", frames.encode({"beat": 1})),
    ("another token", frames.encode({"hello": {"token": "x", "purpose": "messages", "member": {}}})),
    ("an odd token", frames.encode({"hello": {"token": 3, "purpose": "messages", "member": {}}})),
    ("an odd purpose", frames.encode({"hello": {"token": "x", "purpose": ["messages"], "member": {}}})),
]


@pytest.mark.parametrize("sent", [row[1] for row in SENT_BY_STRANGERS], ids=[row[0] for row in SENT_BY_STRANGERS])
def test_a_stranger_is_dropped_and_nothing_else_happens(cluster, sent):
    (a, b), roster = cluster.form(2)
    with socket.create_connection(("127.0.0.1", a.me.peer_port), timeout=5) as stranger:
        stranger.sendall(sent)
        assert stranger.recv(1) == b""
    other = cluster.call(b.meet, roster, "x", {}, 5.0)
    assert len(a.meet(roster, "x", {}, 5.0)) == 2 and len(other.result(5)) == 2


def test_a_member_that_sends_rubbish_stops_nothing(cluster):
    (a, b), roster = cluster.form(2)
    for message in ({"k": "meet"}, {"k": "meet", "at": [1, 2, 3], "payload": {}}, {"k": "asking", "after": "x"},
                    {"k": "error"}, {"k": "user"}, {"k": "new in a later version"}, {}):  # fmt: skip
        b._network.send(a.me, message)
    other = cluster.call(b.meet, roster, "x", {}, 5.0)
    assert len(a.meet(roster, "x", {}, 5.0)) == 2 and len(other.result(5)) == 2
    assert a.job_error is None


def test_frames_are_cut_whatever_the_pieces():
    messages = [{"n": n, "text": "x" * n * 100} for n in range(5)]
    stream = b"".join(frames.encode(m) for m in messages)
    for size in (1, 3, 1000, len(stream)):
        reader, got = frames.FrameReader(), []
        for start in range(0, len(stream), size):
            reader.feed(stream[start : start + size])
            while (message := reader.next()) is not None:
                got.append(message)
        assert got == messages and reader.empty


def test_a_message_that_is_too_large_or_no_json_is_refused():
    with pytest.raises(frames.FrameError, match="larger than"):
        frames.encode({"x": "y" * (1 << 20)})
    with pytest.raises(frames.FrameError, match="JSON"):
        frames.encode({"x": {1, 2}})
    assert json.loads(frames.encode({"x": 1})[4:]) == {"x": 1}


def test_an_address_of_another_machine_cannot_be_listened_on(cluster):
    with pytest.raises(errors.ConfigError, match="bind_host"):
        cluster.start(0, bind_host="192.0.2.1")


JUDGED = [
    # (contact, needed_since, state, reason contains, silent)
    (Contact(0.0), None, "waiting", "not reached for 100.0 s", False),
    (Contact(0.0, trouble="host 'x' does not resolve"), None, "waiting", "does not resolve", False),
    (Contact(0.0, trouble="host 'x' does not resolve"), 80.0, "lost", "not reached for 20.0 s host 'x'", True),
    (Contact(0.0), 95.0, "waiting", "not reached", False),
    (Contact(0.0, opened_at=95.0), None, "living", "connected", False),
    # a peer that was never heard gets twice the time: it has to learn of us first
    (Contact(0.0, opened_at=91.0), None, "living", "connected", False),
    (Contact(0.0, opened_at=89.0), None, "lost", "no heartbeat for 11.0 s since the first contact", True),
    (Contact(0.0, opened_at=1.0, heard_at=96.0), None, "living", "4.0 s ago", False),
    (Contact(0.0, opened_at=1.0, heard_at=94.8), None, "lost", "no heartbeat for 5.2 s", True),
    (Contact(0.0, opened_at=1.0, heard_at=99.0, closed="connection closed"), None, "lost", "connection closed", False),
]


@pytest.mark.parametrize("contact, needed_since, state, reason, silent", JUDGED)
def test_a_peer_is_judged(contact, needed_since, state, reason, silent):
    verdict = judge(100.0, contact, 5.0, needed_since)
    assert (verdict.state, verdict.silent) == (state, silent) and reason in verdict.reason
    assert verdict.state in (detection.LIVING, detection.WAITING, detection.LOST)


def test_a_host_name_that_does_not_resolve_yet_gets_more_time():
    contact = Contact(0.0, trouble="host 'x' does not resolve", unresolved=True)
    assert judge(100.0, contact, 5.0, 50.0, resolve_timeout=60.0).state == detection.WAITING
    assert judge(111.0, contact, 5.0, 50.0, resolve_timeout=60.0).state == detection.LOST


def test_a_member_that_returns_to_its_port_as_another_process_is_lost(cluster):
    (a, b), _ = cluster.form(2)
    b._network._me = b.me.__class__(b.me.task, "f" * 16, b.me.host, b.me.port, b.me.peer_port)
    a._network._links[b.me.incarnation]._sock.shutdown(2)
    assert list(eventually(lambda: a.lost, "the loss").values()) == ["another process answers at its port"]
