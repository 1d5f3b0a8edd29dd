"""The fork server's process: imports TensorFlow once, then forks a worker for each request, in tens of milliseconds.

It starts no thread, and it never runs a TensorFlow operation: threads do not survive a fork, and a pool that an
operation had started would be missing in every worker. (NumPy's own pool knows about forks.) Its workers die with it,
and it dies with the program that started it.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import tempfile
from typing import Any

from tfdist.launch import wire
from tfdist.launch.worker_process import become_worker, run_target

ORPHAN_CHECK_SECONDS = 1.0  # how often it looks whether its parent still lives, beside the closed channel


def main() -> None:
    """Arguments: the channel's file descriptor, then the modules to import before the first fork."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    failure = _import(sys.argv[2:])
    if failure:
        wire.send(channel, {"op": "failed", "reason": failure})
        return
    gc.collect()
    gc.freeze()  # the garbage collector of a worker then leaves the shared pages alone
    # Returns in every worker, on a stack as shallow as a script's, so that the interpreter ends as usual there: exit
    # handlers run and threads are joined.
    request = _Server(channel).serve()
    if request is not None:
        run_target(request["target"])


def _import(modules: list[str]) -> str:
    """Imports modules; returns "", or what went wrong. Shows what they print only if one fails: TensorFlow greets."""
    with tempfile.TemporaryFile() as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        failure = ""
        try:
            for module in modules:
                importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - whatever an import raises is the parent's to report
            failure = f"import {module}: {type(error).__name__}: {error}"
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
        if failure:
            said.seek(0)
            sys.stderr.write(said.read(1 << 20).decode(errors="replace"))
    return failure


class _Server:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._receiver = wire.Receiver(channel)
        self._parent = os.getppid()
        self._pids: dict[int, int] = {}  # request id -> process id, of the workers not reaped yet
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def serve(self) -> wire.Message | None:
        """Returns None in the server when its parent is gone, and in each worker the request it was forked for."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler the wakeup descriptor stays silent
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        wire.send(self._channel, {"op": "ready"})
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while os.getppid() == self._parent and not self._receiver.closed:
                for key, _ in selector.select(ORPHAN_CHECK_SECONDS):
                    if key.fileobj is self._channel:
                        for message in self._receiver.receive():
                            if self._handle(message):
                                return message
                    else:
                        os.read(self._wake_read, 4096)
                self._reap()
        for pid in self._pids.values():
            _send_signal(pid, signal.SIGKILL, group=True)
        return None

    def _handle(self, message: wire.Message) -> bool:
        """Returns True in a worker that was just forked."""
        if message["op"] == "spawn":
            return self._spawn(message)
        pid = self._pids.get(message["id"])  # a worker that was reaped gets no signal: its number may be another's now
        if pid is not None:
            _send_signal(pid, message["signal"], group=message["group"])
        return False

    def _spawn(self, message: wire.Message) -> bool:
        output = self._receiver.take_descriptors(2)
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave_to_worker()
            become_worker(message, stdout=output[0], stderr=output[1], parent=server)
            return True
        for descriptor in output:
            os.close(descriptor)
        try:
            os.setpgid(pid, pid)  # here and in the worker: whoever comes first, it is done before a signal can be sent
        except OSError:
            pass  # the worker did it, or is gone already
        self._pids[message["id"]] = pid
        self._tell({"op": "spawned", "id": message["id"], "pid": pid})
        return False

    def _leave_to_worker(self) -> None:
        signal.set_wakeup_fd(-1)
        self._channel.close()
        self._receiver.close_descriptors()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _reap(self) -> None:
        for request, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[request]
                _send_signal(pid, signal.SIGKILL, group=True)  # what the worker itself had started ends with it
                self._tell({"op": "exited", "id": request, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            wire.send(self._channel, message)
        except OSError:
            self._receiver.closed = True


def _send_signal(pid: int, number: int, *, group: bool) -> None:
    try:
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        pass  # it was faster
