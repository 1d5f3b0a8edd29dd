"""The extended object of the elastic strategy: which steps are entered, and where variables and reductions go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist import keras_internals, runtime
from tfdist.strategies.step import ReplicaStep, StepRecord, run_replica

if TYPE_CHECKING:
    from tfdist.strategies.calls import KerasCalls
    from tfdist.strategies.group import ElasticGroup
    from tfdist.strategies.loops import Loops


class ElasticExtended(runtime.Extended):
    """See `runtime.Extended`. `attach` gives it what can only be made once it exists."""

    group_of_members: ElasticGroup | None = None
    calls: KerasCalls | None = None
    loops: Loops | None = None
    nominal_workers = 1

    def attach(self, group: ElasticGroup, calls: KerasCalls, loops: Loops) -> None:
        self.group_of_members, self.calls, self.loops = group, calls, loops
        self.nominal_workers = len(group.session.expected) if group.session is not None else 1

    @property
    def in_keras(self) -> bool:
        """Whether a wrapped function of a Keras model is being traced or executed."""
        return self.calls is not None and self.calls.current is not None

    @property
    def _num_replicas_in_sync(self) -> int:
        """The nominal size of the run, so that a batch size computed from it is the same for a joiner."""
        return len(self.worker_devices) * self.nominal_workers

    @property
    def _num_workers(self) -> int:
        """TensorFlow leaves reductions out where it is 1: with a session there may be others at any time."""
        alone = self.group_of_members is None or self.group_of_members.session is None
        return 1 if alone else max(2, self.nominal_workers)

    @_num_workers.setter
    def _num_workers(self, _: int) -> None:
        """TensorFlow sets it once, from TF_CONFIG."""

    @property
    def _is_chief(self) -> bool:
        return self.group_of_members is None or self.group_of_members.is_chief

    @_is_chief.setter
    def _is_chief(self, _: bool) -> None:
        """TensorFlow sets it once, from TF_CONFIG; ours follows the roster."""

    def _make_input_context(self) -> tf.distribute.InputContext:
        """For input functions of the user's own: this member's place among those of the present roster."""
        group = self.group_of_members
        size, rank = (group.size, group.rank) if group is not None else (1, 0)
        return tf.distribute.InputContext(size, rank, self._num_replicas_in_sync)

    def _in_multi_worker_mode(self) -> bool:
        """Keras reduces outputs over workers where this is true; ours are agreed already."""
        return False

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Plain mirrored variables: what replicas write differently is agreed at the end of the step, all at once."""
        kwargs["aggregation"] = tf.VariableAggregation.NONE
        kwargs["synchronization"] = tf.VariableSynchronization.AUTO
        variable = super()._create_variable(next_creator, **kwargs)
        if self.loops is not None:
            self.loops.state.created(variable)
        return variable

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Gradients were reduced before the optimizer's `apply` (see `strategies.step`)."""
        step = keras_internals.current_step()
        if step is not None and step.applying:
            return value
        return super()._replica_ctx_all_reduce(reduce_op, value, options)

    def as_step(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` as a step: exact averages, one exchange (see `strategies.step.ReplicaStep`)."""
        function = self.calls.current if self.calls is not None else None
        kind = function.kind if function is not None else "custom"
        if kind == "custom" and self.calls is not None and self.calls.predicting:
            return fn
        record = function.record if function is not None else StepRecord(deferred=False)
        if function is not None:
            keras_internals.watch_results(function.model.metrics)
            keras_internals.watch_loss_trackers(function.model)
        converted = runtime.convert(fn)

        @tf.autograph.experimental.do_not_convert
        def step(*args: Any, **kwargs: Any) -> Any:
            replica = runtime.local_replica()
            one = ReplicaStep(
                kind=kind,
                record=record,
                collectives=self.group_of_members.collectives,
                inputs=self.calls.inputs,
                replica=replica,
                eager=tf.executing_eagerly(),
            )
            return run_replica(one, converted, args, kwargs)

        return step
