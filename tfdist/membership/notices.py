"""Calls the users' callbacks, all in one thread, in order: a slow one delays no heartbeat and no judgement."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)


class Notices:
    """A queue of calls and the thread that makes them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tfdist-notices", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """Calls `callback(*args)` soon."""
        self._queue.put((callback, args))

    def close(self) -> None:
        """Ends the thread after the calls that wait; a callback that hangs is left behind after 5 s."""
        self._queue.put(None)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            callback, args = item
            try:
                callback(*args)
            except Exception:  # noqa: BLE001  # a defect in one callback must not silence the others
                _log.exception("a callback of the session failed")
