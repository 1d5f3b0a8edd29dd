"""The thread between a process and the store: reads the view, renews the lease, writes status and progress.

The store being away stops nobody: it is logged once when it goes and once when it is back.
"""

import logging
import threading
from collections.abc import Callable

from tfdist.errors import StoreError, StoreUnavailableError
from tfdist.membership import claims, keys, records
from tfdist.membership.roster import dump
from tfdist.membership.run_state import RunState
from tfdist.membership.status import StatusBoard
from tfdist.membership.stores.base import Store

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
SLOW_SECONDS = 1.0


class Watch:
    """Polls the store.

    Args:
        store: the run's store.
        state: gets each view.
        board: the status to write.
        lease: seconds of the lease.
        clock: monotonic seconds.
        after_poll: called after each pass, whether or not the store answered.
    """

    def __init__(
        self,
        store: Store,
        state: RunState,
        board: StatusBoard,
        lease: float,
        clock: Callable[[], float],
        after_poll: Callable[[], None],
    ):
        self._store = store
        self._state = state
        self._board = board
        self._lease = lease
        self._clock = clock
        self._after_poll = after_poll
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._counter = 0
        self._slow_at = float("-inf")
        self._renew_at = float("-inf")
        self._trouble = ""
        self._leave_written = False
        self._step_written = 0
        self._drain_told = False
        self.on_drain: Callable[[], None] = lambda: None  # called once if somebody asks this process to leave for good
        self.step = 0
        self.renewed_at = clock()
        self.away = False
        self._thread = threading.Thread(target=self._run, name="tfdist-watch", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Looks at the store now."""
        self._wake.set()

    def close(self) -> None:
        """Ends the thread; what is left to write is written, if the store is there."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def write_step(self) -> None:
        """Writes the committed step, if it is higher than what was written."""
        step = self.step
        if step > self._step_written:
            records.raise_committed(self._store, step)
            self._step_written = step

    def _run(self) -> None:
        while not self._stop.is_set():
            self._pass()
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()
        try:
            self.write_step()
            self._board.write(self._store, self._state.roster, self._clock(), force=True)
        except StoreError as error:
            _log.info("the last status was not written: %s", error)

    def _pass(self) -> None:
        try:
            self._poll(self._clock())
        except StoreUnavailableError as error:
            if not self.away:
                _log.warning("%s; training goes on", error)
            self.away = True
        except StoreError as error:
            if str(error) != self._trouble:
                _log.error("%s", error)
            self._trouble = str(error)
        except Exception:  # noqa: BLE001  # this thread must not end: it finds out that this process was removed
            _log.exception("a look at the store failed")
        else:
            if self.away:
                _log.warning("the store is back")
            self.away = False
        self._after_poll()

    def _poll(self, now: float) -> None:
        store, state = self._store, self._state
        if now >= self._renew_at:
            self._counter += 1
            claims.renew_lease(store, state.me, self._counter)
            self.renewed_at = now  # when it was sent, not when the answer came
            self._renew_at = now + self._lease / 3
        state.take_view(keys.read_view(store), now)
        if state.leave_reason is not None and not self._leave_written:
            value = {"incarnation": state.me.incarnation, "why": state.leave_reason[:500]}
            store.put(f"{keys.LEAVE}{state.me.task}", dump(value))
            self._leave_written = True
        if now - self._slow_at < SLOW_SECONDS:
            return
        self._slow_at = now
        holder = claims.holder_of(store, state.me)
        if holder is not None and holder.incarnation != state.me.incarnation and state.removed is None:
            state.take_removal(f"the process at {holder.address} claims {state.me.task} now")
        if not self._drain_told and records.drain_asked(store, state.me):
            self._drain_told = True
            self.on_drain()
        self.write_step()
        self._board.write(store, state.roster, now)
