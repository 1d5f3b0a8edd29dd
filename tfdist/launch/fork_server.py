"""The fork server as its user sees it: starts processes that have TensorFlow imported already.

`import tensorflow` takes seconds; a fork of a process that did it takes tens of milliseconds. Used by `tfdist run` and
by tfdist.testing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tfdist
from tfdist.launch import wire

PRELOAD = (
    "tensorflow",
    "keras",
    "tfdist.strategies.elastic_mirrored",
    "tfdist.callbacks.elastic_training",
    "tfdist.data",
)
START_TIMEOUT = 180.0  # seconds for importing TensorFlow on a busy machine

# -P keeps the current directory off sys.path; the package's parent directory goes last, where it can shadow nothing.
_BOOT = """
import sys
root = sys.argv.pop(1)
if root not in sys.path:
    sys.path.append(root)
from tfdist.launch.fork_server_main import main
main()
"""


class ForkServerError(RuntimeError):
    """The fork server could not start, or is gone."""


class ForkedProcess:
    """A process that the fork server started.

    Attributes:
        pid: Process id.
        returncode: None while it runs; then its exit code, or minus the number of the signal that ended it.
    """

    def __init__(self, server: ForkServer, number: int, on_exit: Callable[[ForkedProcess], None] | None) -> None:
        self._server = server
        self._number = number
        self._on_exit = on_exit
        self._spawned = threading.Event()
        self._ended = threading.Event()
        self.pid = 0
        self.returncode: int | None = None

    def signal(self, number: int, *, group: bool = False) -> None:
        """Sends it (or with group its whole process group) a signal. One that has ended gets none."""
        if self.returncode is None:
            self._server._tell({"op": "signal", "id": self._number, "signal": int(number), "group": group})

    def wait(self, timeout: float) -> int:
        """Waits until it ended; returns `returncode`. Raises TimeoutError after `timeout` seconds."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
        return self.returncode if self.returncode is not None else -signal.SIGKILL

    def _has_ended(self, code: int) -> None:
        self.returncode = code
        self._spawned.set()
        self._ended.set()
        if self._on_exit is not None:
            self._on_exit(self)


class ForkServer:
    """Starts processes by forking one that has imported some modules.

    Args:
        preload: Modules to import before the first fork.
        env: The server's environment; None takes this process's. KERAS_BACKEND and TF_CPP_MIN_LOG_LEVEL are read when
            TensorFlow and Keras are imported, so they count here and not in the environment of a worker.

    The server ends, and its processes with it, at `close` and when this process dies in whatever way.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD, env: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        self._processes: dict[int, ForkedProcess] = {}  # request number -> process that has not ended
        self._count = 0
        self._ready = threading.Event()
        self._failure: str | None = None
        self._channel, theirs = socket.socketpair()
        root = str(Path(tfdist.__file__).resolve().parent.parent)
        environment = {
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **(os.environ if env is None else env),
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, root, str(theirs.fileno()), *preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                process_group=0,  # Ctrl-C in the terminal is not for the server
            )
        self._reader = threading.Thread(target=self._read, name="tfdist-fork-server-reader", daemon=True)
        self._reader.start()

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Waits until the modules are imported.

        Raises:
            ForkServerError: They can't be imported, or that took longer than `timeout` seconds.
        """
        if not self._ready.wait(timeout):
            raise ForkServerError(f"the fork server has not finished its imports within {timeout} s")
        if self._failure is not None:
            raise ForkServerError(self._failure)

    def spawn(
        self,
        target: Mapping[str, str],
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: int,
        stderr: int,
        cwd: str | os.PathLike[str] | None = None,
        on_exit: Callable[[ForkedProcess], None] | None = None,
        timeout: float = START_TIMEOUT,
    ) -> ForkedProcess:
        """Starts a process.

        Args:
            target: {"script": path} or {"module": name}, run as `__main__`.
            argv: Its sys.argv.
            env: Its whole environment.
            stdout: File descriptor that becomes its standard output; still the caller's to close, as is stderr.
            stderr: File descriptor that becomes its standard error.
            cwd: Its directory; None is this process's.
            on_exit: Called with the process when it has ended, on another thread.
            timeout: Seconds, for the server's imports too.

        Raises:
            ForkServerError: The server failed to start, is gone, or did not answer in time.
        """
        with self._lock:
            if self._failure is not None:
                raise ForkServerError(self._failure)
            self._count += 1
            process = ForkedProcess(self, self._count, on_exit)
            self._processes[self._count] = process
            message = {
                "op": "spawn",
                "id": self._count,
                "target": dict(target),
                "argv": list(argv),
                "env": dict(env),
                "cwd": os.fspath(cwd or Path.cwd()),
            }
            wire.send(self._channel, message, [stdout, stderr])
        if not process._spawned.wait(timeout):
            raise ForkServerError(f"the fork server has not started a process within {timeout} s")
        if process.pid == 0:
            raise ForkServerError(self._failure or "the fork server is gone")
        return process

    def close(self, timeout: float = 10.0) -> None:
        """Kills what still runs, ends the server and waits for it, at most `timeout` seconds."""
        try:
            self._channel.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone already
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout)
        self._reader.join(timeout)
        self._channel.close()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, message: dict[str, Any]) -> None:
        with self._lock:
            try:
                wire.send(self._channel, message)
            except OSError:
                pass  # the server is gone, and its processes with it: the reader tells

    def _read(self) -> None:
        receiver = wire.Receiver(self._channel)
        while not receiver.closed:
            for message in receiver.receive():
                self._handle(message)
        with self._lock:
            self._failure = self._failure or "the fork server is gone"
            left = list(self._processes.values())
            self._processes.clear()
        self._ready.set()
        for process in left:
            process._has_ended(-signal.SIGKILL)

    def _handle(self, message: dict[str, Any]) -> None:
        if message["op"] == "ready":
            self._ready.set()
        elif message["op"] == "failed":
            self._failure = f"the fork server could not start: {message['reason']}"
        elif message["op"] == "spawned":
            process = self._processes[message["id"]]
            process.pid = message["pid"]
            process._spawned.set()
        elif message["op"] == "exited":
            with self._lock:
                process = self._processes.pop(message["id"])
            process._has_ended(message["code"])
