"""A barrier through the links: each member's payload to all, about a millisecond on one machine."""

import logging
from collections.abc import Callable
from typing import Any

from tfdist.errors import WaitTimeoutError
from tfdist.membership.mailbox import Mailbox, Occasion
from tfdist.membership.peers import PeerNetwork
from tfdist.membership.roster import Member, Roster
from tfdist.membership.run_state import RunState
from tfdist.tf_config import Task

_log = logging.getLogger(__name__)

WARN_SECONDS = 10.0
POLL_SECONDS = 0.25


class Meetings:
    """The barriers of one process.

    Args:
        state: what this process knows; its condition guards the mailbox.
        network: the links.
        clock: monotonic seconds.
        describe: returns what a task is doing, for the warning.
    """

    def __init__(
        self, state: RunState, network: PeerNetwork, clock: Callable[[], float], describe: Callable[[Task], str]
    ):
        self._state = state
        self._network = network
        self._clock = clock
        self._describe = describe
        self._box = Mailbox()

    def meet(self, roster: Roster, name: str, payload: dict[str, Any], timeout: float) -> dict[Task, dict[str, Any]]:
        """See Session.meet."""
        state, me = self._state, self._state.me
        with state.condition:
            self._box.drop_before(roster.generation)
            occasion = self._box.occasion(roster.generation, name)
            letter = {"k": "meet", "at": list(occasion), "payload": payload}
            self._box.sent[occasion] = letter
            self._box.put(occasion, me.task, payload)
        for member in roster.members:
            if member != me:
                self._network.send(member, letter)
        started = warned = self._clock()
        while True:
            with state.condition:
                letters = self._box.letters(occasion)
                missing = tuple(m for m in roster.members if m.task not in letters)
                if not missing:
                    self._box.done(occasion)
                    return {task: letters[task] for task in roster.tasks}
                failure = state.failure(roster, missing)
                if failure is not None:
                    raise failure
                now = self._clock()
                if now - started > timeout:
                    names = ", ".join(str(m.task) for m in missing)
                    raise WaitTimeoutError(f"meeting {name!r}: {names} did not come in {timeout:.1f} s")
                if now - warned < WARN_SECONDS:
                    state.condition.wait(min(POLL_SECONDS, max(0.001, started + timeout - now)))
                    continue
            warned = now
            doing = "; ".join(f"{m.task} {self._describe(m.task)}" for m in missing)
            _log.warning("meeting %r waits since %.0f s for: %s", name, now - started, doing)

    def receive(self, member: Member, message: dict[str, Any]) -> None:
        """Takes a letter; one that is malformed is ignored. In the network thread."""
        at, payload = message.get("at"), message.get("payload")
        if not isinstance(at, list) or len(at) != 3 or not isinstance(payload, dict):
            return
        generation, name, turn = at
        if not isinstance(generation, int) or not isinstance(name, str) or not isinstance(turn, int):
            return
        with self._state.condition:
            watched = self._state.watched
            if watched is not None and generation < watched.generation:
                return
            if not self._box.put(Occasion(generation, name[:200], turn), member.task, payload):
                _log.warning("a letter of %s for meeting %r was dropped: too many are kept", member.task, name[:200])
            self._state.condition.notify_all()

    def send_again(self, member: Member) -> None:
        """Sends this process's letters to a member whose link broke and is open again; it may have missed them."""
        with self._state.condition:
            letters = list(self._box.sent.values())
        for letter in letters:
            self._network.send(member, letter)
