"""While a step waits for other members: says for whom, and finds members that wait for different things."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfdist.errors import StoreError
from tfdist.observe.events import emit

if TYPE_CHECKING:
    from tfdist.strategies.group import ElasticGroup

SAY_AFTER = 10.0  # seconds
LOOK_EVERY = 1.0
APART_AFTER = 3  # looks in a row


def others(statuses: Mapping[str, Mapping[str, Any]], members: list[str]) -> dict[str, dict[str, Any]]:
    """{task: {"doing", "clock", "seconds"}} of those members that have published it."""
    found = {}
    for task in members:
        facts = statuses.get(task, {}).get("facts", {})
        if isinstance(facts, dict) and "doing" in facts:
            found[task] = facts
    return found


def apart(mine: str, clock: int, found: Mapping[str, Mapping[str, Any]]) -> str | None:
    """A sentence if another member waits, at the same point of the run, for something else than this one does."""
    for task, facts in found.items():
        doing = facts["doing"]
        if facts.get("clock") == clock and doing != mine and doing.startswith(("step", "meeting")):
            return (
                f"{task} waits in {doing!r} while this worker waits in {mine!r}: they would wait for ever. A call like "
                "evaluate, or a collective, must be made on all workers, not on one only (from a callback, say)"
            )
    return None


class Watchdog:
    """A thread that looks now and then at a group that waits."""

    def __init__(self, group: ElasticGroup):
        self._group = weakref.ref(group)
        self._ended = threading.Event()
        self._looks = 0
        self._said_at = 0.0
        threading.Thread(target=self._watch, name="tfdist-waiting", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY):
            group = self._group()
            if group is None:
                return
            waited = group.waiting_for()
            if waited < 2 * LOOK_EVERY:
                self._looks = 0
                continue
            try:
                self._look(group, waited)
            except StoreError:
                continue  # the store is away: nobody to ask
            finally:
                del group

    def _look(self, group: ElasticGroup, waited: float) -> None:
        session, roster = group.session, group.roster
        if session is None or roster is None:
            return
        members = [str(task) for task in roster.tasks if task != session.me.task]
        statuses = session.statuses()
        sentence = apart(group.doing, group.progress.clock, others(statuses, members))
        self._looks = self._looks + 1 if sentence else 0
        if sentence and self._looks >= APART_AFTER:
            group.members_are_apart(sentence)
            return
        now = time.monotonic()
        if waited >= SAY_AFTER and now - self._said_at >= SAY_AFTER:
            self._said_at = now
            busy = [t for t, f in others(statuses, members).items() if not f["doing"].startswith(("step", "meeting"))]
            doing = "; ".join(f"{t} {statuses[t]['facts']['doing']} in {statuses[t].get('phase')}" for t in busy)
            if doing:
                emit("waiting", f"{group.doing} waits since {waited:.0f} s: {doing}", seconds=round(waited, 1))
