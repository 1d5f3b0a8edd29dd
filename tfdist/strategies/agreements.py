"""What members agree on between steps: to take in a joiner, to let one go, to stop, to go on after a loss."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

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
        self._wants_stop = self._after_batch = False
        group.wants_stop = lambda: self._wants_stop
        group.on_drain = lambda: self.ask_to_leave(0)

    # --- joining and leaving: raised in the control vector of a step, acted on before the next one ---

    def requests(self) -> list[bool]:
        """What this member asks for with the next step, in the order of `REQUESTS`."""
        session = self._group.session
        if session is None or not self.elastic:
            return [False] * len(REQUESTS)
        return [self._exit_code is not None, bool(session.requests().join_waiting), False, False]

    def act_on(self, control: list[float]) -> None:
        """`control`: requests that the last committed step brought to everybody's knowledge, summed over the members.

        Raises:
            SystemExit: this member has left.
        """
        wanted = dict(zip(REQUESTS, (value > 0 for value in control), strict=False))
        if not any(wanted.values()):
            return
        if self._exit_code is not None:
            self._group.session.request_leave("asked to stop")
            try:
                self._group.settle("leaving", leaving=True)
            except TooFewWorkersError as error:
                emit("state_lost", f"nobody is left to hand over to: {error}", level=logging.WARNING)
            self.leave_if_asked()
        self._group.settle("a member leaves" if wanted["leave"] else "a worker joins", admit=True)

    def leave_if_asked(self) -> None:
        """At a point where all members hold the same state: this worker goes, if it was asked to.

        Raises:
            SystemExit: it has left.
        """
        if self._exit_code is not None:
            emit("left", f"this worker leaves after step {self._group.progress.committed}, as asked; the others go on")
            self._ending.left()
            sys.exit(self._exit_code)

    def ask_to_leave(self, exit_code: int) -> None:
        """From any thread: this worker hands over at the next step boundary and exits with that code."""
        self._exit_code = exit_code

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
        answers = self._group.meeting(f"epoch {epoch}", {"stop": self._wants_stop})
        if any(answer["stop"] for answer in answers.values()):
            self._wants_stop = self._group.stop_agreed = True
        self.leave_if_asked()
