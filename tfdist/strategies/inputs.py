"""What a compiled step is told before each execution: this member's part of the global batch, and its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

REQUESTS = ("leave", "admit", "checkpoint", "rebalance")


@dataclass(frozen=True)
class Part:
    """Rows [start, stop) of a global batch of `rows` rows, for one replica."""

    start: int
    stop: int
    rows: int

    @property
    def fraction(self) -> float:
        return (self.stop - self.start) / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class PartTensors:
    """The same inside a step: fraction (float64), start (int64), present and first (bool), requests (float64s)."""

    fraction: tf.Tensor
    start: tf.Tensor
    present: tf.Tensor
    first: tf.Tensor
    requests: tf.Tensor


class StepInputs:
    """One small variable on the host, assigned before a step and read inside it: no retracing, no placeholder."""

    def __init__(self, replicas: int):
        self._last: list[list[float]] | None = None
        with tf.init_scope(), tf.device("CPU:0"):
            width = 3 + len(REQUESTS)
            self._variable = tf.Variable(
                tf.zeros([replicas, width], tf.float64), trainable=False, name="tfdist_step_inputs"
            )

    def set(self, parts: Sequence[Part], requests: Sequence[float] = (0.0,) * len(REQUESTS)) -> None:
        """`parts`: one per local replica. Requests travel with the first replica only, so that sums count members."""
        values = []
        for replica, part in enumerate(parts):
            wanted = requests if replica == 0 else (0.0,) * len(REQUESTS)
            rows = part.stop - part.start
            values.append([part.fraction, float(part.start), float(rows), *wanted])
        if values != self._last:  # most steps are like the one before
            self._variable.assign(values)
            self._last = values

    def tensors(self, replica: int) -> PartTensors:
        with tf.device("CPU:0"):
            row = self._variable.read_value()[replica]
            present = row[2] > 0
            return PartTensors(
                fraction=row[0],
                start=tf.cast(row[1], tf.int64),
                present=present,
                first=tf.logical_and(present, tf.equal(row[1], 0.0)),
                requests=row[3:],
            )
