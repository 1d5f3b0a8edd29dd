"""SIGTERM: the worker finishes its step, hands over, and exits with the code for a preempted worker.

Python's handlers do not run while TensorFlow computes; the wakeup descriptor is written at once. A handler that the
user has set is called as before, whenever Python comes to it. A second SIGTERM ends the process at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.errors import EXIT_PREEMPTED


@contextlib.contextmanager
def leave_on_sigterm(ask_to_leave: Callable[[int], None]) -> Iterator[None]:
    """While it lasts (main thread only), the first SIGTERM calls `ask_to_leave(75)` from a thread of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, wake = socket.socketpair()
    ours.setblocking(True)
    wake.setblocking(False)
    user = signal.getsignal(signal.SIGTERM)
    asked, asking = False, threading.RLock()

    def ask() -> None:
        """Once: by the handler, between two lines of Python, or by the thread, while TensorFlow computes."""
        nonlocal asked
        with asking:
            first, asked = not asked, True
        if first:
            ask_to_leave(EXIT_PREEMPTED)

    def handler(number: int, frame: Any) -> None:
        ask()
        if callable(user):
            user(number, frame)

    def watch() -> None:
        count = 0
        while data := ours.recv(64):
            count += data.count(signal.SIGTERM)
            if count == 1:
                ask()
            elif count > 1:
                os._exit(EXIT_PREEMPTED)

    before = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    if user in (signal.SIG_DFL, signal.SIG_IGN, None) or callable(user):
        signal.signal(signal.SIGTERM, handler)
    thread = threading.Thread(target=watch, name="tfdist-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, user if user is not None else signal.SIG_DFL)
        wake.close()
        thread.join(timeout=1.0)
        ours.close()
