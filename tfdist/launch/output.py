"""The output of worker processes: read from a pipe, passed on line by line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

MAX_LINE_BYTES = 1 << 16  # a longer line is passed on in pieces


class OutputPipe:
    """The standard output and error of one process, in the order written, line by line to some receivers.

    Args:
        receivers: Each is called with every line (no line end), on the pipe's own thread.

    Attributes:
        write_end: The file descriptor to give to the process; call `started` afterwards.
    """

    def __init__(self, receivers: Sequence[Callable[[str], None]]) -> None:
        self._receivers = tuple(receivers)
        self._read_end, self.write_end = os.pipe()
        self._thread = threading.Thread(target=self._read, name="tfdist-worker-output", daemon=True)

    def started(self) -> None:
        """Closes this side's write end, so that the pipe ends when the process does, and begins to read."""
        os.close(self.write_end)
        self._thread.start()

    def finish(self, timeout: float = 2.0) -> bool:
        """Waits until all was passed on, at most `timeout` seconds: a process left behind may hold the pipe open."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _read(self) -> None:
        with os.fdopen(self._read_end, "rb", buffering=0) as pipe:
            rest = b""
            while data := pipe.read(1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._pass_on(line)
            if rest:
                self._pass_on(rest)

    def _pass_on(self, line: bytes) -> None:
        # A progress bar redraws its line with carriage returns and backspaces: what it showed last is kept.
        text = line.rstrip(b"\r").rsplit(b"\r", 1)[-1].replace(b"\b", b"").decode(errors="replace")
        for receive in self._receivers:
            receive(text)


class LogFile:
    """A file that lines are appended to, each at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def prefixed(prefix: str, write: Callable[[str], None]) -> Callable[[str], None]:
    """A receiver that writes each line with a prefix such as "[worker 1] "."""
    return lambda line: write(prefix + line)
