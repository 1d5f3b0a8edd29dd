"""From source positions to the tensors of a share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data.errors import DataError
from tfdist.data.sources import Source, listed
from tfdist.data.stages import BatchMap, batch_spec_of, rows_of, sample_stage
from tfdist.data.structure import Structure


class Pipeline:
    """A source, then map_fn, then batch maps.

    Args:
        source: asked for the positions of one share at a time.
        map_fn: a function of one sample, or None.

    Attributes:
        spec: the nested structure of type specs of a batch, its first dimension None.
        lock: hold it to read or map; shared by all pipelines over the source, because most sources are not thread-safe.
    """

    def __init__(self, source: Source, map_fn: Callable[..., Structure] | None = None) -> None:
        self.source = source
        self.lock: Any = threading.RLock()
        self._read_spec = batch_spec_of(source)
        self._stages: tuple[Any, ...] = () if map_fn is None else (sample_stage(map_fn, source),)

    def with_batch_map(self, fn: Callable[..., Structure]) -> Pipeline:
        """The pipeline followed by `fn`, a TensorFlow function of a batch."""
        other = object.__new__(Pipeline)
        other.source, other.lock, other._read_spec = self.source, self.lock, self._read_spec
        other._stages = self._stages + (BatchMap(fn, self.spec),)
        return other

    @property
    def spec(self) -> Structure:
        return self._stages[-1].spec if self._stages else self._read_spec

    def compute(self, positions: np.ndarray) -> Structure:
        """The mapped rows at these positions.

        Raises:
            DataError: a sample could not be read or mapped, or a batch map changed the number of rows.
        """
        with tf.device("/device:CPU:0"):
            batch = self.source.read(positions)
            for stage in self._stages:
                batch = stage(batch, positions)
            batch = tf.nest.map_structure(_tensor, batch)
        for rows in rows_of(batch):
            if rows != len(positions):
                made = "a scalar" if rows is None else f"{rows} rows"
                raise DataError(
                    f"a batch map made {made} of the {len(positions)} rows at positions {listed(positions)}: it must "
                    "keep the rows. Where they need not be divided among workers, use dataset.take(-1).map(...)"
                )
        return batch

    def empty(self) -> Structure:
        """A batch of no rows; unknown dimensions are 0."""
        with tf.device("/device:CPU:0"):
            specs = tf.nest.flatten(self.spec)
            if all(isinstance(spec, tf.TensorSpec) for spec in specs):
                return tf.nest.map_structure(_no_rows, self.spec)
            # Ragged or sparse results of batch maps: only the maps know what they make of no rows.
            batches = [number for number, stage in enumerate(self._stages) if isinstance(stage, BatchMap)]
            before = self._stages[batches[0] - 1].spec if batches[0] else self._read_spec
            batch = tf.nest.map_structure(_no_rows, before)
            for number in batches:
                batch = self._stages[number](batch, np.empty(0, dtype=np.int64))
            return batch


def _tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _no_rows(spec: tf.TensorSpec) -> tf.Tensor:
    dimensions = spec.shape.as_list()[1:] if spec.shape.rank else []
    return tf.zeros([0] + [size or 0 for size in dimensions], spec.dtype)
