"""The gradients of one `apply`: dense ones are summed, sparse ones (IndexedSlices) are gathered.

Gathered in the order of the replicas, the slices are those of the global batch in its order, so that an optimizer
sees exactly
what it would see in one process (Keras's optimizers treat a row that occurs twice in their own ways).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.collectives.contract import Collectives
from tfdist.strategies.inputs import PartTensors


class Gradients:
    """Splits a list of gradients (tensors, IndexedSlices or None) by kind, and puts it together again.

    Attributes:
        dense: the dense ones, of static shape, in order.
    """

    def __init__(self, grads: list[Any], variables: Any, optimizer: Any):
        self._grads = grads
        known = list(variables) if variables is not None else optimizer._trainable_variables
        pairs = [(g, v) for g, v in zip(grads, known, strict=True) if g is not None]
        self.dense = [tf.ensure_shape(g, v.shape) for g, v in pairs if not isinstance(g, tf.IndexedSlices)]

    def gather_sparse(self, collectives: Collectives, part: PartTensors, replica: int) -> list[tf.IndexedSlices]:
        """The sparse ones of all replicas, in order; a replica without rows adds none."""
        gathered = []
        for g in self._grads:
            if isinstance(g, tf.IndexedSlices):
                keep = tf.where(tf.fill(tf.shape(g.indices), part.present))[:, 0]
                values = collectives.all_gather(tf.gather(g.values, keep), 0, replica)
                with tf.control_dependencies([values]):
                    indices = collectives.all_gather(tf.gather(g.indices, keep), 0, replica)
                gathered.append(tf.IndexedSlices(values, indices, g.dense_shape))
        return gathered

    def joined(self, dense: list[tf.Tensor], sparse: list[tf.IndexedSlices]) -> list[Any]:
        """Sums and gathered slices in the places of the gradients that they come from."""
        sums, slices = iter(dense), iter(sparse)
        return [
            None if g is None else next(slices) if isinstance(g, tf.IndexedSlices) else next(sums) for g in self._grads
        ]
