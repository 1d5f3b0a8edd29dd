"""The messages between a program and its fork server: one JSON object a line, over a socket pair.

To the server:

    {"op": "spawn", "id": 1, "target": {"script": PATH} or {"module": NAME}, "argv": [...], "env": {...}, "cwd": PATH}
        together with two file descriptors, the process's standard output and standard error
    {"op": "signal", "id": 1, "signal": 9, "group": true}

From the server:

    {"op": "ready"} or {"op": "failed", "reason": TEXT}, once
    {"op": "spawned", "id": 1, "pid": 4711}
    {"op": "exited", "id": 1, "code": -9} (minus the signal, as in subprocess)
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

MAX_MESSAGE_BYTES = 1 << 20
_DESCRIPTORS_AT_ONCE = 16

Message = dict[str, Any]


def send(channel: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Sends one message, and copies of file descriptors with it.

    Raises:
        ValueError: The message is longer than MAX_MESSAGE_BYTES.
        OSError: The other side is gone.
    """
    data = json.dumps(message).encode() + b"\n"
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"a message of {len(data)} bytes is longer than {MAX_MESSAGE_BYTES}; pass less by environment and arguments"
        )
    sent = socket.send_fds(channel, [data], list(descriptors)) if descriptors else 0
    if sent < len(data):
        channel.sendall(data[sent:])


class Receiver:
    """Puts the messages together again that arrive on a channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._rest = b""
        self._descriptors: list[int] = []
        self.closed = False

    def receive(self) -> list[Message]:
        """Waits for the next bytes; returns the messages they complete. Sets `closed` when the other side is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._channel, 1 << 16, _DESCRIPTORS_AT_ONCE)
        except ConnectionError:
            data, descriptors = b"", []
        self._descriptors += descriptors
        if not data:
            self.closed = True
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message is longer than {MAX_MESSAGE_BYTES} bytes")
        return [json.loads(line) for line in lines]

    def take_descriptors(self, count: int) -> list[int]:
        """The descriptors of the oldest message whose descriptors were not taken yet; the caller closes them."""
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    def close_descriptors(self) -> None:
        for descriptor in self.take_descriptors(len(self._descriptors)):
            os.close(descriptor)
