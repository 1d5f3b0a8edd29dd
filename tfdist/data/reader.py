"""Reads one member's shares, some of them ahead of time in a thread."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tfdist.data.errors import DataError
from tfdist.data.plan import Plan
from tfdist.data.structure import Structure
from tfdist.errors import ConfigError, WaitTimeoutError

_IDLE_WAIT = 1.0  # seconds after which an idle thread looks whether its reader still exists


class Work(Protocol):
    """What a reader needs: see `tfdist.data.pipeline.Pipeline`."""

    lock: Any  # held by whoever reads or maps; re-entrant

    def compute(self, positions: np.ndarray) -> Structure:
        """The rows at these positions, mapped."""

    def empty(self) -> Structure:
        """No rows, with the right dtypes."""


@dataclass(frozen=True)
class Share:
    """Rows [start, stop) of a global batch."""

    epoch: int
    step: int
    start: int
    stop: int


@dataclass(eq=False)
class _Held:
    begun: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    value: Structure = None
    error: Exception | None = None


def still_useful(held: Share, asked: Share, steps_per_epoch: int, prefetch: int) -> bool:
    """Whether a share read ahead is kept when `asked` is asked for: it must be of one of the next `prefetch` steps.

    Other rows of the step that is asked for, and steps before it, come from a roster or an epoch that is over.
    """
    ahead = (held.epoch - asked.epoch) * steps_per_epoch + held.step - asked.step
    return held == asked or 0 < ahead <= prefetch


class Reader:
    """Gives the rows of a global batch that one member computes. One reader serves one share of each step.

    Only the rows asked for are read from the source. Any share may be asked for at any time and any number of times (a
    step that is tried again, other rows after a change of the roster); hints only make it faster.

    Args:
        plan: which samples a step has.
        work: reads and maps them.
        prefetch: shares that may be held ready, at least 0 (then there is no thread).
        read_timeout: seconds that `get` waits for a share that the thread is reading.
    """

    def __init__(self, plan: Plan, work: Work, prefetch: int = 2, *, read_timeout: float = 600.0) -> None:
        if prefetch < 0:
            raise ConfigError("prefetch", prefetch, "must be the number of shares to hold ready, at least 0")
        if not read_timeout > 0:
            raise ConfigError("read_timeout", read_timeout, "must be seconds, more than 0")
        self.plan = plan
        self.prefetch = prefetch
        self._work = work
        self._read_timeout = read_timeout
        self._changed = threading.Condition()
        self._held: dict[Share, _Held] = {}  # in the order of the hints
        self._thread: threading.Thread | None = None
        self._closed = False

    def get(self, epoch: int, step: int, start: int, stop: int) -> Structure:
        """Rows [start, stop) of a global batch, after map_fn and batch maps.

        Returns:
            The nested structure of tensors [stop - start, ...]; with start == stop, tensors with no rows.

        Raises:
            DataError: a sample could not be read or mapped (the message names its position), or the reader is closed.
            WaitTimeoutError: the thread needed longer than `read_timeout` for it.
            ValueError: there are no such rows.
        """
        share = Share(epoch, step, start, stop)
        with self._changed:
            self._check_open()
            steps = self.plan.steps_per_epoch
            self._held = {s: h for s, h in self._held.items() if still_useful(s, share, steps, self.prefetch)}
            held = self._held.get(share)
            if held is None or not held.begun:
                self._held.pop(share, None)  # quicker done here than waited for
                held = None
        if held is None:
            positions = self.plan.positions(epoch, step, start, stop)
            if not len(positions):
                return self._work.empty()
            with self._locked(f"the reading thread, to read {_named(share)}"):
                return self._work.compute(positions)
        if not held.done.wait(self._read_timeout):
            raise WaitTimeoutError(f"waited {self._read_timeout:g} s for {_named(share)} being read from the source")
        with self._changed:
            self._held.pop(share, None)
            self._changed.notify_all()
        if held.error is not None:
            raise held.error
        return held.value

    def hint(self, epoch: int, step: int, start: int, stop: int) -> bool:
        """Says that `get` will probably ask for this share soon.

        A newer hint for a step replaces an older one. Does not wait, and raises nothing: an error in reading is raised
        by the `get` of the same share.

        Returns:
            True if the share is or will be read ahead, False if enough shares are held, or there is nothing to read.
        """
        share = Share(epoch, step, start, stop)
        with self._changed:
            if self._closed or start >= stop:
                return False
            if share in self._held:
                return True
            self._held = {s: h for s, h in self._held.items() if (s.epoch, s.step) != (epoch, step)}
            if len(self._held) >= self.prefetch:
                return False
            self._held[share] = _Held()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_read_ahead, args=(weakref.ref(self),), name="tfdist-data-reader", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
            return True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While in this context, no thread is reading or mapping (TensorFlow's context may be changed). Hints wait.

        Raises:
            WaitTimeoutError: the share being read did not end within `read_timeout`.
        """
        with self._locked("the share being read to end, to pause reading"):
            yield

    def close(self, timeout: float = 10.0) -> bool:
        """Stops the thread and forgets what it has read. May be called twice.

        Returns:
            False if the thread, busy in the source, did not end within `timeout` seconds; it ends after that read.
        """
        with self._changed:
            self._closed = True
            self._held.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DataError("this reader was closed; take a new one from the data set: dataset.reader()")

    @contextlib.contextmanager
    def _locked(self, waiting_for: str) -> Iterator[None]:
        if not self._work.lock.acquire(timeout=self._read_timeout):
            raise WaitTimeoutError(f"waited {self._read_timeout:g} s for {waiting_for}")
        try:
            yield
        finally:
            self._work.lock.release()

    def _read_next(self) -> bool:
        """Reads the oldest share that was hinted at; False when the thread has to end."""
        with self._changed:
            if self._closed:
                return False
            if not any(not held.begun for held in self._held.values()):
                self._changed.wait(_IDLE_WAIT)
                return True
        # The lock comes first: a share that has begun is really being read, never waiting for a pause to end.
        if not self._work.lock.acquire(timeout=_IDLE_WAIT):
            return True
        try:
            with self._changed:
                pending = [(share, held) for share, held in self._held.items() if not held.begun]
                if not pending:
                    return True
                share, held = pending[0]
                held.begun = True
            try:
                positions = self.plan.positions(share.epoch, share.step, share.start, share.stop)
                held.value = self._work.compute(positions)
            except Exception as error:  # noqa: BLE001 - whatever it is, the matching get raises it
                held.error = error
            held.done.set()
        finally:
            self._work.lock.release()
        return True


def _read_ahead(reader_ref: weakref.ref[Reader]) -> None:
    # Holds no reference between two reads, so that a reader nobody closed does not live for ever.
    while True:
        reader = reader_ref()
        if reader is None or not reader._read_next():
            return
        del reader


def _named(share: Share) -> str:
    return f"rows [{share.start}, {share.stop}) of epoch {share.epoch} step {share.step}"
