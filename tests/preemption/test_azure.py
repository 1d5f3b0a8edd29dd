"""Azure: which events are a notice, for whom, and who approves them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.preemption import servers
from tests.preemption.conftest import noticed
from tfdist.preemption import Azure, SourceUnavailable
from tfdist.preemption.azure import ENDS, events_for
from tfdist.preemption.endpoint import Endpoint, deadline

LATER = "Fri, 14 Jul 2017 02:50:00 GMT"


def event(
    kind="Preempt", number="e1", status="Scheduled", resources=("trainer_1",), at="Fri, 14 Jul 2017 02:40:30 GMT"
):
    return {
        "EventId": number,
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(resources),
        "EventStatus": status,
        "NotBefore": at,
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_what_ends_the_process_is_a_notice(azure, kind):
    source = Azure(azure.url)
    assert source.look() is None
    azure.events = [event(kind)]
    notice = noticed(source)
    assert (notice.source, notice.seconds) == ("azure", 30.0)
    assert notice.reason.startswith("Azure ") and notice.reason.endswith(f"in about 30 s by its clock ({kind})")


@pytest.mark.parametrize(
    "other",
    [
        event("Freeze"),  # a pause of seconds
        event("SomethingNew"),
        event(resources=["trainer_2", "trainer_10"]),  # of other VMs of the set
        event(resources=[]),
        {**event(), "Resources": "trainer_1"},
        {**event(), "EventId": None},
        {},
        "Preempt",
        None,
    ],
)
def test_other_events_are_none(azure, other):
    azure.events = [other]
    assert Azure(azure.url).look() is None


def test_names_are_compared_without_case_and_the_soonest_event_counts(azure):
    later = event("Reboot", "e2", at=LATER)
    azure.events = [later, event(resources=["other", "TRAINER_1"]), event("Freeze", "e3", "Started")]
    assert noticed(Azure(azure.url)).seconds == 30.0


@pytest.mark.parametrize("kind", ["Preempt", "Terminate"])
def test_what_has_begun_is_now(azure, kind):
    azure.events = [event(kind, status="Started", at="")]
    notice = noticed(Azure(azure.url))
    assert notice.seconds == 0.0 and " now " in notice.reason


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy"])
def test_a_restart_that_began_before_this_process_is_no_notice_but_the_next_one_is(azure, kind):
    """Azure lists it for minutes after the machine is back; leaving for it would go on for as long."""
    source = Azure(azure.url)
    azure.events = [event(kind, status="Started", at="")]
    assert source.look() is None and source.look() is None
    azure.events.append(event(kind, "e2", status="Started", at=""))  # a failed host: there was no Scheduled
    assert noticed(source).seconds == 0.0


def test_a_time_that_is_none_leaves_the_notice(azure):
    azure.events = [event(at="soon")]
    assert noticed(Azure(azure.url)).seconds is None


def test_the_name_of_the_machine_is_asked_once(azure):
    source = Azure(azure.url)
    assert source.look() is None and source.look() is None
    assert [path.split("?")[0] for _, path in azure.requests] == [
        "/metadata/instance/compute/name",
        "/metadata/scheduledevents",
        "/metadata/scheduledevents",
    ]


def test_nothing_is_approved_unless_asked_for(azure):
    azure.events = [event()]
    source = Azure(azure.url)
    assert source.look() is not None and source.acknowledge() is False
    assert azure.approved == []


def test_the_event_that_was_told_is_approved_after_it_was_told(azure):
    azure.events = [event("Reboot", "e2", at=LATER), event()]
    source = Azure(azure.url, acknowledge=True)
    assert source.acknowledge() is False  # before there is one
    assert source.look() is not None and azure.approved == []  # a look alone would shorten the time to save
    assert source.acknowledge() is True and azure.approved == ["e1"]
    azure.fault = servers.status(500)
    with pytest.raises(SourceUnavailable, match="StartRequests answered 500"):
        source.acknowledge()


def test_the_server_refuses_a_request_without_the_header(azure):
    path = "/metadata/scheduledevents?api-version=2020-07-01"
    assert Endpoint("azure", azure.url).ask("GET", path, {}, deadline()).status == 400


@pytest.mark.parametrize(
    "document", ["", "null", "[]", '{"Events": 3}', '{"Events": [', "<html>", b"\xff\xfe", b"[" * 60000]
)
def test_what_is_no_list_of_events_is_said(azure, document):
    azure.document = document
    with pytest.raises(SourceUnavailable, match="no JSON with a list of Events"):
        Azure(azure.url).look()


@pytest.mark.parametrize("machine", ["", "a\nb", "x" * 300])
def test_a_machine_without_a_name_is_said(azure, machine):
    azure.machine = machine
    with pytest.raises(SourceUnavailable, match="is no name"):
        Azure(azure.url).look()


def test_too_many_requests_are_said(azure):
    azure.fault = servers.status(429)
    with pytest.raises(SourceUnavailable, match="answered 429"):
        Azure(azure.url).look()


SCALAR = st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([*ENDS, "m", "Started"])
KEYS = st.sampled_from(["Events", "EventId", "EventType", "Resources", "EventStatus", "NotBefore"])
JSON = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner), max_leaves=20)


@settings(max_examples=100, deadline=None)
@given(document=JSON | st.fixed_dictionaries({"Events": st.lists(st.dictionaries(KEYS, JSON), max_size=3)}))
def test_garbage_gives_events_of_this_machine_or_none(document):
    for found in events_for(json.loads(json.dumps(document)), "m") or []:
        assert found.kind in ENDS and isinstance(found.id, str)
