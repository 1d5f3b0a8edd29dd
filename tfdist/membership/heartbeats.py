"""Runs the helper process that sends this member's heartbeats; a thread where it cannot be started."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

from tfdist.membership import heart

_log = logging.getLogger(__name__)


class Heartbeats:
    """Sends heartbeats to the peers last set.

    Args:
        hello: first message on each connection.
        interval: seconds between heartbeats.
        executable: the Python that runs the helper.
    """

    def __init__(self, hello: dict[str, Any], interval: float, executable: str | None = None):
        self._hello = hello
        self._interval = interval
        self._executable = executable or sys.executable
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._beater: heart.Beater | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._peers: list[list[Any]] = []

    def start(self) -> None:
        """Starts the helper, or the thread."""
        try:
            self._process = subprocess.Popen(
                [self._executable, "-S", "-E", heart.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                close_fds=True,
                cwd="/",
            )
            self._tell({"parent": os.getpid(), "interval": self._interval, "hello": self._hello})
        except (OSError, ValueError) as error:
            self._fall_back(str(error))

    def set_peers(self, peers: Iterable[tuple[str, int]]) -> None:
        """Sends heartbeats to these (numeric address, port) from now on."""
        wanted = sorted([ip, port] for ip, port in set(peers))
        if wanted == self._peers:
            return
        self._peers = wanted
        with self._lock:
            if self._beater is not None:
                self._beater.set_peers(wanted)
        if self._process is not None:
            try:
                self._tell({"peers": wanted})
            except OSError as error:
                self._fall_back(str(error))

    def check(self) -> None:
        """Replaces a helper that ended (killed for memory, say) by the thread."""
        if self._process is not None and self._process.poll() is not None:
            self._fall_back(f"it ended with code {self._process.returncode}")

    @property
    def helper_pid(self) -> int | None:
        """Process id of the helper; None if a thread sends."""
        return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """Ends the helper or the thread."""
        self._stop.set()
        if self._process is not None:
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5.0)
            self._process = None
        if self._thread is not None:
            self._thread.join(2.0)
            if self._beater is not None:
                self._beater.set_peers([])

    def _tell(self, command: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def _fall_back(self, why: str) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(5.0)
        if self._stop.is_set():
            return
        _log.warning("no helper process for heartbeats (%s): a thread sends them, which a held GIL stops", why)
        self._beater = heart.Beater(self._hello)
        self._beater.set_peers(self._peers)
        self._thread = threading.Thread(target=self._beat, name="tfdist-heartbeats", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                if self._beater is not None:
                    self._beater.beat()
            self._stop.wait(self._interval)
