"""One execution (or trace) of a step function on one replica: exact averages, reduced once, before anything is applied.

Without further ado the step is *deferred*: the optimizer's `apply` is only noted, the step function runs to its end,
then one packed exchange carries gradients, what the step added to metrics, statistics and requests; then the update is
applied. A step that fails has thus changed nothing but what `StepRecord.rollback` names. A step function that updates
more than once, or reads what it has updated (a GAN), is *immediate*: gradients are reduced on entering `apply`, the
rest at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist import keras_internals, runtime
from tfdist.collectives.contract import Collectives
from tfdist.strategies.exchange import Exchange, Written
from tfdist.strategies.gradients import Gradients
from tfdist.strategies.inputs import StepInputs

CONTROL = "tfdist_control"  # key under which the requests of all members leave a compiled train step


class NotDeferrable(Exception):
    """The step function must be traced again in the immediate form; the text says why."""


@dataclass
class StepRecord:
    """What is known of a step function once it was traced; shared by its executions."""

    deferred: bool = True
    rollback: dict[int, Any] = field(default_factory=dict)  # Keras variables that a failed step may have changed
    why_immediate: str = ""


class ReplicaStep:
    """Implements `keras_internals.Step`.

    Args:
        kind: "train", "test" or "custom" (a loop of the user's own: sums of gradients stay sums, outputs stay local).
    """

    def __init__(
        self,
        kind: str,
        record: StepRecord,
        collectives: Collectives,
        inputs: StepInputs,
        replica: int,
        eager: bool,
    ):
        self.kind, self.record, self.replica = kind, record, replica
        self.collectives, self.inputs = collectives, inputs
        self.deferred = record.deferred and not eager
        self.part = inputs.tensors(replica)
        self.exchange = Exchange(self.part)
        self.applying = False
        self.weighs = kind != "custom"
        self._pending: tuple[Callable[..., Any], Any, list[Any], Any] | None = None
        self._reductions = 0
        self._first_later_operation = 0
        self._graph = None if eager else tf.compat.v1.get_default_graph()
        self._results: dict[int, tuple[Any, Any, Any]] = {}

    # --- what Keras tells the step (see keras_internals) ---

    def fraction(self) -> tf.Tensor:
        """This replica's part of the global batch, between 0 and 1."""
        return self.part.fraction

    def scale(self, value: tf.Tensor) -> tf.Tensor:
        """A loss of this replica. In a Keras step it stays a mean over its own samples: `apply` weighs the gradients.

        In a loop of the user's own, where gradients are summed, it becomes its part of the mean over the global batch.
        """
        return value * tf.cast(self.part.fraction, value.dtype) if self.kind == "custom" else value

    def unscale(self, value: tf.Tensor) -> tf.Tensor:
        if self.kind != "custom":
            return value
        return tf.math.divide_no_nan(value, tf.cast(self.part.fraction, value.dtype))

    def total(self, value: tf.Tensor) -> tf.Tensor:
        """A sum over this replica's samples, such that the weighted mean over replicas is the sum over all of them."""
        if self.kind == "custom":
            return value
        return tf.math.divide_no_nan(value, tf.cast(self.part.fraction, value.dtype))

    def denominator(self, value: tf.Tensor) -> tf.Tensor:
        """The global sum of `value`, in proportion to this replica's rows: weighted by them, quotients become exact."""
        value = tf.where(self.part.present, value, tf.zeros_like(value))
        (total,) = self._all_reduce([tf.stop_gradient(value)], "denominator")
        return total * tf.cast(self.part.fraction, value.dtype)

    def will_draw(self, state: Any) -> None:
        """The state of a seed generator is about to advance: alike on all members."""
        if not self.applying and id(state) not in self.exchange.written:
            self.record.rollback[id(state)] = state
            self.exchange.note(state, Written.ALIKE)

    def seed(self, seed: tf.Tensor) -> tf.Tensor:
        """Members draw differently: the seed depends on the step and on the first position of the share."""
        shift = tf.cast(self.part.start * 7919, seed.dtype)
        return seed + tf.stack([shift, tf.zeros_like(shift)]) if seed.shape == (2,) else seed + shift

    def will_assign(self, variable: Any) -> None:
        if self.applying or id(variable) in self.exchange.written:
            return
        inside_branch = self._graph is not None and tf.compat.v1.get_default_graph() is not self._graph
        kind = Written.kind_of(variable)
        if kind == Written.TOTAL and inside_branch:
            raise NotDeferrable("a metric is updated inside a branch")
        if self.deferred and self._pending is not None and variable.trainable:
            raise NotDeferrable(f"{variable.path} is assigned after the update")
        self.record.rollback[id(variable)] = variable
        self.exchange.note(variable, kind)

    def apply(self, original: Callable[..., Any], optimizer: Any, grads: Any, variables: Any) -> None:
        """Stands before `optimizer.apply`, the outermost one."""
        if self.applying:
            return original(optimizer, grads, variables)
        grads = list(grads)
        if self.kind != "custom":
            grads = [g if g is None else self._weighted(g) for g in grads]
        if not self.deferred:
            return self._apply_now(original, optimizer, self._reduce(grads, variables, optimizer), variables)
        if self._pending is not None:
            raise NotDeferrable("the step updates more than once")
        self._pending = (original, optimizer, grads, variables)
        self._first_later_operation = len(self._graph.get_operations()) if self._graph is not None else 0
        return None

    # --- the end of the step ---

    def finish(self, outputs: Any) -> Any:
        """Exchanges what is to be agreed, applies what was deferred, and returns the outputs, agreed."""
        self._check_nothing_was_read_after()
        self.applying = True  # what is written from here on is the same on all members
        pieces = self.exchange.outgoing()
        logs, remember = self._outgoing_outputs(outputs)
        gradients = self._pending_gradients()
        sparse = gradients.gather_sparse(self.collectives, self.part, self.replica)
        control = tf.cast(self.part.requests, tf.float32)
        reduced = self._all_reduce([*gradients.dense, *pieces, *logs, control], f"{self.kind}/end")
        arrived = iter(reduced)
        reduced_grads, reduced_pieces, reduced_logs = (
            [next(arrived) for _ in sent] for sent in (gradients.dense, pieces, logs)
        )
        # Nothing is written before every message of the step has arrived: it is done by all or can be done again.
        with tf.control_dependencies([*reduced, *(s.values for s in sparse)]):
            if self._pending is not None:
                original, optimizer, _, variables = self._pending
                grads = gradients.joined([tf.identity(g) for g in reduced_grads], sparse)
                self._apply_now(original, optimizer, grads, variables)
            self.exchange.write(reduced_pieces)
            control = tf.identity(next(arrived))
        return remember(reduced_logs), control

    def _pending_gradients(self) -> Gradients:
        if self._pending is None:
            return Gradients([], [], None)
        _, optimizer, grads, variables = self._pending
        return Gradients(grads, variables, optimizer)

    def _apply_now(self, original: Callable[..., Any], optimizer: Any, grads: list[Any], variables: Any) -> Any:
        before, self.applying = self.applying, True
        try:
            return original(optimizer, grads, variables)
        finally:
            self.applying = before

    def _weighted(self, gradient: Any) -> Any:
        dtype = gradient.dtype
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values * tf.cast(self.part.fraction, dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient * tf.cast(self.part.fraction, dtype)

    def _reduce(self, grads: list[Any], variables: Any, optimizer: Any) -> list[Any]:
        gradients = Gradients(grads, variables, optimizer)
        sparse = gradients.gather_sparse(self.collectives, self.part, self.replica)
        return gradients.joined(self._all_reduce(gradients.dense, f"{self.kind}/apply"), sparse)

    def _all_reduce(self, pieces: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        self._reductions += 1
        return self.collectives.all_reduce(pieces, f"{name}/{self._reductions}", self.replica)

    def _check_nothing_was_read_after(self) -> None:
        if self._pending is None:
            return
        _, optimizer, _, variables = self._pending
        touched = [*(variables or []), *optimizer.variables]
        handles = {id(_on_replica(v, self.replica).handle) for v in touched}
        if runtime.reads_after(self._graph, self._first_later_operation, handles):
            raise NotDeferrable("the step reads what it has updated")

    # --- outputs ---

    def record_result(self, metric: Any, result: Any) -> None:
        """Notes which tensors are results of which metric: they are computed again from the agreed totals."""
        if self.applying:
            return
        for key, value in result.items() if isinstance(result, dict) else [(None, result)]:
            self._results[id(value)] = (value, metric, key)

    def _outgoing_outputs(self, outputs: Any) -> tuple[list[tf.Tensor], Callable[[list[tf.Tensor]], Any]]:
        if self.kind == "custom":
            return [], lambda _: outputs
        flat = tf.nest.flatten(outputs)
        sent: list[tf.Tensor] = []
        plan: list[tuple[str, Any]] = []
        for value in flat:
            if id(value) in self._results:
                _, metric, key = self._results[id(value)]
                plan.append(("metric", (metric, key)))
            elif tf.is_tensor(value) and value.dtype.is_floating and value.shape.is_fully_defined():
                present = tf.where(self.part.present, value, tf.zeros_like(value))
                sent.append(present * tf.cast(self.part.fraction, value.dtype))
                plan.append(("mean", None))
            else:
                plan.append(("same", value))

        def agreed(arrived: list[tf.Tensor]) -> Any:
            results: dict[int, Any] = {}
            values = []
            arriving = iter(arrived)
            for how, what in plan:
                if how == "metric":
                    metric, key = what
                    if id(metric) not in results:
                        results[id(metric)] = metric.result()
                    values.append(results[id(metric)] if key is None else results[id(metric)][key])
                else:
                    values.append(next(arriving) if how == "mean" else what)
            return tf.nest.pack_sequence_as(outputs, values)

        return sent, agreed


def _on_replica(variable: Any, replica: int) -> Any:
    value = getattr(variable, "value", variable)
    return value.values[replica] if isinstance(value, tf.distribute.DistributedValues) else value


def run_replica(step: ReplicaStep, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with keras_internals.entered(step):
        outputs = fn(*args, **kwargs)
        outputs, control = step.finish(outputs)
    return {**outputs, CONTROL: control} if step.kind == "train" and isinstance(outputs, dict) else outputs
