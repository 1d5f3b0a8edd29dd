"""What a step wrote besides the update, and how members agree on it.

| written | agreed value |
|---|---|
| totals of metrics (synchronisation on read, sum) | value before the step + what all replicas added |
| floats (statistics of BatchNormalization, variables assigned in `call`) | mean over replicas, weighted by rows |
| integers, booleans | that of the replica which holds the first row of the global batch |
| state of seed generators | nothing to do: it advances alike everywhere |
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.strategies.inputs import PartTensors


class Written:
    """How a written variable is agreed upon."""

    TOTAL, MEAN, FIRST, ALIKE = "total", "mean", "first", "alike"

    @staticmethod
    def kind_of(variable: Any) -> str:
        if variable.synchronization == "on_read" and variable.aggregation == "sum":
            return Written.TOTAL
        return Written.MEAN if tf.as_dtype(variable.dtype).is_floating else Written.FIRST


class Exchange:
    """Collects what one replica wrote; gives the tensors to be summed, and writes the sums back."""

    def __init__(self, part: PartTensors):
        self._part = part
        self.written: dict[int, tuple[Any, str, tf.Tensor | None]] = {}

    def note(self, variable: Any, kind: str) -> None:
        """Called before the first assignment of the step to `variable`."""
        before = tf.identity(variable.value) if kind == Written.TOTAL else None
        self.written[id(variable)] = (variable, kind, before)

    def _items(self) -> list[tuple[Any, str, tf.Tensor | None]]:
        return [item for item in self.written.values() if item[1] != Written.ALIKE]

    def outgoing(self) -> list[tf.Tensor]:
        """This replica's addends, in the order of the first assignments."""
        pieces = []
        for variable, kind, before in self._items():
            value = tf.identity(variable.value)
            if kind == Written.TOTAL:
                piece = tf.where(self._part.present, value - before, tf.zeros_like(value))
            elif kind == Written.MEAN:
                piece = tf.where(self._part.present, value, tf.zeros_like(value))
                piece = piece * tf.cast(self._part.fraction, value.dtype)
            else:
                number = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
                piece = tf.where(self._part.first, number, tf.zeros_like(number))
            pieces.append(piece)
        return pieces

    def write(self, reduced: list[tf.Tensor]) -> None:
        """Assigns the agreed values; `reduced` are the sums of `outgoing` over all replicas."""
        for (variable, _, before), total in zip(self._items(), reduced, strict=True):
            variable.assign(total if before is None else before + total)
