"""What the store says about a run, in the shape of events, so that the table has one way of taking news in."""

from __future__ import annotations

from typing import Any

from tfdist.errors import ConfigError, StoreError
from tfdist.membership import keys
from tfdist.membership.status import read_statuses
from tfdist.membership.stores import ScopedStore, Store, open_store

READ_SECONDS = 1.0  # statuses are written about as often


class StoreStatus:
    """Reads the roster and the statuses of a run. A store that is away, or of a kind not known here, tells nothing.

    Args:
        url: Of the store.
        run_id: Scope of the run in it.
    """

    def __init__(self, url: str, run_id: str) -> None:
        self._url, self._run_id = url, run_id
        self._store: Store | None = None
        self._next = 0.0

    def read(self, now: float) -> list[dict[str, Any]]:
        """The news, at most once in READ_SECONDS.

        Args:
            now: Seconds of a monotonic clock.
        """
        if now < self._next:
            return []
        self._next = now + READ_SECONDS
        try:
            if self._store is None:
                self._store = ScopedStore(open_store(self._url), keys.run_prefix(self._run_id))
            return read_news(self._store)
        except ConfigError:
            self._next = float("inf")
        except StoreError:
            pass  # it may be back the next time; the workers themselves say what they miss
        return []

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def read_news(store: Store) -> list[dict[str, Any]]:
    """One event about the roster, and one about each task that has a status.

    Raises:
        StoreError: The store is away, or holds something malformed.
    """
    news = []
    roster = keys.read_view(store).roster
    if roster is not None:
        members = [task.index for task in roster.tasks]
        news.append(_event(None, {"generation": roster.generation, "members": members}))
    for task, status in read_statuses(store).items():
        facts = status.get("facts")
        told = {name: value for name, value in facts.items() if name != "generation"} if isinstance(facts, dict) else {}
        news.append(_event(task, {**told, "phase": str(status.get("phase", ""))[:40]}))
    return news


def _event(task: str | None, numbers: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "progress", "message": "", "task": task, "numbers": numbers}
