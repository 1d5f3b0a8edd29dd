"""The metadata servers as fixtures, and the events that were told."""

import pytest

from tests.preemption import servers
from tfdist.observe import read_events
from tfdist.preemption import Notice, Source


def noticed(source: Source) -> Notice:
    """Returns the notice that `source` has to have."""
    notice = source.look()
    assert notice is not None
    return notice


@pytest.fixture
def google():
    with servers.running(servers.Google()) as server:
        yield server


@pytest.fixture
def amazon():
    with servers.running(servers.Amazon()) as server:
        yield server


@pytest.fixture
def azure():
    with servers.running(servers.AzureService()) as server:
        yield server


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Returns a function that returns the events of one kind."""
    path = tmp_path / "events"
    monkeypatch.setenv("TFDIST_EVENTS", str(path))
    return lambda kind: [event for event in read_events(path)[0] if event["kind"] == kind]
