"""What one process knows of its run: put together from the store's view, the links and the peers' notices.

Everything here is guarded by one condition, which is notified at each change. No store and no network is touched.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tfdist.errors import MemberLostError, PeerFailedError, RemovedError, TfdistError
from tfdist.membership import detection
from tfdist.membership.backoff import BackOff
from tfdist.membership.detection import Verdict
from tfdist.membership.keys import JobError, StoreView
from tfdist.membership.policy import RosterPolicy, View, admissible
from tfdist.membership.roster import Member, Roster
from tfdist.tf_config import Task


@dataclass(frozen=True)
class Requests:
    """What others ask for, as of the last look (0.1 s).

    Attributes:
        join_waiting: living members that the next roster would take in.
        leaving: tasks of the current roster that want to leave.
    """

    join_waiting: tuple[Member, ...] = ()
    leaving: tuple[Task, ...] = ()


class RunState:
    """The knowledge, and the questions that it answers.

    Args:
        me: this member.
        expected: tasks that the first roster waits for.
        policy: bounds of a roster.
        verdict: what the links know of a member.
        tell: called with (generation, one sentence) when a step of that generation may hang from now on.
    """

    def __init__(
        self,
        me: Member,
        expected: tuple[Task, ...],
        policy: RosterPolicy,
        verdict: Callable[[Member], Verdict],
        tell: Callable[[int, str], None],
    ):
        self.me = me
        self.expected = expected
        self.policy = policy
        self.condition = threading.Condition(threading.RLock())
        self.store = StoreView()
        self.roster: Roster | None = None
        self.watched: Roster | None = None
        self.lost: dict[Task, str] = {}
        self.requests = Requests()
        self.leave_reason: str | None = None
        self.removed: str | None = None
        self.job_error: JobError | None = None
        self.back_off = BackOff()
        self._verdict = verdict
        self._tell = tell
        self._leaving: set[str] = set()
        self._asking: dict[str, int] = {}
        self._told: set[object] = set()

    def take_view(self, store: StoreView, now: float) -> None:
        """Takes over a newer view of the store and tells what is new in it."""
        with self.condition:
            before, after = self.store.roster, store.roster
            if before is not None and (after is None or after.generation < before.generation):
                return  # read before another thread's read, which came first
            self.store = store
            if before and after and after.generation > before.generation:
                for task in after.lost:
                    self.back_off = self.back_off.removed(task, now)
            if store.error is not None:
                self._take_error(store.error)
            mine = self.watched or self.roster
            if after is not None and mine is not None and after.generation > mine.generation:
                self._tell_replaced(mine, after)
            view = self.policy_view(now)
            leaving = () if after is None else tuple(sorted(view.leaving))
            self.requests = Requests(admissible(view, self.policy)[0] if after else (), leaving)
            self.condition.notify_all()

    def take_verdict(self, member: Member, verdict: Verdict) -> None:
        """Notes that a member is lost (or found); a loss in the watched roster is told once."""
        with self.condition:
            watched = self.watched
            lost = verdict.state == detection.LOST
            if lost and watched is not None and member in watched and member.task not in self.lost:
                self.lost = {**self.lost, member.task: verdict.reason}
                newest = self.store.roster
                planned = newest is not None and newest.generation > watched.generation and member not in newest
                if not planned:
                    self._tell(watched.generation, f"{member.task} lost ({verdict.reason})")
            self.condition.notify_all()

    def take_leave(self, member: Member) -> None:
        """Notes that a member asks to leave."""
        with self.condition:
            self._leaving.add(member.incarnation)
            self.condition.notify_all()

    def take_asking(self, member: Member, after: int) -> None:
        """Notes that a member asks for a roster after generation `after`."""
        with self.condition:
            self._asking[member.incarnation] = after
            self.condition.notify_all()

    def take_error(self, error: JobError) -> None:
        """Notes the error that stops the job; the first stands."""
        with self.condition:
            self._take_error(error)
            self.condition.notify_all()

    def take_removal(self, reason: str) -> None:
        """Notes that this process lost its place (another one claims its task)."""
        with self.condition:
            self.removed = reason
            self._tell_once("removed", self.watched, reason)
            self.condition.notify_all()

    def adopt(self, roster: Roster) -> None:
        """This process takes part in `roster`."""
        with self.condition:
            self.roster = roster

    def watch(self, roster: Roster) -> None:
        """Losses of this roster's members are told from now on, also those that are known already."""
        with self.condition:
            self.roster = self.watched = roster
            self.lost = {}
            for member in roster.members:
                self.take_verdict(member, self._verdict(member))
            newest = self.store.roster
            if newest is not None and newest.generation > roster.generation:
                self._tell_replaced(roster, newest)

    def failure(self, roster: Roster, needed: tuple[Member, ...]) -> TfdistError | None:
        """Returns why a barrier of `roster` that waits for `needed` cannot be passed, or None."""
        if self.job_error is not None:
            return PeerFailedError(self.job_error.task, self.job_error.traceback)
        if self.removed is not None:
            return RemovedError(roster.generation, self.removed)
        newest = self.store.roster
        if newest is not None and newest.generation > roster.generation:
            if not newest.has(self.me.incarnation):
                return RemovedError(newest.generation, newest.reason)
            why = f"generation {newest.generation} replaces it: {newest.reason}"
            return MemberLostError(roster.generation, (), why)
        lost = self.losses(roster)
        missing = [m.task for m in needed if m.task in lost]
        if missing:
            why = "; ".join(f"{task} lost ({lost[task]})" for task in missing)
            return MemberLostError(roster.generation, missing, why)
        return None

    def losses(self, roster: Roster) -> dict[Task, str]:
        """Returns the members of `roster` that are known to be lost, and why."""
        verdicts = {m.task: self._verdict(m) for m in roster.members}
        return {task: v.reason for task, v in verdicts.items() if v.state == detection.LOST}

    def silent_losses(self, roster: Roster) -> int:
        """Returns how many are lost by silence only, which may as well be this process's own network."""
        return sum(1 for m in roster.members if self._verdict(m).silent)

    def living(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """Returns those that are known to live."""
        return tuple(m for m in members if self._verdict(m).state == detection.LIVING)

    def waiting_for(self, members: tuple[Member, ...]) -> str:
        """Says of registered members that are not reached yet what the matter is."""
        verdicts = [(m, self._verdict(m)) for m in members]
        return "; ".join(f"{m.task} is registered, but {v.reason}" for m, v in verdicts if v.state != detection.LIVING)

    def leave_requested_by(self, incarnation: str) -> bool:
        """Says whether that process asked to leave."""
        own = incarnation == self.me.incarnation and self.leave_reason is not None
        return own or incarnation in self._leaving or incarnation in self.store.leaving

    def policy_view(
        self, now: float, *, waiting_since: float = 0.0, asked_at: float | None = None, gone: bool = False
    ) -> View:
        """Returns what the policy decides from."""
        with self.condition:
            current = self.store.roster
            members = current.members if current else ()
            generation = current.generation if current else 0
            held = {m.task: self.back_off.wait(m.task, now)[1] for m in self.store.ready}
            return View(
                current=current,
                expected=self.expected,
                ready=self.living(tuple(self.store.ready)),
                lost=self.losses(current) if current else {},
                leaving=frozenset(m.task for m in members if self.leave_requested_by(m.incarnation)),
                held={task: reason for task, reason in held.items() if reason},
                waiting_since=waiting_since,
                asked_at=asked_at,
                asked_by=frozenset(m.task for m in members if self._asking.get(m.incarnation, -1) >= generation),
                gone=gone,
            )

    def _take_error(self, error: JobError) -> None:
        if self.job_error is None:
            self.job_error = error
            if error.task != self.me.task:
                last_line = (error.traceback.strip().splitlines() or ["no traceback"])[-1]
                self._tell_once("error", self.watched, f"{error.task} failed: {last_line[:300]}")

    def _tell_replaced(self, mine: Roster, newer: Roster) -> None:
        if self._asking.get(self.me.incarnation, -1) >= mine.generation:
            return  # it waits for just that, in no step that could hang
        sentence = f"generation {newer.generation} replaces {mine.generation}: {newer.reason}"
        self._tell_once(newer.generation, mine, sentence)

    def _tell_once(self, what: object, watched: Roster | None, sentence: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._tell(watched.generation if watched is not None else 0, sentence)
