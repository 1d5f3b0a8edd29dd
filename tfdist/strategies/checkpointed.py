"""Checkpoints of a `fit` under an elastic strategy: agreed by all members, written by all, committed by the first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tfdist.checkpoint import resuming
from tfdist.checkpoint.manifest import Manifest
from tfdist.checkpoint.options import CheckpointOptions
from tfdist.checkpoint.run import Run
from tfdist.checkpoint.saving import Saving
from tfdist.errors import IncompatibleError
from tfdist.membership.roster import Roster
from tfdist.observe.events import emit
from tfdist.strategies.inputs import REQUESTS

if TYPE_CHECKING:
    from tfdist.strategies.calls import KerasCalls
    from tfdist.strategies.group import ElasticGroup

VETO = -1000.0  # more than all wishes together
GRACE_SECONDS = 30.0  # for the parts of members that are still there, after a change
WISH = REQUESTS.index("checkpoint")


class Members:
    """Implements `saver.Team` for the members at one moment."""

    def __init__(self, group: ElasticGroup, whole: bool = False):
        self._session, self._roster = group.session, group.roster
        self.parts, self.part = (1, 0) if whole else (group.size, group.rank)
        self.generation = group.generation
        self.run_id = self._session.run_id if self._session is not None else "alone"
        self._changed_at: float | None = None

    def may_commit(self, step: int) -> str:
        return self._session.may_commit_checkpoint(self.generation, step) if self._session is not None else ""

    def broken(self) -> str:
        newest: Roster | None = self._session.newest_roster
        if newest is None or newest.generation <= self.generation:
            return ""
        gone = [str(m.task) for m in self._roster.members if not newest.has(m.incarnation)]
        if gone:
            return f"{', '.join(gone)} left or was lost before its part was written"
        self._changed_at = self._changed_at or time.monotonic()
        late = time.monotonic() - self._changed_at > GRACE_SECONDS
        return "the members have changed, and not all of them saved this step" if late else ""


class CheckpointedFit:
    """Implements `saving.Host` for one `fit`; its methods are called by the training thread."""

    def __init__(self, calls: KerasCalls, run: Run, options: CheckpointOptions, call: int, callback: Any):
        self._calls, self._group, self._run, self._options = calls, calls.group, run, options
        self._call, self._callback = call, callback
        self.saving: Saving | None = None
        self._whole = False

    @property
    def state(self) -> Any:
        return self._calls.state

    @property
    def _steps(self) -> int | None:
        """Steps of an epoch, if Keras knows them."""
        return (self._callback.params or {}).get("steps")

    # --- resuming ---

    def _find(self, anew: bool = False) -> Manifest | None:
        """The checkpoint that the job goes on from, if it does.

        Args:
            anew: although the store knows of members: none of them is alive.
        """
        session = self._group.session
        self._run.claim(session.run_id if session is not None else None, first=self._group.is_chief)
        if session is not None and session.newest_generation and self._group.progress.fresh and not anew:
            return None  # the job is under way, and this process comes to it: its members have the state
        return self._run.look(self._options)

    def restore(self, anew: bool = False) -> bool:
        """Gives the model the state of the checkpoint, if it is one of this call; says whether it did."""
        manifest, fresh = self._find(anew), self._group.progress.fresh
        if manifest is None or int(manifest.facts["progress"]["call"]) != self._call:
            return False
        self.state.forget_layout()
        resuming.check(self.state, manifest)
        resuming.install(self.state, manifest, self._run.take_arrays())
        self._group.progress.fresh = fresh
        self._run.found = None  # the calls after this one begin as they are
        return True

    def restore_together(self) -> None:
        """The same for members that have met in a call before this one; they compare what they found.

        Raises:
            IncompatibleError: they see different checkpoints.
        """
        before = self._group.progress.clock
        restored = self.restore()
        clock, self._group.progress.clock = self._group.progress.clock, before
        answers = self._group.meeting(f"resume call {self._call}", {"clock": clock if restored else -1})
        found = sorted({int(answer["clock"]) for answer in answers.values()})
        if len(found) > 1:
            raise IncompatibleError(f"checkpoint in {self._run.directory}, by its clock", clock, found)
        if restored:
            self._group.progress.clock = clock

    def result_of_call(self) -> dict[str, Any] | None:
        """What this call has given, if the checkpoint is one of a later call."""
        manifest = self._find()
        if manifest is None or int(manifest.facts["progress"]["call"]) <= self._call:
            return None
        return self._run.results.get(str(self._call))

    def install_end_state(self) -> bool:
        """Says whether the script may go on behind this call, which is over: with its end state, if it is kept."""
        found, self._run.found = self._run.look(self._options), self._run.found
        end = self._run.end_of(self._call)
        if end is not None:
            resuming.install_end(self.state, end, self._run.read(end))
            return True
        emit("debug", f"the end state of call {self._call} is not kept")
        return found is not None and int(found.facts["progress"]["call"]) > self._call

    # --- saving ---

    def begin(self) -> None:
        if self.saving is not None:
            self.saving.close()  # of an earlier try, before this process was removed and has joined again
        self.saving = Saving(self._run, self._options, self, self._call)
        self._calls.agreements.checkpoint_vote = self._vote
        self._calls.agreements.before_leaving = self._finish_saving
        self._calls.agreements.emergency_save = self.saving.emergency
        self._calls.agreements.save_alone = self._save_alone

    def close(self) -> None:
        self._calls.agreements.checkpoint_vote = lambda at: 0.0
        self._calls.agreements.before_leaving = lambda: None
        self._calls.agreements.emergency_save = self._calls.agreements.save_alone = None
        if self.saving is not None:
            self.saving.close()

    def _save_alone(self) -> None:
        """Every member has all of the state: this one writes the whole checkpoint, in training or validation."""
        self._whole = True
        self.saving.emergency("validation" if self._calls.evaluating else "step")

    def _finish_saving(self) -> None:
        self.saving.saver.wait(GRACE_SECONDS)

    def _vote(self, at: str) -> float:
        progress, now = self._group.progress, time.monotonic()
        if self.saving.saver.busy and self._options.if_busy == "skip":
            veto = VETO
        else:
            veto = 0.0
        committed = progress.committed + (at == "step")
        last = at == "step" and bool(self._steps) and progress.step + 1 >= self._steps
        last = last or (at == "epoch" and self.call_is_over())
        wish = self._group.is_chief and not last and self.saving.schedule.due(now, committed, at == "epoch")
        return veto + float(wish)

    def after_all(self, hook: str, *args: Any) -> None:
        if self.saving is None:
            return
        if hook == "on_train_batch_end":
            self.saving.after_step()
        elif hook == "on_epoch_end":
            self.saving.after_epoch(args[1] if len(args) > 1 else None)

    def agreed(self, due: bool, busy: bool, at: str) -> tuple[bool, bool]:
        if self._group.session is None:
            return due and not busy, due and busy
        control = self._group.progress.control
        total = self._calls.agreements.epoch_vote if at == "epoch" else control[WISH] if control else 0.0
        return total > 0, total < 0 and total % abs(VETO) > 0

    def team(self) -> Members:
        return Members(self._group, whole=self._whole)

    def epoch_is_over(self) -> bool:
        return bool(self._steps) and self._group.progress.step >= self._steps

    def call_is_over(self) -> bool:
        epochs = (self._callback.params or {}).get("epochs")
        last = epochs is not None and self._group.progress.epoch + 1 >= epochs
        return last or self._calls.agreements.stopping

    def position_after_epoch(self) -> dict[str, int]:
        progress = self._group.progress
        at = {"epoch": progress.epoch + 1, "step": 0, "data_pass": progress.data_pass, "data_step": progress.data_step}
        return at | self._calls.feeding.after_pass(progress)

    def end(self, result: dict[str, Any]) -> None:
        """All members have ended the call.

        Raises:
            CheckpointError: see Saving.end.
        """
        self.saving.end(result)
