"""The wrapped train and test functions of a Keras model: each step is done until it is committed, by all, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist import keras_internals
from tfdist.errors import MemberLostError, StepFailedError
from tfdist.observe.events import emit
from tfdist.observe.points import reach
from tfdist.strategies.feeds import BatchFeed, DistributedFeed, FeedIterator
from tfdist.strategies.inputs import Part
from tfdist.strategies.state import ModelState
from tfdist.strategies.step import CONTROL, NotDeferrable, StepRecord

if TYPE_CHECKING:
    from tfdist.strategies.calls import KerasCalls


class Attempts:
    """How often one step has failed: neither a poisonous sample nor an error taken for a loss is tried for ever."""

    LIMIT = 5

    def __init__(self) -> None:
        self._count = 0
        self._lost: set[Any] = set()

    def failed(self, error: BaseException, group: Any, facts: dict[str, Any]) -> None:
        """Raises when it is no use to try again."""
        self._count += 1
        self._lost |= set(group.session.lost) if group.session is not None else set()
        where = f"step {facts['step']} (epoch {facts['epoch']}, {facts['phase']})"
        if self._count >= self.LIMIT and len(self._lost) >= 2:
            raise StepFailedError(
                f"{where} was tried {self._count} times and lost {', '.join(map(str, sorted(self._lost)))} on the way: "
                "something in its samples may kill workers. Look at their output"
            ) from error
        if self._count >= self.LIMIT:
            raise StepFailedError(f"{where} failed {self._count} times: {error}") from error


class ElasticFunction:
    """Takes the place of `model.train_function` or `model.test_function`."""

    def __init__(self, kind: str, model: Any, function: Callable[..., Any], calls: KerasCalls):
        self.kind, self.model, self.function, self.calls = kind, model, function, calls
        self.record = StepRecord()
        self.traced = False
        self._control: list[float] = []

    def __call__(self, iterator: Any) -> Any:
        if not isinstance(iterator, FeedIterator):  # train_on_batch: the global batch, the same on all members
            iterator = iter(DistributedFeed(BatchFeed(next(iter(iterator)))))
            self.calls.entering.by_hand()
            return self.step(iterator)
        logs = None
        steps = self.model.steps_per_execution
        if self.kind == "train":
            progress = self.calls.group.progress
            progress.data_pass, progress.data_step = iterator.data_pass, iterator.step  # for one who joins here
            control, progress.control = progress.control, []
            self.calls.agreements.act_on(control)
            steps -= progress.step % steps  # of an execution in whose middle this member joined
        for done in range(steps):
            try:
                logs = self.step(iterator)
            except StopIteration:
                if done == 0:
                    raise
                break
        return logs

    def step(self, iterator: FeedIterator) -> Any:
        """One global step; returns its agreed logs.

        Raises:
            StopIteration: the pass over the data has ended, or all members agreed to stop.
        """
        calls, group = self.calls, self.calls.group
        progress, state = group.progress, calls.state
        state.install_pending()
        facts = {"step": progress.committed, "epoch": progress.epoch, "phase": calls.phase}
        reach("step_begin" if self.kind == "train" else "validation_step", **facts)
        attempts = Attempts()
        doing = f"step {progress.committed + 1}" if self.kind == "train" else f"step {progress.clock + 1} of evaluation"
        while True:
            if self.kind == "train":
                group.wait_for_enough()
            handles: list[Any] = []
            parts = iterator.parts(group)
            goal = progress.clock + 1
            try:
                batch = iterator.read(parts)
                handles = state.handles(self._may_change())
                iterator.hint(parts)  # so that the next rows are read while this step waits for the others
                with group.computing(doing):
                    reach("in_step", **facts)
                    logs = self.run(batch, parts)
            except NotDeferrable as error:
                state.put_back(handles)
                self._make_immediate(error)
                continue
            except (tf.errors.OpError, MemberLostError) as error:
                state.put_back(handles)
                if not isinstance(error, MemberLostError) and not group.collectives.is_loss(error):
                    raise
                attempts.failed(error, group, facts)
                calls.agreements.recover(error)
                if progress.clock >= goal:
                    break  # the others had completed it, and gave this member what came of it
                if calls.stopping:
                    raise StopIteration from error
                continue
            self._commit(iterator, logs, goal, parts[0].rows)
            break
        iterator.advance()
        calls.agreements.after_batch(self.kind == "train")
        if self.kind == "test":
            calls.agreements.leave_evaluation()
        reach("step_end", **facts)
        return progress.logs

    def _may_change(self) -> list[Any]:
        """Variables that a failing step may leave changed: all, unless the update waits for the end of the step."""
        if self.traced and self.record.deferred and not self.model.run_eagerly:
            return list(self.record.rollback.values())
        return self.calls.state.variables()

    def run(self, batch: Any, parts: list[Part]) -> Any:
        """Executes the step once on these rows; nothing is committed."""
        calls = self.calls
        calls.inputs.set(parts, calls.requests())
        with calls.running(self), calls.group.collectives.calling():
            logs = self.function([batch])
        self._note_traced()
        if self.kind == "train" and isinstance(logs, dict):
            self._control = logs.pop(CONTROL).numpy().tolist()
        return logs

    def _make_immediate(self, error: NotDeferrable) -> None:
        self.record.deferred, self.record.why_immediate = False, str(error)
        self.function = self.calls.make_function(self.kind, self.model)  # a trace that failed can't create variables

    def _note_traced(self) -> None:
        if not self.traced:
            self.traced = True
            self.calls.state.forget_layout()  # tracing may have created variables
            if not self.record.deferred and self.record.why_immediate:
                emit("immediate", f"the {self.kind} step is reduced at each update: {self.record.why_immediate}")

    def _commit(self, iterator: FeedIterator, logs: Any, goal: int, rows: int) -> None:
        progress = self.calls.group.progress
        progress.logs, progress.clock = logs, goal
        if self.kind == "train":
            progress.control, progress.epoch_logs = self._control, logs
            progress.committed += 1
            progress.step += 1
            progress.data_pass, progress.data_step = iterator.data_pass, iterator.step + 1
        self.calls.committed(rows)

    def warm_up(self, iterator: FeedIterator) -> None:
        """Compiles the step in a group of one's own, and does it once on rows whose effect is discarded.

        The trace does not depend on the number of rows, so that no change of the roster traces again.
        """
        state: ModelState = self.calls.state
        rows = iterator.feed.rows(iterator.data_pass, iterator.step)
        replicas = self.calls.group.devices
        counts = list(dict.fromkeys((min(rows, 2), min(rows, 3))))
        while counts:
            count = counts[0]
            parts = [Part(i * count, (i + 1) * count, replicas * count) for i in range(replicas)]
            batch = iterator.read([Part(0, count, rows) for _ in range(replicas)])
            handles = state.handles(state.variables())
            try:
                if self._trace_for_any_rows(batch, parts):
                    counts = counts[-1:]  # else the second number of rows makes TensorFlow trace for any
                self.run(batch, parts)
                counts.pop(0)
            except NotDeferrable as error:
                self._make_immediate(error)
            finally:
                state.put_back(handles)

    def _trace_for_any_rows(self, batch: Any, parts: list[Part]) -> bool:
        step = keras_internals.compiled_step(self.function)
        if step is None or not all(isinstance(value, tf.Tensor) for value in tf.nest.flatten(batch)):
            return False
        specs = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), batch)
        self.calls.inputs.set(parts)
        with self.calls.running(self), self.calls.group.collectives.calling():
            step.get_concrete_function(specs)
        return True
