"""The links between members: one listener, one thread, small messages, and who lives.

Trust: whoever knows the run's token is a member; it is kept in the store. Nothing that arrives is executed or
unpickled. TensorFlow's own port has no such guard.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from tfdist.errors import ConfigError
from tfdist.membership import detection, frames
from tfdist.membership.detection import Verdict, judge
from tfdist.membership.heartbeats import Heartbeats
from tfdist.membership.incoming import HELLO_SECONDS, Incoming
from tfdist.membership.links import Link
from tfdist.membership.roster import Member

_log = logging.getLogger(__name__)

MOST_STRANGERS = 128
PAUSE_SECONDS = 1.0
_UNKNOWN = Verdict(detection.WAITING, "not looked for yet")


class NetworkEvents(Protocol):
    """Told by the network thread; must return quickly."""

    def on_peer_message(self, member: Member, message: dict[str, Any]) -> None:
        """A frame of a member came."""

    def on_peer_open(self, member: Member) -> None:
        """The link to a member is open (again): what it may have missed can be sent again."""

    def on_peer_verdict(self, member: Member, verdict: Verdict) -> None:
        """The state of a member changed."""

    def on_state_request(self, sock: socket.socket, member: Member) -> None:
        """A member wants state on its own connection, which the callee owns from now on."""


def listen(bind_host: str | None) -> socket.socket:
    """Returns a listening socket on a free port.

    Raises:
        ConfigError: the host is not an address of this machine.
    """
    host = bind_host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family, backlog=256)
    except OSError as error:
        raise ConfigError("MembershipOptions.bind_host", bind_host, f"cannot be listened on ({error})") from None


class PeerNetwork:
    """Links to a changing set of peers.

    Args:
        me: this member; its peer_port is the listener's.
        listener: from `listen`.
        token: the secret of the run.
        interval: seconds between heartbeats.
        timeout: seconds without a heartbeat after which a peer is lost.
        clock: monotonic seconds.
        events: told what happens.
        resolve_timeout: seconds for which a host name that does not resolve is waited for; see judge.
    """

    def __init__(
        self,
        me: Member,
        listener: socket.socket,
        token: str,
        interval: float,
        timeout: float,
        clock: Callable[[], float],
        events: NetworkEvents,
        resolve_timeout: float = 0.0,
    ):
        self._me = me
        self._resolve_timeout = resolve_timeout
        self._listener = listener
        self._token = token
        self._interval = interval
        self._timeout = timeout
        self._clock = clock
        self._events = events
        self._selector = selectors.DefaultSelector()
        self._hello = frames.encode(frames.hello(token, me.to_json(), "messages"))
        self.heartbeats = Heartbeats(frames.hello(token, me.to_json(), "heartbeat"), interval)
        self._links: dict[str, Link] = {}
        self._incoming: set[Incoming] = set()
        self._wanted: dict[str, tuple[Member, bool]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._lost: dict[str, Verdict] = {}
        self._wake_out, self._wake_in = socket.socketpair()
        self._closing = threading.Event()
        self._judge_after = 0.0
        self._thread = threading.Thread(target=self._run, name="tfdist-peers", daemon=True)

    def start(self) -> None:
        """Starts the listener, the heartbeats and the thread."""
        self._listener.setblocking(False)
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._drain_wake)
        self.heartbeats.start()
        self._thread.start()

    def set_peers(self, roster: Iterable[Member], others: Iterable[Member]) -> None:
        """Keeps links to these. A member of `roster` that is lost once stays lost; one of `others` is tried again."""
        wanted = {m.incarnation: (m, False) for m in others}
        wanted.update({m.incarnation: (m, True) for m in roster})
        wanted.pop(self._me.incarnation, None)
        if wanted != self._wanted:
            self._wanted = wanted
            self.wake()

    def verdict(self, member: Member) -> Verdict:
        """Returns what is known of `member`; the own one lives."""
        if member.incarnation == self._me.incarnation:
            return Verdict(detection.LIVING, "this process")
        return self._lost.get(member.incarnation) or self._verdicts.get(member.incarnation, _UNKNOWN)

    def send(self, member: Member, message: Mapping[str, Any]) -> None:
        """Sends to one member, if there is a link to it; never blocks."""
        link = self._links.get(member.incarnation)
        if link is not None:
            link.send(frames.encode(message))

    def send_all(self, message: Mapping[str, Any]) -> None:
        """Sends to all peers; never blocks."""
        frame = frames.encode(message)
        for link in list(self._links.values()):
            link.send(frame)

    def wake(self) -> None:
        """Makes the thread look again."""
        with contextlib.suppress(OSError):
            self._wake_out.send(b"x")

    def close(self) -> None:
        """Ends the thread, the helper, and every connection."""
        self._closing.set()
        self.wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        self.heartbeats.close()

    def _run(self) -> None:
        longest = max(0.02, min(0.25, self._interval / 2))
        before = self._clock()
        last_check = before
        try:
            while not self._closing.is_set():
                ready = self._selector.select(longest)
                now = self._clock()
                if now - before > longest + min(PAUSE_SECONDS, self._timeout / 3):
                    # This process was frozen or something held the GIL: the news of the meantime waits in the
                    # sockets, and some of it only comes with the next passes. Nobody is judged before that.
                    self._judge_after = now + 2 * max(self._interval, longest)
                before = now
                for key, mask in ready:
                    self._handle(key.data, mask, now)
                self._apply(now)
                for link in list(self._links.values()):
                    link.tick(now)
                self._drop_silent_strangers(now)
                self._judge(now)
                if now - last_check > min(1.0, self._timeout / 4):
                    last_check = now
                    self.heartbeats.check()
        except Exception:  # noqa: BLE001  # a defect must be seen; the others survive it as they survive silence
            _log.exception("the network thread of %s ended", self._me.task)
        finally:
            self._shut()

    def _handle(self, handler: Callable[[int, float], None], mask: int, now: float) -> None:
        try:
            handler(mask, now)
        except Exception:  # noqa: BLE001  # one bad frame must not end the thread
            _log.exception("a frame could not be handled")

    def _apply(self, now: float) -> None:
        wanted = self._wanted
        for incarnation in [i for i in self._links if i not in wanted]:
            self._links.pop(incarnation).close("no longer watched", now)
            self._verdicts.pop(incarnation, None)
        for incarnation, (member, in_roster) in wanted.items():
            link = self._links.get(incarnation)
            if link is None:
                link = Link(member, self._hello, self._timeout, now, self._selector, self.wake, self._opened)
                self._links = {**self._links, incarnation: link}  # readers of other threads see one or the other
                if incarnation in self._lost and in_roster:
                    link.close(self._lost[incarnation].reason, now)
            link.sticky_since = (link.sticky_since or now) if in_roster else None
        targets = {link.address for link in self._links.values()}
        known = {i for i, link in self._links.items() if link.address}
        targets |= {c.heart_address for c in self._incoming if c.member and c.member.incarnation not in known}
        self.heartbeats.set_peers(address for address in targets if address is not None)

    def _judge(self, now: float) -> None:
        for incarnation, link in list(self._links.items()):
            verdict = judge(now, link.contact, self._timeout, link.sticky_since, self._resolve_timeout)
            if verdict.silent and now < self._judge_after:
                continue
            previous = self._verdicts.get(incarnation, _UNKNOWN)
            sticky = link.sticky_since is not None
            if incarnation in self._lost and sticky:
                continue
            self._verdicts[incarnation] = verdict
            if verdict.state == detection.LOST and sticky:
                self._lost[incarnation] = verdict
                link.close(verdict.reason, now)
            if verdict.state != previous.state or (verdict.state == detection.LOST and sticky):
                self._events.on_peer_verdict(link.member, verdict)

    def _opened(self, link: Link) -> None:
        self._events.on_peer_open(link.member)

    def _accept(self, mask: int, now: float) -> None:
        for _ in range(64):
            try:
                sock, peer = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            if sum(1 for c in self._incoming if c.member is None) >= MOST_STRANGERS:
                _log.warning("dropped a connection from %s: too many that said no hello", peer[0])
                sock.close()
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            args = (self._selector, self._token, self._me.incarnation)
            events = self._events
            self._incoming.add(
                Incoming(sock, peer[:2], now, *args, self._on_frame, events.on_state_request, self._incoming.discard)
            )

    def _on_frame(self, member: Member, message: dict[str, Any]) -> None:
        link = self._links.get(member.incarnation)
        if link is not None:
            link.heard(self._clock())
        if "beat" in message:
            return
        if "bye" in message:
            if link is not None:
                link.goodbye = f"left: {str(message['bye'])[:200]}"
            return
        self._events.on_peer_message(member, message)

    def _drop_silent_strangers(self, now: float) -> None:
        for connection in [c for c in self._incoming if c.member is None and now - c.since > HELLO_SECONDS]:
            _log.warning("dropped a connection from %s:%s: no hello in %.0f s", *connection.peer, HELLO_SECONDS)
            connection.close()

    def _drain_wake(self, mask: int, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                pass

    def _shut(self) -> None:
        now = self._clock()
        for link in self._links.values():
            link.close("this process closed", now)
        for connection in list(self._incoming):
            connection.close()
        with contextlib.suppress(OSError, KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._listener.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()


def probe(member: Member, me: Member, token: str, timeout: float) -> str | None:
    """Returns the incarnation that answers at a member's port, or None: refused, silent, or a stranger.

    Blocks for at most `timeout` seconds (plus the look-up of the name).
    """
    deadline = time.monotonic() + timeout
    try:
        with socket.create_connection((member.host, member.peer_port), timeout=timeout) as sock:
            sock.settimeout(min(0.1, timeout))
            sock.sendall(frames.encode(frames.hello(token, me.to_json(), "messages")))
            answer = frames.receive_frame(sock, deadline)
    except (OSError, frames.FrameError):
        return None
    welcome = answer.get("welcome")
    return welcome if isinstance(welcome, str) else None
