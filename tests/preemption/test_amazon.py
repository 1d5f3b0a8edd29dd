"""Amazon EC2 spot: tokens, actions, times."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.preemption import servers
from tests.preemption.conftest import noticed
from tfdist.preemption import AmazonSpot, Notice, SourceUnavailable
from tfdist.preemption.endpoint import Endpoint, deadline

TOKEN = ("PUT", "/latest/api/token")
ACTION = ("GET", "/latest/meta-data/spot/instance-action")


def action(name="terminate", time="2017-07-14T02:42:00Z"):
    return json.dumps({"action": name, "time": time})


def test_one_token_serves_many_looks(amazon):
    source = AmazonSpot(amazon.url)
    assert source.look() is None and source.look() is None
    assert amazon.requests == [TOKEN, ACTION, ACTION]


def test_a_token_that_has_expired_is_replaced_within_the_look(amazon):
    source = AmazonSpot(amazon.url)
    assert source.look() is None
    amazon.valid.clear()
    amazon.action = action()
    assert source.look() is not None
    assert amazon.requests == [TOKEN, ACTION, ACTION, TOKEN, ACTION]


def test_a_new_token_that_is_refused_is_said_and_not_tried_for_ever(amazon):
    source = AmazonSpot(amazon.url)
    amazon.fault = lambda h: h.reply(200, "token") if h.command == "PUT" else h.reply(401)
    with pytest.raises(SourceUnavailable, match="a new token is refused"):
        source.look()
    assert amazon.requests == [TOKEN, ACTION]
    amazon.fault = None
    assert source.look() is None


@pytest.mark.parametrize("body", ["", "two words", "a\r\nX-Other: header", "x" * 2000, "\u00e4"])
def test_what_is_no_token_is_not_sent_back(amazon, body):
    amazon.fault = lambda handler: handler.reply(200, body)
    with pytest.raises(SourceUnavailable, match="something that is no token"):
        AmazonSpot(amazon.url).look()
    assert amazon.requests == [TOKEN]


def test_the_token_is_in_no_message(amazon):
    source = AmazonSpot(amazon.url)
    source.look()
    amazon.fault = servers.status(500)
    with pytest.raises(SourceUnavailable) as caught:
        source.look()
    assert "answered 500" in str(caught.value) and amazon.tokens[0] not in str(caught.value)


def test_another_cloud_at_the_address_is_no_absence_of_a_notice(amazon):
    amazon.fault = servers.status(404)
    with pytest.raises(SourceUnavailable, match="token answered 404"):
        AmazonSpot(amazon.url).look()


def test_a_container_too_far_away_is_told_about_the_hop_limit(amazon, monkeypatch):
    monkeypatch.setattr("tfdist.preemption.endpoint.LOOK_SECONDS", 0.2)
    amazon.fault = servers.silent
    with pytest.raises(SourceUnavailable, match="hop-limit has to be 2"):
        AmazonSpot(amazon.url).look()


@pytest.mark.parametrize(
    "name, time, seconds",
    [
        ("terminate", "2017-07-14T02:42:00Z", 120.0),
        ("stop", "2017-07-14T02:42:00Z", 120.0),
        ("hibernate", "2017-07-14T02:42:00Z", 0.0),  # begins at once, whatever the time says
        ("terminate", "2017-07-14T02:39:00Z", 0.0),
        ("terminate", "2117-07-14T02:40:00Z", 3600.0),
        ("terminate", "2017-07-14T02:42:00", 120.0),  # no zone: UTC
        ("terminate", "2017-07-14T04:42:00+02:00", 120.0),
        ("terminate", "soon", None),
        ("terminate", None, None),
        ("terminate", [], None),
    ],
)
def test_the_seconds_are_those_of_the_servers_own_clock(amazon, name, time, seconds):
    """Which is years away from this machine's."""
    amazon.action = action(name, time)
    notice = noticed(AmazonSpot(amazon.url))
    assert (notice.source, notice.seconds) == ("aws", seconds)
    assert notice.reason.startswith(f"Amazon EC2 {name}")


def test_without_the_servers_clock_this_machines_is_used_and_it_is_said(amazon):
    amazon.dated = False
    amazon.action = action(time="2117-07-14T02:40:00Z")
    notice = noticed(AmazonSpot(amazon.url))
    assert notice.reason == "Amazon EC2 terminates this spot instance in about 3600 s by the wall clock here"


def test_a_rebalance_recommendation_is_no_preemption(amazon):
    assert AmazonSpot(amazon.url).look() is None
    assert not any("rebalance" in path for _, path in amazon.requests)


def test_the_server_refuses_what_the_real_one_refuses(amazon):
    """So that the other tests show that the source sends the headers."""
    endpoint = Endpoint("aws", amazon.url)
    assert endpoint.ask(*TOKEN, {}, deadline()).status == 400
    assert endpoint.ask(*ACTION, {}, deadline()).status == 401


DATES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["action", "time", "x"]), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=JSON.map(json.dumps).map(str.encode) | st.binary(max_size=200) | st.just(b"[" * 60000))
def test_garbage_is_no_notice_and_no_crash(amazon, body):
    amazon.action = body
    with pytest.raises(SourceUnavailable, match="not JSON with an action that is known"):
        AmazonSpot(amazon.url).look()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    time=JSON | st.datetimes().map(str), date=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
)
def test_garbage_in_a_time_leaves_the_notice(amazon, time, date):
    body = json.dumps({"action": "stop", "time": time}).encode()
    head = f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    amazon.fault = lambda h: servers.raw(head + body)(h) if h.command == "GET" else h.reply(200, "token")
    notice = noticed(AmazonSpot(amazon.url))
    assert isinstance(notice, Notice) and (notice.seconds is None or 0 <= notice.seconds <= 3600)
