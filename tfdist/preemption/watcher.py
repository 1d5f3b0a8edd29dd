"""Looks at sources of preemption notices in the background, and tells the first notice.

Each source has a thread of its own. So one that hangs (a path on a dead network mount, a source of the user's own)
delays no other, and no source needs to know about that.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tfdist.observe import emit
from tfdist.preemption.notice import Notice, Source, SourceUnavailable, require_source
from tfdist.preemption.pace import Pace

CLOSE_SECONDS = 1.8

_log = logging.getLogger(__name__)


class Clock:
    """Time as a Watcher sees it; tests have one of their own."""

    def now(self) -> float:
        """Returns monotonic seconds."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits until `event` is set, but at most so long; returns whether it is."""
        return event.wait(seconds)


class Watcher:
    """Begins to look when made, and ends with the first notice or `close()`.

    Args:
        sources: to look at; none: it does nothing.
        on_notice: called once at most, with the first notice, from a thread of this watcher. It may call `close()`.
        clock: time; for tests.

    Raises:
        ConfigError: something in `sources` is no Source.
    """

    def __init__(self, sources: Iterable[Source], on_notice: Callable[[Notice], None], clock: Clock | None = None):
        checked = [require_source(source, "sources of the Watcher") for source in sources]
        self._on_notice = on_notice
        self._clock = clock or Clock()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._told: tuple[Source, Notice] | None = None
        self._threads = [
            threading.Thread(target=self._watch, args=(source,), name=f"tfdist-preemption-{source.name}", daemon=True)
            for source in checked
        ]
        for thread in self._threads:
            thread.start()

    @property
    def notice(self) -> Notice | None:
        """The notice that was told, or None."""
        told = self._told
        return told[1] if told else None

    def acknowledge(self) -> bool:
        """Tells the source of the notice that the machine may go, where that is possible and was asked for (Azure).

        Call it when all is saved: the machine may go at once. Never raises.

        Returns:
            Whether the source was told.
        """
        told = self._told
        acknowledge = getattr(told[0], "acknowledge", None) if told else None
        if told is None or not callable(acknowledge):
            return False
        try:
            return bool(acknowledge())
        except Exception as error:  # noqa: BLE001  # the machine goes anyway; this would have been a courtesy
            emit("debug", f"{told[0].name} could not be told that this machine may go: {error}")
            return False

    def close(self) -> None:
        """Ends the looking within 2 s; afterwards no call of `on_notice` begins. A look that hangs is left behind."""
        with self._lock:
            self._stop.set()
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
                if thread.is_alive():
                    emit("debug", f"{thread.name} hangs in its look or its on_notice and is left behind")

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _watch(self, source: Source) -> None:
        pace = Pace(source.interval)
        while not self._stop.is_set():
            began = self._clock.now()
            notice, trouble = _look(source)
            if notice is not None:
                self._tell(source, notice)
                return
            if trouble is None:
                pace = pace.answered()
            else:
                pace, say = pace.failed()
                if say:
                    emit(
                        "preemption_source_unavailable",
                        f"{trouble}; it is asked again from time to time",
                        level=logging.DEBUG,
                        source=source.name,
                    )
            self._clock.wait(self._stop, pace.wait(self._clock.now() - began))

    def _tell(self, source: Source, notice: Notice) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            self._told = (source, notice)
            self._stop.set()
        emit("preemption_notice", notice.reason, level=logging.WARNING, source=notice.source, seconds=notice.seconds)
        try:
            self._on_notice(notice)
        except Exception:  # noqa: BLE001  # there is nobody else to raise it to
            _log.exception("what was to be done about a preemption notice failed")


def _look(source: Source) -> tuple[Notice | None, str | None]:
    """Returns (the notice, what is wrong with the source)."""
    try:
        notice = source.look()
    except SourceUnavailable as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001  # a defect in one source must not end the watch over it
        return None, f"{source.name}: {type(error).__name__}: {error}"
    if notice is not None and not isinstance(notice, Notice):
        return None, f"{source.name}: look() returned {type(notice).__name__}, not a Notice or None"
    return notice, None
