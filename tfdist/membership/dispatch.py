"""Brings what the network thread hears to where it belongs. Quick, and no store: see NetworkEvents."""

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from tfdist.errors import StoreError
from tfdist.membership import detection
from tfdist.membership.detection import Verdict
from tfdist.membership.keys import job_error_from_json
from tfdist.membership.meeting import Meetings
from tfdist.membership.notices import Notices
from tfdist.membership.roster import Member
from tfdist.membership.run_state import RunState
from tfdist.membership.transfer import StateServer
from tfdist.tf_config import Task

_log = logging.getLogger(__name__)


class Dispatcher:
    """The NetworkEvents of a session.

    Attributes (set by the session before the network starts):
        state, meetings: get what concerns them.
        wake_watch: makes the watch thread look at the store.
    """

    state: RunState
    meetings: Meetings
    wake_watch: Callable[[], None]

    def __init__(self, notices: Notices, server: StateServer):
        self._notices = notices
        self._server = server
        self._lock = threading.Lock()
        self._goodbyes: list[tuple[Member, Verdict]] = []
        self.user_callbacks: dict[str, list[Callable[[Task, dict[str, Any]], None]]] = {}

    def on_peer_message(self, member: Member, message: dict[str, Any]) -> None:
        """See NetworkEvents. Messages of an unknown kind, from a newer version say, are ignored."""
        kind = message.get("k")
        if kind == "meet":
            self.meetings.receive(member, message)
        elif kind == "roster":
            self.wake_watch()
        elif kind == "leave":
            self.state.take_leave(member)
            self.wake_watch()
        elif kind == "asking":
            after = message.get("after")
            if isinstance(after, int):
                self.state.take_asking(member, after)
        elif kind == "error":
            try:
                self.state.take_error(job_error_from_json(message, f"a notice of {member.task}"))
            except StoreError as problem:
                _log.warning("ignored: %s", problem)
        elif kind == "user":
            payload = message.get("payload")
            for callback in self.user_callbacks.get(str(message.get("name")), []):
                self._notices.post(callback, member.task, payload if isinstance(payload, dict) else {})

    def on_peer_open(self, member: Member) -> None:
        """See NetworkEvents."""
        self.meetings.send_again(member)
        self.state.take_verdict(member, Verdict(detection.LIVING, "connected"))

    def on_peer_verdict(self, member: Member, verdict: Verdict) -> None:
        """See NetworkEvents. Who said goodbye has most likely left by a newer roster: look at that first."""
        if verdict.state == detection.LOST and verdict.reason.startswith("left: "):
            with self._lock:
                self._goodbyes.append((member, verdict))
            self.wake_watch()
        else:
            self.state.take_verdict(member, verdict)

    def on_state_request(self, sock: socket.socket, member: Member) -> None:
        """See NetworkEvents."""
        self._server.handle(sock, member)

    def take_goodbyes(self) -> None:
        """Passes on the losses that came with a goodbye, after a look at the store."""
        with self._lock:
            goodbyes, self._goodbyes = self._goodbyes, []
        for member, verdict in goodbyes:
            self.state.take_verdict(member, verdict)
