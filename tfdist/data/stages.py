"""What happens to the rows of a share between the source and the training step: map_fn, then batch maps.

Each stage is traced once, when it is made, for any number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data.errors import DataError
from tfdist.data.sources import Source, element_spec_of, listed
from tfdist.data.stacking import stack
from tfdist.data.structure import Structure, map_leaves
from tfdist.errors import ConfigError

_log = logging.getLogger(__name__)


class TracedSamples:
    """map_fn as a TensorFlow function, applied by tf.data to each row, in parallel and in order.

    Raises:
        Exception: whatever tracing `map_fn` raises.
        ConfigError: `map_fn` returns ragged or sparse tensors.
    """

    def __init__(self, map_fn: Callable[..., Structure], batch_spec: Structure) -> None:
        def batched(batch: Structure) -> Structure:
            rows = tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
            samples = tf.data.Dataset.from_tensor_slices(batch)
            samples = samples.map(map_fn, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            return samples.batch(rows).get_single_element()

        self._run = tf.function(batched, input_signature=[batch_spec], autograph=False)
        self.spec = _traced_spec(self._run)
        for leaf in tf.nest.flatten(self.spec):
            if not isinstance(leaf, tf.TensorSpec):
                raise ConfigError(
                    "map_fn result",
                    type(leaf).__name__,
                    "must be dense tensors",
                    "Use .to_tensor(shape=...), tf.sparse.to_dense, or a batch map: dataset.map(...).",
                )

    def __call__(self, batch: Structure, positions: np.ndarray) -> Structure:
        try:
            return self._run(batch)
        except Exception as error:
            raise self._explained(batch, positions, error) from error

    def _explained(self, batch: Structure, positions: np.ndarray, error: Exception) -> DataError:
        """tf.data does not say which row failed: this finds out by doing each row alone."""
        for row, position in enumerate(positions):
            alone = tf.nest.map_structure(lambda leaf, row=row: leaf[row : row + 1], batch)
            try:
                self._run(alone)
            except Exception as own_error:  # noqa: BLE001 - it is reported, whatever it is
                return DataError(f"map_fn failed for the sample at position {position}: {own_error}")
        return DataError(
            f"map_fn worked for each of the samples at positions {listed(positions)}, but not for all together; do the "
            f"shapes of its results differ? {error}"
        )


class PythonSamples:
    """map_fn as a plain Python function: called with numpy values, row by row.

    Raises:
        DataError: `map_fn` fails for `first`, the rows of position 0 alone.
    """

    def __init__(self, map_fn: Callable[..., Structure], first: Structure) -> None:
        self._map_fn = map_fn
        self.spec = _with_batch_axis(element_spec_of(self(first, np.array([0]))))

    def __call__(self, batch: Structure, positions: np.ndarray) -> Structure:
        samples = [self._one(batch, row, int(position)) for row, position in enumerate(positions)]
        return stack(samples, [int(position) for position in positions])

    def _one(self, batch: Structure, row: int, position: int) -> Structure:
        sample = map_leaves(lambda _path, array: array[row], batch)
        try:
            return _call(self._map_fn, sample)
        except Exception as error:
            raise DataError(
                f"map_fn failed for the sample at position {position}: {type(error).__name__}: {error}"
            ) from error


class BatchMap:
    """A function of whole batches, as given to `Dataset.map` of the batched data set."""

    def __init__(self, fn: Callable[..., Structure], batch_spec: Structure) -> None:
        self._run = tf.function(lambda batch: _call(fn, batch), input_signature=[batch_spec])
        self.spec = tf.nest.map_structure(_any_rows, _traced_spec(self._run))

    def __call__(self, batch: Structure, positions: np.ndarray) -> Structure:
        try:
            return self._run(batch)
        except Exception as error:
            raise DataError(f"a batch map failed for the samples at positions {listed(positions)}: {error}") from error


def sample_stage(map_fn: Callable[..., Structure], source: Source) -> TracedSamples | PythonSamples:
    """map_fn as a TensorFlow function if it can be traced, else as a plain Python function.

    Raises:
        DataError: `map_fn` can be used in neither way; names both reasons.
    """
    try:
        return TracedSamples(map_fn, _with_batch_axis(source.element_spec))
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - what a plain Python function raises on symbolic tensors is up to it
        try:
            stage = PythonSamples(map_fn, source.read([0]))
        except DataError as python_error:
            raise DataError(
                f"{python_error}. As a TensorFlow function it could not be used either: {_first_line(error)}"
            ) from error
        _log.info("map_fn runs as plain Python, one sample at a time, for it can't be traced: %s", _first_line(error))
        return stage


def batch_spec_of(source: Source) -> Structure:
    """The specification of a batch of unmapped rows."""
    return _with_batch_axis(source.element_spec)


def _call(fn: Callable[..., Structure], element: Structure) -> Structure:
    # As tf.data does it: the parts of a tuple are arguments, a dictionary is one argument.
    return fn(*element) if isinstance(element, tuple) else fn(element)


def _with_batch_axis(spec: Structure) -> Structure:
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec(tf.TensorShape([None]) + leaf.shape, leaf.dtype), spec)


def _traced_spec(function: Any) -> Structure:
    outputs = function.get_concrete_function().structured_outputs
    return tf.nest.map_structure(_nameless, outputs)


def _nameless(value: Any) -> Any:
    spec = value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)
    return tf.TensorSpec(spec.shape, spec.dtype) if isinstance(spec, tf.TensorSpec) else spec


def _any_rows(spec: Any) -> Any:
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec(tf.TensorShape([None]) + spec.shape[1:], spec.dtype)
    return spec


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def rows_of(batch: Structure) -> Sequence[int | None]:
    """The first dimension of each dense tensor of a batch; None for a scalar."""
    return [
        leaf.shape[0] if leaf.shape.rank else None for leaf in tf.nest.flatten(batch) if isinstance(leaf, tf.Tensor)
    ]
