"""Whatever a server does, a look is short, small, and asks nobody else."""

import os
import socket
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.preemption import servers
from tfdist.errors import ConfigError
from tfdist.preemption import AmazonSpot, Azure, GoogleCloud, SourceUnavailable
from tfdist.preemption.endpoint import Endpoint

SOURCES = [GoogleCloud, AmazonSpot, Azure]


@pytest.fixture
def server():
    with servers.running(servers.Server()) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("tfdist.preemption.endpoint.LOOK_SECONDS", 0.3)


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("fault", [servers.silent, servers.dripping])
def test_a_slow_answer_is_given_up_in_time(server, impatient, make, fault):
    server.fault = fault
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match="no answer: "):
        make(server.url).look()
    assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("make", SOURCES)
def test_a_huge_answer_is_refused(server, make):
    server.fault = servers.huge
    with pytest.raises(SourceUnavailable, match="more than 65536 bytes"):
        make(server.url).look()


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("code", [301, 302, 307, 401, 403, 404, 500, 503])
def test_a_status_that_is_none_of_the_protocol_is_said_and_a_redirect_not_followed(server, make, code):
    server.fault = servers.status(code, Location=f"{server.url}/elsewhere")
    with pytest.raises(SourceUnavailable, match=f"answered {code}"):
        make(server.url).look()
    assert len(server.requests) == 1


@pytest.mark.parametrize("make", SOURCES)
def test_a_port_that_nobody_listens_on_is_said(make):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(SourceUnavailable, match="refused"):
            make(f"http://127.0.0.1:{taken.getsockname()[1]}").look()


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\1\2",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
        b"HTTP/1.1 200 " + b"x" * 100_000,
    ],
)
def test_what_is_not_http_is_said(server, make, data):
    server.fault = servers.raw(data)
    with pytest.raises(SourceUnavailable):
        make(server.url).look()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300) | st.binary(max_size=300).map(lambda rest: b"HTTP/1.1 200 OK\r\n" + rest))
def test_no_bytes_lead_to_anything_but_a_notice_of_unavailability(server, data):
    server.fault = servers.raw(data)
    with pytest.raises(SourceUnavailable) as caught:
        Azure(server.url).look() or pytest.fail("believed")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("make", SOURCES)
def test_proxies_of_the_environment_are_not_used(google, amazon, azure, server, make, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    own = {GoogleCloud: google, AmazonSpot: amazon, Azure: azure}[make]
    assert make(own.url).look() is None
    assert own.requests and not server.requests


def test_no_socket_is_left_open(google, server, impatient):
    good, slow = GoogleCloud(google.url), GoogleCloud(server.url)
    server.fault = servers.silent
    good.look()
    before = open_descriptors()
    for _ in range(5):
        good.look()
    with pytest.raises(SourceUnavailable):
        slow.look()
    google.shutdown()
    google.server_close()  # waits for the handlers, which have sockets in this process, too
    server.over.set()
    server.shutdown()
    server.server_close()
    assert open_descriptors() <= before


def test_the_name_of_googles_server_is_not_looked_up(monkeypatch):
    """Elsewhere, looking it up can take longer than a look may."""
    asked = []

    def connect(address, timeout):
        asked.append(address)
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr("socket.create_connection", connect)
    with pytest.raises(SourceUnavailable, match=r"metadata\.google\.internal:80.*refused"):
        GoogleCloud().look()
    assert asked == [("169.254.169.254", 80)]


@pytest.mark.parametrize(
    "url",
    ["https://host", "host", "", None, 3, "http://", "http://host/path", "http://host?x", "http://a@host", "http://h:x"]
    + ["http://h:70000", "file:///etc/passwd", "http://a b", "http://[::1"],
)
def test_a_base_url_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="base_url of aws"):
        Endpoint("aws", url)


def test_an_ipv6_address_is_good():
    Endpoint("aws", "http://[fd00:ec2::254]")
