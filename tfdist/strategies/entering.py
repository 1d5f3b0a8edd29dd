"""How a process comes into a call: it meets the others where they begin, or joins them where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdist.errors import RunEndedError, StateLostError

if TYPE_CHECKING:
    from tfdist.strategies.calls import KerasCalls


class CallIsOver(Exception):
    """While this process was on its way, the others have ended the call."""


class Entering:
    """Called by `CallHooks`, when all of the user's callbacks have begun."""

    def __init__(self, calls: KerasCalls):
        self._calls = calls

    def fit(self) -> None:
        """Compiles; then joins or meets the others, and learns where they are."""
        group, progress = self._calls.group, self._calls.group.progress
        self._calls.state.forget_layout()
        self._calls.state.history = getattr(self._calls.state.model, "history", None)
        if progress.fresh and group.session is not None:
            self._calls.announce("compiling")
            group.form_alone()
            self._compile(self._calls.state.model)
            self._restore_and_join()
        elif self._calls.checkpointed is not None:
            self._calls.checkpointed.restore_together()
        progress.fresh = False
        if self._calls.checkpointed is not None:
            self._calls.checkpointed.begin()
        if progress.call == self._calls.number:  # the others are inside this call
            self._calls.state.model._initial_epoch = progress.epoch
            self._calls.feeding.start_where_others_are(self._calls.state.model.steps_per_execution)
        else:
            progress.epoch = progress.step = 0
            self._meet_for_call("fit")

    def _compile(self, model: Any) -> None:
        """Train and test step, on rows of the training data, so that nobody waits for this process's tracing."""
        model.train_function.warm_up(self._calls.feeding.peek())
        if self._calls.validates:
            with self._calls.doing("test", "compiling"):
                model.make_test_function()
                model.test_function.warm_up(self._calls.feeding.peek())

    def evaluate(self) -> None:
        """Founders meet in it; who comes later waits for its end (`_join` raises then)."""
        self._calls.state.forget_layout()
        if self._calls.group.progress.fresh and self._calls.group.session is not None:
            self._join()
        self._calls.group.progress.fresh = False
        self._meet_for_call("evaluate")

    def validation(self, name: str) -> None:
        """Before Keras resets the metrics: nobody does so while another member still needs the totals."""
        self._calls.group.meeting(name, {})

    def by_hand(self) -> None:
        """`train_on_batch` and the like: the founders meet at the first of them."""
        if self._calls.group.progress.fresh:
            self._calls.state.forget_layout()
            if self._calls.group.session is not None and self._calls.group.session.newest_generation:
                raise RunEndedError(
                    "a loop over train_on_batch can't be joined while it runs, only `fit` can: the others go on "
                    "without this worker, which has nothing to do"
                )
            if self._calls.group.session is not None:
                self._join()
            self._calls.group.progress.fresh = False

    def _meet_for_call(self, name: str) -> None:
        """Also agrees on the epoch to begin with: BackupAndRestore finds it on the chief only."""
        model = self._calls.state.model
        payload = {"initial_epoch": model._initial_epoch if name == "fit" else None}
        answers = self._calls.group.meeting(f"call {self._calls.number}, {name},", payload)
        if name == "fit":
            model._initial_epoch = next(iter(answers.values()))["initial_epoch"]
        self._calls.group.progress.call = self._calls.number

    def _restore_and_join(self) -> None:
        """A founder brings the state of the checkpoint along; who comes to a run under way receives its state.

        Raises:
            StateLostError: nobody of the run is left, and there is no checkpoint.
        """
        checkpointed = self._calls.checkpointed
        try:
            self._join(restored=checkpointed is not None and checkpointed.restore())
        except StateLostError:
            if checkpointed is None or not checkpointed.restore(anew=True):
                raise
            self._join(restored=True)

    def _join(self, restored: bool = False) -> None:
        """Asks for admission and waits for it; afterwards this member holds the run's state."""
        session = self._calls.group.session
        self._calls.announce("waiting to join")
        session.ready()
        try:
            self._calls.group.settle("joining", admit=True, give_up=self._call_is_over, restored=restored)
        except CallIsOver:
            session.withdraw()
            raise
        self._calls.announce(self._calls.phase)
        if self._calls.group.progress.call > self._calls.number:
            raise CallIsOver  # admitted while the others went on to a later call

    def _call_is_over(self) -> BaseException | None:
        return CallIsOver() if self._calls.group.session.recorded(f"call/{self._calls.number}") is not None else None
