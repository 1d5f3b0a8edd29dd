"""What members agree on between steps: to take in a joiner, to let one go, to stop, to go on after a loss."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.errors import MemberLostError, TooFewWorkersError
from tfdist.observe.events import emit
from tfdist.strategies.ending import Ending
from tfdist.strategies.group import ElasticGroup, first_line
from tfdist.strategies.inputs import REQUESTS
from tfdist.strategies.leaving import leave_on_sigterm


class Agreements:
    """The requests of this member, and what all make of everybody's.

    Attributes:
        elastic: whether the present call survives a loss (`ElasticTraining` is among the callbacks of the `fit`).
    """

    def __init__(self, group: ElasticGroup, ending: Ending):
        self._group, self._ending = group, ending
        self.elastic = True
        self._exit_code: int | None = None
        self._alone = self._leave_sent = False
        self._wants_stop = self._after_batch = False
        # What this member says to a checkpoint after the coming step or epoch: 1 is a wish, -1000 a veto.
        self.checkpoint_vote: Callable[[str], float] = lambda at: 0.0
        self.emergency_save: Callable[[], None] | None = None
        self.save_alone: Callable[[], None] | None = None
        self.on_asked_to_leave: Callable[[], None] | None = None
        self.before_leaving: Callable[[], None] = lambda: None
        self.epoch_vote = 0.0  # the sum over all members, at the last end of an epoch
        group.wants_stop = lambda: self._wants_stop
        group.on_drain = lambda: self.ask_to_leave(0)

    # --- joining and leaving: raised in the control vector of a step, acted on before the next one ---

    def requests(self) -> list[float]:
        """What this member asks for with the next step, in the order of `REQUESTS`."""
        session, vote = self._group.session, self.checkpoint_vote("step")
        if session is None or not self.elastic:
            return [0.0, 0.0, vote, 0.0]
        self._leave_sent = self._exit_code is not None
        return [float(self._leave_sent), float(bool(session.requests().join_waiting)), vote, 0.0]

    def act_on(self, control: list[float]) -> None:
        """`control`: requests that the last committed step brought to everybody's knowledge, summed over the members.

        Raises:
            SystemExit: this member has left.
        """
        wanted = dict(zip(REQUESTS, (value > 0 for value in control), strict=False))
        if not (wanted.get("leave") or wanted.get("admit")):
            return
        if wanted["leave"]:
            self._save_if_nobody_stays(round(control[0]))
        if (
            wanted["leave"] and self._leave_sent
        ):  # one who was asked since then stays for another step: it was not counted
            self._hand_over()
        self._group.settle("a member leaves" if wanted["leave"] else "a worker joins", admit=True)

    def _save_if_nobody_stays(self, leaving: int) -> None:
        """All save the last committed step together, before those go that were asked to."""
        enough = max(1, self._group.session.min_workers if self._group.session is not None else 1)
        if self.emergency_save is not None and self._group.size - leaving < enough:
            self.emergency_save()

    def _compare_states(self, epoch: int, answers: dict[str, dict[str, Any]]) -> None:
        first = next(iter(answers.values()))["digest"]
        others = [task for task, answer in answers.items() if answer["digest"] != first]
        if others and self._group.is_chief:
            emit(
                "diverged",
                f"after epoch {epoch} the state of {', '.join(others)} differs from that of {next(iter(answers))}. "
                "Does a callback change weights or the learning rate on some workers only?",
                level=logging.WARNING,
            )

    def leave_evaluation(self) -> None:
        """Between two steps of validation or `evaluate`, which carry no requests: the others lose this member, planned.

        Raises:
            SystemExit: this worker has left.
        """
        if self._exit_code is not None and self.elastic and self._group.session is not None:
            self._hand_over()

    def _hand_over(self) -> None:
        """Leaves the roster. If nobody else stays, the first of those who go saves, unless all have saved together."""
        self._group.session.request_leave("asked to stop")
        try:
            self._group.settle("leaving", leaving=True)
        except TooFewWorkersError as error:
            self._alone = True
            if self.save_alone is not None and self._group.is_chief:
                self.save_alone()
            kept = "the state is saved" if self.save_alone is not None else "the state is lost"
            emit("alone", f"{kept}: {error}", level=logging.WARNING)
        self.leave_if_asked()

    def leave_if_asked(self) -> None:
        """At a point where all members hold the same state: this worker goes, if it was asked to.

        Raises:
            SystemExit: it has left.
        """
        if self._exit_code is not None:
            self.before_leaving()
            others = "nobody is left" if self._alone else "the others go on"
            emit("left", f"this worker leaves after step {self._group.progress.committed}, as asked; {others}")
            self._ending.left()
            sys.exit(self._exit_code)

    def ask_to_leave(self, exit_code: int) -> None:
        """From any thread: this worker hands over at the next step boundary and exits with that code."""
        first, self._exit_code = self._exit_code is None, exit_code
        if first and self.on_asked_to_leave is not None:
            self.on_asked_to_leave()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While it lasts, SIGTERM means: leave."""
        if not self.elastic or self._group.session is None:
            yield
            return
        with leave_on_sigterm(self.ask_to_leave):
            yield

    # --- losses ---

    def recover(self, error: BaseException) -> None:
        """After a step that failed because of another member.

        Raises:
            MemberLostError: the call is not elastic.
        """
        reason = first_line(error)
        if not self.elastic:
            session = self._group.session
            raise MemberLostError(
                self._group.generation, session.lost if session is not None else {}, f"{reason}; add ElasticTraining()"
            ) from error
        self._group.settle(reason)

    # --- stop_training ---

    @property
    def stopping(self) -> bool:
        return self._group.stop_agreed

    def after_batch(self, now: bool) -> None:
        """Whether Keras looks at `stop_training` next, between two batches."""
        self._after_batch = now

    def get_stop(self) -> bool:
        """What Keras reads after each batch and epoch; a wish of this worker alone is made everybody's first."""
        if self._wants_stop and self._after_batch and not self._group.stop_agreed:
            self._group.stop_all()
        self._wants_stop = self._wants_stop or self._group.stop_agreed
        return self._wants_stop

    def set_stop(self, value: bool) -> None:
        self._wants_stop = value
        if not value:
            self._group.stop_agreed = False

    def end_epoch(self, epoch: int) -> None:
        """If one wants to stop at the end of an epoch, all do."""
        self._after_batch = False
        leaves = self._exit_code is not None
        payload = {
            "stop": self._wants_stop,
            "checkpoint": self.checkpoint_vote("epoch"),
            "leave": leaves,
            "digest": self._group.state.digest() if self._group.session is not None else 0,
        }
        answers = self._group.meeting(f"epoch {epoch}", payload)
        self._compare_states(epoch, answers)
        self.epoch_vote = sum(float(answer["checkpoint"]) for answer in answers.values())
        if any(answer["stop"] for answer in answers.values()):
            self._wants_stop = self._group.stop_agreed = True
        if self.epoch_vote <= 0:  # else this member's part of the checkpoint comes first
            self.leave_if_asked()
