"""An accepted connection: a hello first, then frames. A stranger or a malformed frame ends it, and nothing else."""

import logging
import selectors
import socket
from collections.abc import Callable
from typing import Any

from tfdist.errors import StoreError
from tfdist.membership import frames
from tfdist.membership.roster import Member, member_from_json

_log = logging.getLogger(__name__)

HELLO_SECONDS = 5.0


class Incoming:
    """One accepted connection, in the network thread.

    Args:
        sock: non-blocking.
        peer: (address, port) of the other end.
        now: seconds.
        selector: of the network thread.
        token: the secret of the run.
        incarnation: this process's, the answer to a hello.
        on_frame: called with (member, message) for each frame after the hello.
        on_state: given the socket after a hello with purpose "state", which then belongs to it.
        on_end: called once when the connection is over or given away.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: tuple[str, int],
        now: float,
        selector: selectors.BaseSelector,
        token: str,
        incarnation: str,
        on_frame: Callable[[Member, dict[str, Any]], None],
        on_state: Callable[[socket.socket, Member], None],
        on_end: Callable[["Incoming"], None],
    ):
        self.peer = peer
        self.member: Member | None = None
        self.purpose = ""
        self.since = now
        self._sock = sock
        self._selector = selector
        self._token = token
        self._incarnation = incarnation
        self._on_frame = on_frame
        self._on_state = on_state
        self._on_end = on_end
        self._reader = frames.FrameReader(frames.MAX_HELLO_BYTES)
        self._open = True
        selector.register(sock, selectors.EVENT_READ, self.on_event)

    @property
    def heart_address(self) -> tuple[str, int] | None:
        """Where the member that sends messages listens, so that heartbeats can be returned before it is in a roster."""
        if self.purpose != "messages" or self.member is None:
            return None
        return self.peer[0], self.member.peer_port

    def on_event(self, mask: int, now: float) -> None:
        """Reads all there is, so that a process that was frozen catches up before it judges."""
        for _ in range(16):
            if not self._open:
                return
            try:
                data = self._sock.recv(65536)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._reader.feed(data)
            try:
                self._take_frames()
            except (frames.FrameError, StoreError) as error:
                _log.warning("dropped a connection from %s:%s: %s", *self.peer[:2], error)
                self.close()
                return

    def _take_frames(self) -> None:
        while self._open and (message := self._reader.next()) is not None:
            if self.member is not None:
                self._on_frame(self.member, message)
                continue
            purpose, member = frames.read_hello(message, self._token)
            self.member = member_from_json(member, f"the hello of {self.peer[0]}")
            self.purpose = purpose
            self._reader.limit = frames.MAX_FRAME_BYTES
            try:
                self._sock.send(frames.encode({"welcome": self._incarnation}))
            except OSError:
                self.close()
                return
            if purpose == "state":
                self._give_away()

    def _give_away(self) -> None:
        sock, member = self._sock, self.member
        self._end()
        if member is None or not self._reader.empty:  # a client waits for the welcome before it asks
            sock.close()
        else:
            self._on_state(sock, member)

    def close(self) -> None:
        """Closes the connection."""
        if self._open:
            self._end()
            self._sock.close()

    def _end(self) -> None:
        self._open = False
        self._selector.unregister(self._sock)
        self._on_end(self)
