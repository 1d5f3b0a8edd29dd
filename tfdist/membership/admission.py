"""Waits for, and proposes, the next roster: one compare-and-set, decided by the policy."""

import logging
from collections.abc import Callable

from tfdist.errors import (
    PeerFailedError,
    RemovedError,
    RunEndedError,
    StartTimeoutError,
    StateLostError,
    StoreUnavailableError,
    TooFewWorkersError,
    WaitTimeoutError,
)
from tfdist.membership import claims, keys
from tfdist.membership.policy import RosterPolicy, View, among_ourselves, decide_next, remaining
from tfdist.membership.roster import Roster, dump
from tfdist.membership.run_state import RunState
from tfdist.membership.stores.base import Store

_log = logging.getLogger(__name__)

RANK_SECONDS = 0.15
POLL_SECONDS = 0.05
SAY_SECONDS = 5.0
LONG_SECONDS = 10.0


class Admission:
    """One wait for the next roster.

    Args:
        state: what this process knows.
        store: the run's store.
        announce: called with a new roster's generation after proposing it.
        describe: returns what a task is doing, for the warning of one who waits long.
        clock: monotonic seconds.
        after: generation to be exceeded.
        leaving: this process wants to be out of it.
        found_anew: all members of the old roster being gone, found a new one (the caller holds a checkpoint).
        lease: seconds without a sign of life after which all old members count as gone.
        join_timeout: seconds to wait below min_workers.
        give_up: called now and then; what it returns, if anything, is raised.
        admit: whether members may take in joiners now; without it min_workers does not count, either.
    """

    def __init__(
        self,
        state: RunState,
        store: Store,
        announce: Callable[[int], None],
        describe: Callable[[object], str],
        clock: Callable[[], float],
        *,
        after: int,
        leaving: bool,
        found_anew: bool,
        lease: float,
        join_timeout: float,
        give_up: Callable[[], BaseException | None] | None = None,
        admit: bool = True,
    ):
        self._state = state
        self._store = store
        self._announce = announce
        self._describe = describe
        self._clock = clock
        self._after = after
        self._leaving = leaving
        self._found_anew = found_anew
        self._lease = lease
        self._join_timeout = join_timeout
        self._give_up = give_up
        self._admit = admit
        self._started = clock()
        self._said_at = self._started
        self._possible_since: float | None = None
        self._few_since: float | None = None
        self._gone_since: float | None = None
        self._leases: dict[str, int | None] = {}
        self._reason = "the store has not been read yet"

    def wait(self, timeout: float | None) -> Roster:
        """Returns the roster; see Session.next_roster."""
        state = self._state
        while True:
            now = self._clock()
            try:
                state.take_view(keys.read_view(self._store), now)
                roster = self._acceptable()
                if roster is not None:
                    return roster
                self._propose(now)
            except StoreUnavailableError as error:
                self._possible_since = None
                self._reason = f"waiting for the store: {error}"
            roster = self._acceptable()
            if roster is not None:
                return roster
            self._ask_whether_to_give_up()
            if timeout is not None and now - self._started > timeout:
                raise WaitTimeoutError(f"no roster after generation {self._after} in {timeout:.1f} s: {self._reason}")
            if now - self._said_at >= SAY_SECONDS:
                self._said_at = now
                self._say(now - self._started)
            with state.condition:
                state.condition.wait(POLL_SECONDS)

    def _ask_whether_to_give_up(self) -> None:
        try:
            error = self._give_up() if self._give_up is not None else None
        except StoreUnavailableError:
            return
        if error is not None:
            raise error

    def _say(self, waited: float) -> None:
        doing = ""
        current = self._state.store.roster
        if waited >= LONG_SECONDS:
            ready = {member.task for member in self._state.store.ready}
            tasks = current.tasks if current is not None else [t for t in self._state.expected if t not in ready]
            others = [task for task in tasks if task != self._state.me.task]
            doing = "; " + "; ".join(f"{task} {self._describe(task)}" for task in others[:16])
        _log.warning("%s waits for a roster since %.0f s: %s%s", self._state.me.task, waited, self._reason, doing)

    def _acceptable(self) -> Roster | None:
        """Returns the store's roster if this process may take it; raises if there is none to wait for."""
        state = self._state
        if state.job_error is not None:
            raise PeerFailedError(state.job_error.task, state.job_error.traceback)
        if state.store.ended:
            raise RunEndedError("the run is over; there is nothing left to do")
        roster = state.store.roster
        if state.removed is not None:
            raise RemovedError(roster.generation if roster else 0, state.removed)
        if roster is None:
            return None
        if roster.has(state.me.incarnation):
            if roster.generation <= self._after or self._leaving or state.losses(roster):
                return None
            state.adopt(roster)
            return roster
        if state.roster is None:
            return None  # never admitted yet
        if self._leaving or state.leave_reason is not None:
            return roster
        raise RemovedError(roster.generation, roster.reason)

    def _propose(self, now: float) -> None:
        state = self._state
        current = state.store.roster
        member = current is not None and current.has(state.me.incarnation)
        gone = current is not None and not member and self._all_gone(current, now)
        if current is not None and not member and not gone:
            self._reason = f"waiting to be admitted to generation {current.generation + 1}"
            return
        view = state.policy_view(now, waiting_since=self._started, asked_at=self._started, gone=gone)
        policy = state.policy
        if not self._admit:
            view, policy = among_ourselves(view, policy)
        roster, self._reason = decide_next(now, view, policy)
        if roster is None:
            self._possible_since = None
            unreached = state.waiting_for(tuple(state.store.ready))
            if current is None and unreached:
                self._reason += f" ({unreached})"
            self._check_few(now, view, policy)
            return
        self._few_since = None
        if self._possible_since is None:
            self._possible_since = now
        # The lowest living member goes first. One that would push out several silent members waits: it may be the one
        # that is cut off, and then the others' roster, which removes only it, comes first.
        proposers = state.living(current.members) if member and current else view.ready
        lower = sum(1 for m in proposers if m.task < state.me.task)
        silent = state.silent_losses(current) if member and current else 0
        if now - self._possible_since < RANK_SECONDS * (lower + 2 * max(0, silent - 1)):
            return
        value = dump(roster.to_json())
        if self._store.compare_and_set(keys.ROSTER, state.store.roster_version, value) is not None:
            _log.debug("proposed generation %d: %s", roster.generation, roster.reason)
            for ready, version in state.store.ready.items():
                if ready in roster:
                    self._store.delete(f"{keys.READY}{ready.task}", version)
            self._announce(roster.generation)
        state.take_view(keys.read_view(self._store), now)

    def _check_few(self, now: float, view: View, policy: RosterPolicy) -> None:
        """Raises when waiting for more workers is over, or no use."""
        state, current = self._state, view.current
        members = current.tasks if current is not None else ()
        if self._leaving and members and all(task in view.lost or task in view.leaving for task in members):
            raise TooFewWorkersError(f"nobody stays to hand over to: {self._reason}")
        if len(remaining(view, policy)) >= policy.min_workers:
            self._few_since = None
            return
        if current is None or view.gone:
            if now - self._started >= state.policy.start_timeout:
                raise StartTimeoutError(f"no roster within start_timeout: {self._reason}")
            return
        if self._leaving:
            raise TooFewWorkersError(f"without this worker no roster is possible: {self._reason}")
        self._few_since = now if self._few_since is None else self._few_since
        if now - self._few_since >= self._join_timeout:
            raise TooFewWorkersError(f"{self._reason}, for join_timeout = {self._join_timeout:.1f} s")

    def _all_gone(self, current: Roster, now: float) -> bool:
        """Says whether no member of a roster that this process is not in has shown any life for a lease."""
        leases = {m.incarnation: claims.read_lease(self._store, m) for m in current.members}
        renewed = any(leases[i] != self._leases.get(i, leases[i]) for i in leases)
        self._leases = leases
        if renewed or self._state.living(current.members) or self._gone_since is None:
            self._gone_since = now
        if now - self._gone_since < self._lease:
            return False
        if self._found_anew:
            return True
        raise StateLostError(
            f"generation {current.generation} ({', '.join(map(str, current.tasks))}) holds the run's state, and none "
            f"of its members has shown life for {self._lease:.1f} s. Restore a checkpoint, or use a new run id."
        )
