"""What each process is doing, for people and for the warnings of those that wait. Never used for decisions."""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from tfdist.errors import StoreError
from tfdist.membership import keys
from tfdist.membership.roster import Member, Roster, dump, load
from tfdist.membership.stores.base import Store

_log = logging.getLogger(__name__)

WRITE_SECONDS = 1.0
REFRESH_SECONDS = 5.0
MAX_STATUS_BYTES = 16 << 10


class StatusBoard:
    """The own status, written by the watch thread at most once a second.

    Args:
        me: this member.
        clock: monotonic seconds.
    """

    def __init__(self, me: Member, clock: Callable[[], float]):
        self._me = me
        self._clock = clock
        self._lock = threading.Lock()
        self._phase = "starting"
        self._since = clock()
        self._facts: dict[str, Any] = {}
        self._changed = True
        self._written_at = float("-inf")

    def announce(self, phase: str) -> None:
        """Says what this process does now. Cheap."""
        with self._lock:
            if phase != self._phase:
                self._phase, self._since, self._changed = phase, self._clock(), True

    def publish(self, facts: dict[str, Any]) -> None:
        """Adds small facts; None takes one away. Cheap."""
        with self._lock:
            merged = {**self._facts, **facts}
            self._facts = {name: value for name, value in merged.items() if value is not None}
            self._changed = True

    def write(self, store: Store, roster: Roster | None, now: float, force: bool = False) -> None:
        """Writes the status if it is due."""
        with self._lock:
            age = now - self._written_at
            if not force and (age < WRITE_SECONDS or (not self._changed and age < REFRESH_SECONDS)):
                return
            status = {
                "task": str(self._me.task),
                "incarnation": self._me.incarnation,
                "address": self._me.address,
                "pid": os.getpid(),
                "generation": roster.generation if roster else 0,
                "phase": self._phase,
                "phase_seconds": round(now - self._since, 3),  # no wall clock: as of this writing
                "facts": self._facts,
            }
            self._changed, self._written_at = False, now
        value = dump(status)
        if len(value) > MAX_STATUS_BYTES:
            _log.warning("the facts of %s are too large for a status: %d bytes", self._me.task, len(value))
            value = dump({**status, "facts": {}})
        store.put(f"{keys.STATUS}{self._me.task}", value)


def read_statuses(store: Store) -> dict[str, dict[str, Any]]:
    """Returns the status of each task ("worker/1"), malformed ones left out."""
    found = {}
    for key, entry in store.list(keys.STATUS).items():
        try:
            found[key[len(keys.STATUS) :]] = load(key, entry.value)
        except StoreError as problem:
            _log.warning("ignored: %s", problem)
    return found


def describe_phase(statuses: dict[str, dict[str, Any]], task: object) -> str:
    """Returns "in phase 'batch 3' for 12 s" of a task, as a part of a sentence."""
    status = statuses.get(str(task))
    if status is None:
        return "has announced nothing"
    seconds = status.get("phase_seconds")
    spent = f" for {seconds:.0f} s" if isinstance(seconds, (int, float)) else ""
    return f"in phase {str(status.get('phase'))[:100]!r}{spent}"
