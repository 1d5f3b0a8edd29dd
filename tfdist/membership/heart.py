"""Sends heartbeats for its parent process: ``python -S -E heart.py``. Standard library only, about 10 MB.

A thread of the parent could not do it: C code that holds the GIL for seconds would look like death. This process beats
while its parent is alive and not stopped, so a frozen parent falls silent. It reads JSON lines: first
``{"parent": pid, "interval": seconds, "hello": {...}}``, then ``{"peers": [[ip, port], ...]}`` at each change, and ends
with the end of its input.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

CONNECT_SECONDS = 5.0
MOST_UNSENT_BYTES = 4096


def frame(message: dict[str, Any]) -> bytes:
    """Returns 4 bytes of length and JSON (as frames.encode, which this file must not import)."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return struct.pack(">I", len(body)) + body


def parent_state(pid: int) -> str:
    """Returns "alive", "stopped" or "gone" of this process's parent."""
    if os.getppid() != pid:
        return "gone"
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "alive" if not os.path.isdir("/proc/self") else "gone"
    if letter in "Tt":
        return "stopped"
    return "gone" if letter in "ZX" else "alive"


class Line:
    """The connection to one peer. Never blocks: a peer that does not answer must not delay the others."""

    def __init__(self, address: tuple[str, int], hello: bytes, beat: bytes):
        self.address = address
        self.hello = hello
        self.beat_frame = beat
        self.sock: socket.socket | None = None
        self.unsent = b""
        self.connecting_since = 0.0

    def beat(self, now: float) -> None:
        """Sends a heartbeat, or begins to connect."""
        if self.sock is None:
            family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock.connect_ex(self.address)
            self.unsent = self.hello
            self.connecting_since = now
        if len(self.unsent) < MOST_UNSENT_BYTES:
            self.unsent += self.beat_frame
        self.flush(now)

    def flush(self, now: float) -> None:
        """Sends what the socket takes; a broken one is connected anew at the next beat."""
        if self.sock is None or not self.unsent:
            return
        try:
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
            self.connecting_since = now
        except (BlockingIOError, InterruptedError):
            if now - self.connecting_since > CONNECT_SECONDS:
                self.close()
        except OSError:
            self.close()

    def close(self) -> None:
        """Closes the socket."""
        if self.sock is not None:
            self.sock.close()
        self.sock = None
        self.unsent = b""


class Beater:
    """Heartbeats to a changing set of peers."""

    def __init__(self, hello: dict[str, Any]):
        self._hello = frame(hello)
        self._beat = frame({"beat": 1})
        self._lines: dict[tuple[str, int], Line] = {}

    def set_peers(self, peers: list[Any]) -> None:
        """Beats for these (ip, port) from now on."""
        wanted = {(str(ip), int(port)) for ip, port in peers}
        for address in [a for a in self._lines if a not in wanted]:
            self._lines.pop(address).close()
        for address in wanted - set(self._lines):
            self._lines[address] = Line(address, self._hello, self._beat)

    def beat(self) -> None:
        """Sends one heartbeat to each peer."""
        now = time.monotonic()
        for line in self._lines.values():
            line.beat(now)

    def unsent(self) -> list[Line]:
        """Returns the lines that wait for their socket."""
        return [line for line in self._lines.values() if line.unsent and line.sock is not None]


def serve(stdin: int) -> None:
    """Beats until the input ends or the parent is gone."""
    data = b""
    beater: Beater | None = None
    interval, parent, next_beat = 1.0, os.getppid(), time.monotonic()
    while True:
        now = time.monotonic()
        if now >= next_beat:
            state = parent_state(parent)
            if state == "gone":
                return
            if state == "alive" and beater is not None:
                beater.beat()
            next_beat = now + interval
        lines = beater.unsent() if beater is not None else []
        waiting = [line.sock for line in lines if line.sock is not None]
        readable, writable, _ = select.select([stdin], waiting, [], max(0.0, next_beat - time.monotonic()))
        for line in lines:
            if line.sock in writable:
                line.flush(time.monotonic())
        if not readable:
            continue
        chunk = os.read(stdin, 65536)
        if not chunk:
            return
        *complete, data = (data + chunk).split(b"\n")
        for text in complete:
            command = json.loads(text)
            if "hello" in command:
                beater = Beater(command["hello"])
                interval, parent = float(command["interval"]), int(command["parent"])
            if "peers" in command and beater is not None:
                beater.set_peers(command["peers"])
                next_beat = time.monotonic()  # a new peer hears of us at once


if __name__ == "__main__":
    # A signal for the whole group is the parent's affair: as long as that lives, it is not dead.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt):
        serve(sys.stdin.fileno())
