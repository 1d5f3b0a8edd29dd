"""Moves state in bulk from one member to another, over a connection of its own.

Answer to a request: a header frame, the raw bytes in chunks of 1 MiB, and a frame with their checksum. The receiver
says before the first byte how many it accepts, and uses nothing before the checksum is right.
"""

import contextlib
import hashlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tfdist.errors import TfdistError, TransferError, TransferRefusedError
from tfdist.membership import frames
from tfdist.membership.roster import Member

_log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
REQUEST_SECONDS = 10.0
STALL_SECONDS = 60.0
_TICK_SECONDS = 0.1


class Provider(Protocol):
    """Gives the state: called in a thread of its own for each request."""

    def __call__(self, generation: int) -> tuple[dict[str, Any], Sequence[Any]]:
        """Returns (header: small JSON, buffers: objects with the buffer protocol, contiguous)."""


class StateServer:
    """Answers the requests of other members."""

    def __init__(self) -> None:
        self.provider: Provider | None = None
        self.on_chunk: Callable[[int], None] | None = None
        self._closed = threading.Event()

    def handle(self, sock: socket.socket, member: Member) -> None:
        """Takes over a connection whose hello has been answered."""
        threading.Thread(target=self._serve, args=(sock, member), name="tfdist-state", daemon=True).start()

    def close(self) -> None:
        """Ends the transfers that run."""
        self._closed.set()

    def _serve(self, sock: socket.socket, member: Member) -> None:
        with sock:
            sock.settimeout(_TICK_SECONDS)
            try:
                request = frames.receive_frame(sock, time.monotonic() + REQUEST_SECONDS)
                header, buffers = self._provide(request)
                views = [memoryview(b).cast("B") for b in buffers if memoryview(b).nbytes]
                first = frames.encode({"header": header, "bytes": sum(len(view) for view in views)})
            except Exception as error:  # noqa: BLE001  # whatever the provider raises: the receiver gets to know
                _log.warning("state is not sent to %s: %s", member.task, error)
                with contextlib.suppress(OSError):
                    _send(sock, frames.encode({"refused": str(error)[:500]}), self._closed)
                return
            try:
                _send(sock, first, self._closed)
                self._send_all(sock, views)
            except Exception as error:  # noqa: BLE001  # the receiver sees the closed connection; this member goes on
                _log.warning("state was not sent to %s in full: %s", member.task, error)

    def _send_all(self, sock: socket.socket, views: list[memoryview]) -> None:
        checksum = hashlib.blake2b(digest_size=16)
        sent = 0
        for view in views:
            for start in range(0, len(view), CHUNK_BYTES):
                chunk = view[start : start + CHUNK_BYTES]
                checksum.update(chunk)
                _send(sock, chunk, self._closed)
                sent += len(chunk)
                if self.on_chunk is not None:
                    self.on_chunk(sent)
        _send(sock, frames.encode({"checksum": checksum.hexdigest()}), self._closed)

    def _provide(self, request: dict[str, Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        generation = request.get("generation")
        if not isinstance(generation, int):
            raise TransferError(f"a request without a generation: {str(request)[:80]}")
        if self.provider is None:
            raise TransferError("this member serves no state")
        return self.provider(generation)


def fetch(
    source: Member,
    me: Member,
    token: str,
    generation: int,
    *,
    accept: Callable[[dict[str, Any]], int],
    check: Callable[[], None],
    timeout: float,
    on_chunk: Callable[[int], None] | None = None,
) -> tuple[dict[str, Any], bytearray]:
    """Fetches the state of `source`.

    Args:
        source: who has it.
        me: this member.
        token: the secret of the run.
        generation: passed to the source's provider.
        accept: given the header, returns how many bytes are expected; raises to refuse.
        check: called while nothing comes; raises when it is no use to wait.
        timeout: seconds for all of it.
        on_chunk: called with the number of bytes received so far.

    Returns:
        (header, the bytes of all buffers in a row).

    Raises:
        TransferError: refused, a size that was not expected, a checksum that differs, or too slow.
        ConnectionError, OSError: the source is gone.
    """
    deadline = time.monotonic() + timeout
    try:
        with socket.create_connection((source.host, source.peer_port), timeout=min(timeout, 5.0)) as sock:
            sock.settimeout(_TICK_SECONDS)
            sock.sendall(frames.encode(frames.hello(token, me.to_json(), "state")))
            welcome = frames.receive_frame(sock, deadline, check).get("welcome")
            if welcome != source.incarnation:
                raise ConnectionResetError("another process answers at its port")
            sock.sendall(frames.encode({"generation": generation}))
            first = frames.receive_frame(sock, deadline, check)
            header, size = first.get("header"), first.get("bytes")
            if not isinstance(header, dict) or not isinstance(size, int):
                raise TransferRefusedError(f"{source.task} refused: {str(first.get('refused', 'no reason'))[:500]}")
            expected = accept(header)
            if size != expected:
                raise TransferError(f"{source.task} offers {size} bytes of state, {expected} are expected")
            data = bytearray(size)
            checksum = hashlib.blake2b(digest_size=16)
            view = memoryview(data)
            for start in range(0, size, CHUNK_BYTES):
                chunk = view[start : start + CHUNK_BYTES]
                frames.receive_exactly(sock, chunk, deadline, check)
                checksum.update(chunk)
                if on_chunk is not None:
                    on_chunk(start + len(chunk))
            last = frames.receive_frame(sock, deadline, check)
            if last.get("checksum") != checksum.hexdigest():
                raise TransferError(f"the state of {source.task} arrived damaged: its checksum differs")
            return header, data
    except TfdistError:
        raise
    except TimeoutError as error:
        raise TransferError(f"the state of {source.task} did not arrive in {timeout:.1f} s ({error})") from None
    except frames.FrameError as error:
        raise TransferError(f"the state of {source.task} arrived damaged: {error}") from None


def _send(sock: socket.socket, data: bytes | memoryview, closed: threading.Event) -> None:
    view = memoryview(data)
    last = time.monotonic()
    while view:
        try:
            view = view[sock.send(view) :]
            last = time.monotonic()
        except TimeoutError:
            if closed.is_set() or time.monotonic() - last > STALL_SECONDS:
                raise ConnectionAbortedError("the receiver takes nothing") from None
