"""Frames between members: 4 bytes of length, then JSON. Bounded, and never anything that could be executed.

The first frame of a connection is a hello: the run's secret token, who speaks, and the purpose of the connection.
"""

import hmac
import json
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

MAX_FRAME_BYTES = 1 << 20
MAX_HELLO_BYTES = 4096
PURPOSES = ("messages", "heartbeat", "state")

_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """A frame is too large or no JSON object; its connection is dropped."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Returns the frame of `message`; FrameError if it has more than 1 MiB or is not JSON."""
    try:
        body = json.dumps(message, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise FrameError(f"a message must be JSON: {error}") from None
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is larger than {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise FrameError(f"a frame that is not JSON: {bytes(body[:40])!r}") from None
    if not isinstance(message, dict):
        raise FrameError(f"a frame that is not a JSON object: {bytes(body[:40])!r}")
    return message


class FrameReader:
    """Cuts a stream into frames.

    Args:
        limit: most bytes of a frame; the owner raises it once the hello is accepted.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES):
        self.limit = limit
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Adds received bytes."""
        self._data += data

    def next(self) -> dict[str, Any] | None:
        """Returns the next complete frame, or None; FrameError for one that is too large or malformed."""
        if len(self._data) < 4:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        if length > self.limit:
            raise FrameError(f"a frame of {length} bytes, more than {self.limit}")
        if len(self._data) < 4 + length:
            return None
        body = bytes(self._data[4 : 4 + length])
        del self._data[: 4 + length]
        return _decode(body)

    @property
    def empty(self) -> bool:
        """Says whether no received bytes are left."""
        return not self._data


def receive_exactly(sock: socket.socket, view: memoryview, deadline: float, check: Callable[[], None]) -> None:
    """Fills `view` from a socket with a short timeout; `check` is called while nothing comes and may raise.

    Raises:
        TimeoutError: `deadline` (time.monotonic) is over.
        ConnectionError: the other side closed.
    """
    done = 0
    while done < len(view):
        try:
            count = sock.recv_into(view[done:])
        except TimeoutError:
            check()
            if time.monotonic() > deadline:
                raise TimeoutError("nothing more arrived in time") from None
            continue
        if count == 0:
            raise ConnectionResetError("the other side closed the connection")
        done += count


def receive_frame(
    sock: socket.socket, deadline: float, check: Callable[[], None] = lambda: None, limit: int = MAX_FRAME_BYTES
) -> dict[str, Any]:
    """Returns one frame from a blocking socket with a short timeout. Raises as `receive_exactly`, and FrameError."""
    head = bytearray(4)
    receive_exactly(sock, memoryview(head), deadline, check)
    (length,) = _LENGTH.unpack(head)
    if length > limit:
        raise FrameError(f"a frame of {length} bytes, more than {limit}")
    body = bytearray(length)
    receive_exactly(sock, memoryview(body), deadline, check)
    return _decode(bytes(body))


def hello(token: str, member: Mapping[str, Any], purpose: str) -> dict[str, Any]:
    """Returns the first message of a connection; `member` is `Member.to_json()`."""
    return {"hello": {"token": token, "purpose": purpose, "member": dict(member)}}


def read_hello(message: Mapping[str, Any], token: str) -> tuple[str, Any]:
    """Returns (purpose, the member's JSON) of a hello; FrameError if it is none, or has another token."""
    body = message.get("hello")
    if not isinstance(body, dict) or body.get("purpose") not in PURPOSES:
        raise FrameError("the first frame is not a hello")
    given = body.get("token")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), token.encode()):
        raise FrameError("a stranger: it does not know the token of the run")
    return body["purpose"], body.get("member")
