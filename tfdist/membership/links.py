"""The outgoing link to one peer: looked up, dialled, greeted, kept open, and given up when the peer is surely gone.

Everything but `send` runs in the network thread. Messages go out on this link only; what the peer says arrives on the
link that the peer opened.
"""

import errno
import ipaddress
import logging
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

from tfdist.membership.detection import Contact
from tfdist.membership.frames import FrameError, FrameReader
from tfdist.membership.roster import Member

_log = logging.getLogger(__name__)

SAY_SECONDS = 5.0

MOST_UNSENT_BYTES = 16 << 20
MOST_REDIALS = 3
_DONE_OR_BEGUN = (0, errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)


def resolve(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    """Returns (family, (numeric address, port)), IPv4 first; OSError if the name does not resolve."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({(family, (str(to[0]), int(to[1]))) for family, _, _, _, to in found}, key=lambda f: f[0])


def is_numeric(host: str) -> bool:
    """Says whether `host` is an address and needs no look-up, which could block."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Link:
    """One outgoing link.

    Args:
        member: whom to reach.
        hello: frame that greets.
        timeout: heartbeat_timeout, seconds.
        now: seconds.
        selector: of the network thread; the key's data is this link's `on_event`.
        wake: makes the network thread look again.
        on_open: called when the link is open, also when it is open again.
    """

    def __init__(
        self,
        member: Member,
        hello: bytes,
        timeout: float,
        now: float,
        selector: selectors.BaseSelector,
        wake: Callable[[], None],
        on_open: Callable[["Link"], None],
    ):
        self.member = member
        self.sticky_since: float | None = None  # in the roster: once lost, lost. Others are tried again
        self.goodbye: str | None = None
        self.contact = Contact(since=now)
        self._hello = hello
        self._timeout = timeout
        self._selector = selector
        self._wake = wake
        self._on_open = on_open
        self._lock = threading.Lock()
        self._phase = "idle"
        self._sock: socket.socket | None = None
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._addresses: list[tuple[int, tuple[str, int]]] = []
        self._dials = 0
        self._said_at = float("-inf")
        self._redials = 0
        self._phase_since = now
        self._retry_at = now
        self._pause = 0.05
        self._refused_at: float | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Numeric address of the peer, once looked up."""
        return self._addresses[self._dials % len(self._addresses)][1] if self._addresses else None

    def send(self, frame: bytes) -> None:
        """Sends now if possible, else when the link is open. From any thread; never blocks."""
        with self._lock:
            if self._phase == "closed" or len(self._unsent) + len(frame) > MOST_UNSENT_BYTES:
                return
            if self._phase == "open" and not self._unsent and self._sock is not None:
                try:
                    frame = frame[self._sock.send(frame) :]
                except (BlockingIOError, InterruptedError):
                    pass
                except OSError:
                    return  # the network thread sees the same, and what to do is decided there
            self._unsent += frame
        if frame:
            self._wake()

    def heard(self, now: float) -> None:
        """Notes that something came from the peer."""
        self._update(heard_at=now)

    def tick(self, now: float) -> None:
        """Goes on with looking up, dialling or writing."""
        if self._phase == "closed":
            if self.sticky_since is None and now - self._phase_since > 1.0:
                self.contact = Contact(since=self.contact.since, trouble=self.contact.closed or "")
                self._refused_at, self._redials, self.goodbye = None, 0, None
                self._enter("idle", now)
        elif self._phase == "idle":
            if now >= self._retry_at:
                self._dial(now) if self._addresses else self._look_up(now)
        elif self._phase == "dialing":
            if now - self._phase_since > max(1.0, self._timeout):
                self._failed(now, "does not answer", refused=False)
        elif self._phase == "open" and self._unsent:
            self._flush(now)

    def on_event(self, mask: int, now: float) -> None:
        """Handles a ready socket."""
        sock = self._sock
        if sock is None:
            return
        if self._phase == "dialing":
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._failed(now, _why(code), refused=code == errno.ECONNREFUSED)
            else:
                self._greet(now)
            return
        if mask & selectors.EVENT_WRITE and self._phase == "open":
            self._flush(now)
        if mask & selectors.EVENT_READ:
            self._read(now)

    def close(self, reason: str, now: float) -> None:
        """Closes for good (a link that is not sticky is tried again after a second)."""
        self._drop()
        self._update(closed=reason)
        self._enter("closed", now)

    def _look_up(self, now: float) -> None:
        host, port = self.member.host, self.member.peer_port
        if is_numeric(host):
            self._addresses = resolve(host, port)
            self._dial(now)
            return
        self._enter("resolving", now)

        def work() -> None:
            try:
                self._addresses = resolve(host, port)
            except OSError as error:
                trouble = f"host {host!r} does not resolve ({error.strerror or error})"
                self._update(trouble=trouble, unresolved=True)
                if now - self._said_at >= SAY_SECONDS:
                    self._said_at = now
                    _log.warning("%s: %s; it is waited for, at most until join_timeout", self.member.task, trouble)
                self._pause = min(self._pause * 2, 5.0)
            self._retry_at = now + (0.0 if self._addresses else self._pause)
            with self._lock:
                if self._phase == "resolving":  # it may have been closed in the meantime
                    self._phase = "idle"
            self._wake()

        threading.Thread(target=work, name=f"tfdist-resolve-{host}", daemon=True).start()

    def _dial(self, now: float) -> None:
        self._dials += 1
        family, address = self._addresses[self._dials % len(self._addresses)]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address)
        if code not in _DONE_OR_BEGUN:
            sock.close()
            self._failed(now, _why(code), refused=code == errno.ECONNREFUSED)
            return
        self._sock = sock
        self._enter("dialing", now)
        self._selector.register(sock, selectors.EVENT_WRITE, self.on_event)

    def _greet(self, now: float) -> None:
        sock = self._sock
        if sock is None:
            return
        self._reader = FrameReader()
        self._enter("greeting", now)
        self._selector.modify(sock, selectors.EVENT_READ, self.on_event)
        try:
            sock.send(self._hello)  # a few hundred bytes into an empty socket buffer
        except OSError:
            self._broken(now)

    def _read(self, now: float) -> None:
        try:
            data = self._sock.recv(65536) if self._sock is not None else b""
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._broken(now)
            return
        self._reader.feed(data)
        try:
            while (message := self._reader.next()) is not None:
                self._on_reply(message, now)
        except FrameError as error:
            self._failed(now, f"answers with {error}", refused=False)

    def _on_reply(self, message: dict[str, Any], now: float) -> None:
        if self._phase != "greeting" or not isinstance(message.get("welcome"), str):
            return
        if message["welcome"] != self.member.incarnation:
            self.close("another process answers at its port", now)
            return
        self._refused_at, self._redials, self._pause = None, 0, 0.05
        if self.contact.opened_at is None:
            self._update(opened_at=now)
        self._enter("open", now)
        self._on_open(self)
        self._flush(now)

    def _broken(self, now: float) -> None:
        """The peer closed. A living one is there again at once; the port of a dead one refuses."""
        if self.goodbye is not None:
            self.close(self.goodbye, now)
            return
        self._redials += 1
        if self._redials > MOST_REDIALS:
            self.close("connection closed", now)
            return
        self._drop()
        self._retry_at = now if self._redials == 1 else now + 0.02
        self._enter("idle", now)
        if self._redials == 1:
            self._dial(now)

    def _failed(self, now: float, why: str, refused: bool) -> None:
        self._drop()
        if self.goodbye is not None:
            self.close(self.goodbye, now)
            return
        if self.contact.opened_at is not None or self._redials:
            self.close("connection closed" if refused else f"connection closed, then {why}", now)
            return
        if refused:
            self._refused_at = now if self._refused_at is None else self._refused_at
            if now - self._refused_at >= min(1.0, self._timeout):
                self.close("connection refused", now)
                return
        where = f"{self.member.host}:{self.member.peer_port}"
        self._update(trouble=f"{where} {why}")
        self._retry_at = now + self._pause
        self._pause = min(self._pause * 2, 0.5 if refused else 5.0)
        self._enter("idle", now)

    def _flush(self, now: float) -> None:
        with self._lock:
            if self._sock is None or self._phase != "open":
                return
            try:
                while self._unsent:
                    del self._unsent[: self._sock.send(self._unsent)]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._unsent.clear()  # reading sees the broken link and decides
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._selector.modify(self._sock, events, self.on_event)

    def _drop(self) -> None:
        with self._lock:
            self._unsent.clear()
            sock, self._sock = self._sock, None
            self._phase = "idle"
        if sock is not None:
            with_key = sock.fileno() in self._selector.get_map()
            if with_key:
                self._selector.unregister(sock)
            sock.close()

    def _enter(self, phase: str, now: float) -> None:
        with self._lock:
            self._phase = phase
            self._phase_since = now

    def _update(self, **changes: Any) -> None:
        self.contact = Contact(**{**vars(self.contact), **changes})


def _why(code: int) -> str:
    return {errno.ECONNREFUSED: "refuses the connection", errno.EHOSTUNREACH: "cannot be reached"}.get(
        code, errno.errorcode.get(code, str(code))
    )
