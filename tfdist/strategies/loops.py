"""Training loops of the user's own: members meet before the first step, and a step may be made to survive losses."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist import runtime
from tfdist.errors import MemberLostError, RunEndedError
from tfdist.observe.points import reach
from tfdist.strategies.feeds import rows_of, slice_rows
from tfdist.strategies.group import first_line
from tfdist.strategies.inputs import Part
from tfdist.strategies.progress import Progress
from tfdist.strategies.state import State

if TYPE_CHECKING:
    from tfdist.strategies.calls import KerasCalls
    from tfdist.strategies.group import ElasticGroup


class _Named:
    """A `tf.Variable` with the few names that `State` uses of Keras variables."""

    def __init__(self, variable: tf.Variable, ref: weakref.ref[Any]):
        self._ref, self.path = ref, variable.name
        self.shape, self.dtype, self.trainable = tuple(variable.shape), variable.dtype.name, variable.trainable

    @property
    def value(self) -> Any:
        return self._ref()

    def assign(self, value: Any) -> None:
        self.value.assign(value)


class LoopState(State):
    """The variables created under the strategy, in the order of their creation."""

    def __init__(self, progress: Progress):
        super().__init__(progress)
        self._created: list[tuple[weakref.ref[Any], _Named]] = []

    def created(self, variable: Any) -> None:
        ref = weakref.ref(variable)
        self._created.append((ref, _Named(variable, ref)))
        self.forget_layout()

    def variables(self) -> list[Any]:
        """The same objects each time: a state is kept by their identity."""
        return [named for ref, named in self._created if ref() is not None]


class Loops:
    """What a strategy does for code outside of `fit`."""

    def __init__(self, group: ElasticGroup, calls: KerasCalls):
        self._group, self._calls = group, calls
        self.state = LoopState(group.progress)
        self._stepping = False

    def set_equal_parts(self) -> None:
        """Where nothing else is known, each replica has the same part of what is computed."""
        if not self._calls.busy and not self._stepping:
            self._calls.inputs.set(self._group.parts(self._group.size * self._group.devices))

    def enter(self) -> None:
        """Before the first operation over members outside of Keras: founders meet, with the first one's variables."""
        group = self._group
        if self._calls.busy or not group.progress.fresh:
            return
        with tf.init_scope():
            if group.session is None:
                group.progress.fresh = False
                return
            if group.session.newest_generation:
                raise RunEndedError(
                    "a training loop of one's own can't be joined while it runs, only `fit` can: the others go on "
                    "without this worker, which has nothing to do"
                )
            group.state = self.state
            group.session.ready()
            group.settle("starting")

    def elastic_step(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """See `ElasticMultiWorkerMirroredStrategy.elastic_step`."""
        group, calls = self._group, self._calls

        def step(*batch: Any) -> Any:
            self.enter()
            rows, progress = rows_of(batch), group.progress
            goal = progress.clock + 1
            reach("step_begin", step=progress.committed, epoch=0, phase="loop")
            while True:
                group.wait_for_enough()
                parts = group.parts(rows)
                handles = self.state.handles(self.state.variables())
                try:
                    with group.computing(f"step {progress.committed + 1}"):
                        calls.inputs.set(parts)
                        self._stepping = True
                        result = fn(*(_rows(value, parts) for value in batch))
                    break
                except (tf.errors.OpError, MemberLostError) as error:
                    self.state.put_back(handles)
                    if not isinstance(error, MemberLostError) and not group.collectives.is_loss(error):
                        raise
                    group.settle(first_line(error))
                    if progress.clock >= goal:
                        return progress.logs
                finally:
                    self._stepping = False
            progress.logs, progress.clock = None, goal
            progress.committed += 1
            self.state.commit()
            return result

        return step


def _rows(batch: Any, parts: list[Part]) -> Any:
    return runtime.regroup([slice_rows(batch, part.start, part.stop) for part in parts])
