"""Azure: scheduled events of the instance metadata service.

Source: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.preemption.endpoint import INTERVAL, Answer, Endpoint, deadline
from tfdist.preemption.notice import Notice, plain, require_interval
from tfdist.preemption.remaining import from_http, seconds_until

# What each type does to this VM. Freeze is not here: it pauses for seconds, and memory and connections stay.
ENDS = {
    "Preempt": "evicts this spot VM",
    "Terminate": "deletes this VM",
    "Reboot": "restarts this VM",  # which ends this process like the others do
    "Redeploy": "moves this VM to another host, which restarts it",
}
COMES_BACK = frozenset({"Reboot", "Redeploy"})

_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS = {"Metadata": "true"}


@dataclass(frozen=True)
class Event:
    """What counts of a scheduled event: id, one of ENDS, whether it has begun, NotBefore as it came."""

    id: str
    kind: str
    started: bool
    not_before: object


def events_for(document: Any, machine: str) -> list[Event] | None:
    """Returns the events that end the VM `machine`; None if `document` is no list of events. Pure.

    All VMs of an availability set or scale set get the events of all of them. Names are compared like Azure's: without
    case. An event that can't be read is passed over.
    """
    listed = document.get("Events") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        return None
    found = []
    for one in listed:
        if not isinstance(one, Mapping):
            continue
        kind, number, resources = one.get("EventType"), one.get("EventId"), one.get("Resources")
        if not isinstance(kind, str) or kind not in ENDS or not isinstance(number, str):
            continue
        if isinstance(resources, list) and machine.casefold() in {str(name).casefold() for name in resources}:
            found.append(Event(number, kind, one.get("EventStatus") == "Started", one.get("NotBefore")))
    return found


class Azure:
    """Says that this VM is evicted, deleted, restarted or moved with a restart.

    An event is listed for some minutes after it is over. So a restart or a move that has begun before the first look is
    passed over: this process came after it.

    Azure switches the service on at the first request of any VM, which takes up to two minutes; it is unavailable
    until then.

    Args:
        base_url: the metadata service.
        interval: seconds between two looks; Azure allows five requests a second to the whole VM.
        acknowledge: lets `acknowledge()` approve the event that was told.
    """

    name = "azure"

    def __init__(
        self, base_url: str = "http://169.254.169.254", interval: float = INTERVAL, *, acknowledge: bool = False
    ):
        self.interval = require_interval(interval, "Azure.interval")
        self._endpoint = Endpoint(self.name, base_url)
        self._acknowledges = acknowledge
        self._machine: str | None = None
        self._past: frozenset[str] | None = None  # ids of events that this process came after; None: no look yet
        self._told: Event | None = None

    def look(self) -> Notice | None:
        """Asks for the events, and at first for the name of this VM."""
        until = deadline()
        if self._machine is None:
            self._machine = self._name(until)
        answer = self._get(_EVENTS, "scheduledevents", until)
        try:
            events = events_for(answer.json(), self._machine)
        except ValueError:
            events = None
        if events is None:
            raise self._endpoint.unavailable("scheduledevents is no JSON with a list of Events")
        if self._past is None:
            self._past = frozenset(e.id for e in events if e.started and e.kind in COMES_BACK)
        timed = []
        for event in (e for e in events if e.id not in self._past):
            seconds, how = seconds_until(from_http(event.not_before), answer.headers.get("date"))
            timed.append((0.0, "now", event) if event.started else (seconds, how, event))
        if not timed:
            return None
        seconds, how, self._told = min(timed, key=lambda t: 0.0 if t[0] is None else t[0])
        return Notice(self.name, f"Azure {ENDS[self._told.kind]} {how} ({self._told.kind})", seconds)

    def acknowledge(self) -> bool:
        """Approves the event that was told, so that Azure need not wait for NotBefore. Call it when all is saved.

        Returns:
            Whether Azure was told; False without the option, or before a notice.

        Raises:
            SourceUnavailable: Azure could not be told; it then goes on by itself at NotBefore.
        """
        if not self._acknowledges or self._told is None:
            return False
        body = json.dumps({"StartRequests": [{"EventId": self._told.id}]}).encode()
        headers = {**_HEADERS, "Content-Type": "application/json"}
        answer = self._endpoint.ask("POST", _EVENTS, headers, deadline(), body)
        if answer.status != 200:
            raise self._endpoint.unavailable(f"StartRequests answered {answer.status}")
        return True

    def _name(self, until: float) -> str:
        name = self._get(_NAME, "instance/compute/name", until).body.decode("utf-8", "replace").strip()
        if not name or plain(name, 256) != name:
            raise self._endpoint.unavailable("instance/compute/name is no name")
        return name

    def _get(self, path: str, what: str, until: float) -> Answer:
        answer = self._endpoint.ask("GET", path, _HEADERS, until)
        if answer.status != 200:
            raise self._endpoint.unavailable(f"{what} answered {answer.status}")
        return answer
