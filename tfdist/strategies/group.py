"""The members that compute together, and how they come to be a group again after a change.

`settle` is the one way from one roster to the next, whatever the reason: agree on a roster in the store, form the
group, meet,
bring those behind up to the most advanced member, compare digests. Anything that goes wrong on the way starts it again
with the next roster.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.collectives.contract import Collectives
from tfdist.data.shares import shares
from tfdist.errors import MemberLostError, StateLostError, TooFewWorkersError, TransferError, TransferRefusedError
from tfdist.membership.roster import Roster
from tfdist.membership.session import Session
from tfdist.observe.events import emit
from tfdist.observe.points import reach
from tfdist.strategies.alignment import MEET_SECONDS, TRANSFER_SECONDS, align
from tfdist.strategies.inputs import Part
from tfdist.strategies.progress import Progress
from tfdist.strategies.state import State
from tfdist.strategies.waiting import Watchdog

ALONE = 1 << 24  # generation of a group of one's own, to compile in: no roster gets that far


def first_line(error: BaseException) -> str:
    """What an error says, for one line of a log (TensorFlow's errors are pages)."""
    return str(error).strip().split("\n", 1)[0][:200]


class ElasticGroup:
    """This process's place among the members; without a session it is alone for good."""

    def __init__(self, connect: Callable[[], Session] | None, collectives: Collectives, devices: int):
        self._connect, self.collectives, self.devices = connect, collectives, devices
        self.progress = Progress(fresh=connect is not None)
        self.roster: Roster | None = None
        self.state: State | None = None
        self.generation = 0
        self.changing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self.evaluator = False  # never chief
        self._busy_since: float | None = None
        self._interruption = ""
        self._watchdog: Watchdog | None = None
        self.doing = "in user code"
        self.wants_stop: Callable[[], bool] = lambda: False
        self.on_drain: Callable[[], None] = lambda: None
        self.stop_agreed = False
        # Of the last `fit`, with its number.
        self.end_state: tuple[int, tuple[dict[str, Any], list[memoryview]]] | None = None
        self.session = self._open()

    def _open(self) -> Session | None:
        if self._connect is None:
            return None
        session = self._connect()
        session.start()
        session.on_lost(self._interrupt)
        session.on_message("stop", self._stop_asked)
        session.on_drain(lambda: self.on_drain())
        self._watchdog = Watchdog(self)
        session.serve_state(self._serve, on_chunk=lambda sent: reach("transfer_serve", bytes=sent))
        return session

    def join_again(self) -> None:
        """As a new incarnation, after this process was removed: it holds no state that counts."""
        self._watchdog.close()
        self.session.close(say_goodbye=False)
        self.session = self._open()
        self.roster, self.progress.fresh, self.generation = None, True, 0

    @property
    def incarnation(self) -> str:
        """Of this process; another one after it was removed and has joined again."""
        return self.session.me.incarnation if self.session is not None else "alone"

    # --- who computes what ---

    @property
    def rank(self) -> int:
        return self.roster.rank(self.session.me.task) if self.session is not None and self.roster is not None else 0

    @property
    def size(self) -> int:
        return len(self.roster.members) if self.roster is not None else 1

    @property
    def is_chief(self) -> bool:
        """The lowest living task; before there is a roster, what TF_CONFIG says."""
        if self.session is None:
            return not self.evaluator
        roster = self.roster or self.session.newest_roster
        if roster is None:
            return self.session.expected[0] == self.session.me.task
        return roster.members[0].incarnation == self.session.me.incarnation

    def parts(self, rows: int) -> list[Part]:
        """The rows of a global batch that each local replica computes."""
        counts = shares(rows, [1.0] * (self.size * self.devices))
        first = self.rank * self.devices
        result, start = [], sum(counts[:first])
        for count in counts[first : first + self.devices]:
            result.append(Part(start, start + count, rows))
            start += count
        return result

    # --- steps ---

    @contextlib.contextmanager
    def computing(self, doing: str) -> Iterator[None]:
        """While it lasts, a loss, a newer roster or a wish to stop aborts the collectives that wait in this process.

        Raises:
            MemberLostError: such a thing is known already.
        """
        if self.session is None:
            yield
            return
        self._wait_while_fenced()
        self.doing = doing
        self.session.publish(doing=self.doing, clock=self.progress.clock)
        self._busy_since = time.monotonic()
        try:
            if self._interruption or self.session.lost or self.session.newest_generation > self.generation:
                raise MemberLostError(self.generation, self.session.lost, self._interruption or "a newer roster stands")
            yield
        finally:
            self._busy_since = None
            self.session.publish(doing="in user code", clock=self.progress.clock)

    def waiting_for(self) -> float:
        """Seconds since the present step or meeting began; 0 outside of one."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def members_are_apart(self, sentence: str) -> None:
        """Ends the wait of a step or meeting that can't end by itself."""
        self.session.report_error(sentence)

    def _wait_while_fenced(self) -> None:
        """A roster of one whose lease ran out may have a successor that it knows nothing of: it stands still."""
        said = False
        deadline = time.monotonic() + self.session.join_timeout
        while self.session.fenced:
            if not said:
                emit(
                    "fenced", "alone, and the store has not answered for a lease: waiting for it", level=logging.WARNING
                )
                said = True
            if time.monotonic() > deadline:
                raise TooFewWorkersError("alone, and the store did not come back within join_timeout")
            time.sleep(0.05)  # the lease is renewed by the session's thread

    def _interrupt(self, reason: str = "") -> None:
        """Called by the session's thread."""
        self._interruption = str(reason) or "a member was lost"
        if self._busy_since is not None:
            self.collectives.abort(self._interruption)

    def _stop_asked(self, task: Any, message: dict[str, Any]) -> None:
        if message.get("generation") == self.generation:
            self._interrupt(f"{task} asks all to stop")

    # --- from one roster to the next ---

    def form_alone(self) -> None:
        """A group of this process only, in which it may compile and try its step without anybody waiting."""
        if self.session is not None:
            with self.changing():
                self.collectives.form(Roster(ALONE, (self.session.me,), "compiling alone"))

    def settle(
        self, why: str, *, leaving: bool = False, admit: bool = False, give_up: Any = None, restored: bool = False
    ) -> None:
        """Until this process is a member of a newer roster whose members all hold the most advanced state.

        Args:
            why: for the log, one clause.
            leaving: this process leaves; returns as soon as a roster without it stands.
            admit: joiners may be taken in: all members are between two training steps. Otherwise they are as many as
                are left, even below min_workers (see `wait_for_enough`).
            give_up: called now and then while waiting; what it returns (an exception) is raised.
            restored: this process holds the state of a checkpoint: it may found the group anew.

        Raises:
            RemovedError, PeerFailedError, TooFewWorkersError, StartTimeoutError, IncompatibleError
        """
        if self.session is None:
            self.progress.fresh = False
            return
        began = time.monotonic()
        while True:
            reach("settle", why=why)
            roster = self.session.next_roster(
                self.generation, leaving=leaving, admit=admit, give_up=give_up, found_anew=restored
            )
            if leaving or not roster.has(self.session.me.incarnation):
                return
            agreed = time.monotonic()
            before, self.generation = self.roster, roster.generation
            try:
                with self.changing():
                    self.session.watch_members(roster)
                    self._interruption = ""
                    self.collectives.form(roster)
                self.roster = roster
                reach("formed", generation=roster.generation)
                sent = align(self, roster, restored)
                break
            except (MemberLostError, TransferError) as error:
                emit("formation_failed", f"generation {roster.generation} did not come about: {error}")
        total = time.monotonic() - began
        emit(
            "formation",
            f"generation {roster.generation}: {roster.reason}; {len(roster.members)} members, at step "
            f"{self.progress.committed}, after {total:.2f} s",
            generation=roster.generation,
            members=[str(t) for t in roster.tasks],
            before=[str(t) for t in before.tasks] if before else [],
            lost=[str(t) for t in roster.lost],
            seconds=round(total, 4),
            agree=round(agreed - began, 4),
            transferred=sent,
            step=self.progress.committed,
        )

    def wait_for_enough(self) -> None:
        """Before a training step: waits, state in memory, while there are fewer members than `min_workers`.

        Raises:
            TooFewWorkersError: still too few after join_timeout.
        """
        if self.session is not None and self.size < self.session.min_workers:
            self.settle(f"{self.size} members, below min_workers = {self.session.min_workers}", admit=True)

    def _serve(self, generation: int) -> tuple[dict[str, Any], list[memoryview]]:
        """Called in a thread of the session's; this member stands still in `settle` meanwhile."""
        kept = self.end_state
        if generation < 0 and kept is not None and kept[0] == -generation:
            return kept[1]
        if generation < 0:
            raise TransferError(f"the end state of call {-generation} is not kept")
        if self.state is None or generation != self.generation:
            raise TransferError(f"this member is at generation {self.generation}, not {generation}")
        return self.state.outgoing()

    def fetch_end_state(self, call: int) -> bool:
        """Gives this process's model the weights that a `fit` which is over has ended with.

        Returns:
            False if the members keep those of a later `fit` only: the state of the present call comes with joining it.

        Raises:
            StateLostError: no member is left.
        """
        roster, refused = self.session.newest_roster, False
        for member in roster.members if roster is not None else ():
            try:
                header, data = self.session.fetch_state(
                    member, -call, accept=self.state.expected_bytes_of_end, timeout=TRANSFER_SECONDS
                )
            except (MemberLostError, TransferError) as error:
                refused = refused or isinstance(error, TransferRefusedError)
                emit("debug", f"{member} does not give the end state of call {call}: {error}")
                continue
            self.state.install_end(header, memoryview(data))
            return True
        if refused:
            return False
        self.session.raise_if_ended()
        raise StateLostError(f"call {call} of the script (fit) is over, and no living member has its end state")

    # --- meetings between steps ---

    def stop_all(self) -> None:
        """This member's script wants to stop after the present step: so do all, before the next one is committed."""
        if self.session is not None and self.size > 1:
            self.session.send_all("stop", {"generation": self.generation})
            self.settle("stop")
        self.stop_agreed = True

    def meeting(self, name: str, payload: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """All members' payloads by task; an event like a step: done by all, or done again after a loss."""
        if self.session is None:
            return {"": payload}
        goal = self.progress.clock + 1
        while self.progress.clock < goal:
            try:
                with self.computing(f"meeting {name!r} {goal}"):
                    answers = self.session.meet(self.roster, f"{name}@{goal}", payload, MEET_SECONDS)
            except MemberLostError as error:
                self.settle(str(error))
                continue
            self.progress.logs = {str(task): answer for task, answer in answers.items()}
            self.progress.clock = goal
        return self.progress.logs
