"""Where samples come from: things with a length that give the samples at given positions.

A source is asked for the positions of one share at a time, in the plan's order, from one thread at a time. It need not
be the same object on every worker, but must hold the same samples in the same order.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tfdist.data.errors import DataError
from tfdist.data.stacking import stack, to_array
from tfdist.data.structure import Structure, is_nested, leaves, map_leaves
from tfdist.errors import ConfigError


@runtime_checkable
class Source(Protocol):
    """What `elastic_dataset` reads from."""

    def __len__(self) -> int:
        """Number of samples; does not change."""

    def read(self, positions: Sequence[int] | np.ndarray) -> Structure:
        """The samples at the given positions, in that order.

        Args:
            positions: at least one integer in [0, len(self)); a position may come twice.

        Returns:
            A nested structure of numpy arrays [len(positions), ...], which the source does not change afterwards.

        Raises:
            DataError: naming the position of a sample that could not be read.
        """

    @property
    def element_spec(self) -> Structure:
        """The nested structure of `tf.TensorSpec` of one sample. Imports TensorFlow."""


class ArraySource:
    """Samples along the first axis of arrays.

    Args:
        arrays: an array, or a nested tuple, list or dictionary of arrays with equal first dimensions: numpy arrays
            (also memory-mapped), TensorFlow tensors, pandas columns. They are not copied, and dtypes stay as they are
            (float64 stays float64). Lists of plain numbers are refused; a list of arrays counts as a tuple.

    Raises:
        ConfigError: naming the array that is a scalar, has another length, or is no array.

    Example:
        >>> source = ArraySource((np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])))
        >>> len(source), source.read([2, 0])[1].tolist()
        (3, [0, 0])
    """

    def __init__(self, arrays: Structure) -> None:
        self._arrays = map_leaves(_whole_array, arrays)
        lengths = [(path, len(array)) for path, array in leaves(self._arrays)]
        if not lengths:
            raise ConfigError("source", arrays, "must hold at least one array")
        first_path, self._length = lengths[0]
        for path, length in lengths:
            if length != self._length:
                raise ConfigError(
                    _leaf_name(path), f"{length} rows", f"must have the {self._length} rows of {_leaf_name(first_path)}"
                )

    def __len__(self) -> int:
        return self._length

    def read(self, positions: Sequence[int] | np.ndarray) -> Structure:
        index = np.asarray(positions, dtype=np.int64)
        if index.size and not (index.min() >= 0 and index.max() < self._length):
            raise DataError(f"positions must be in [0, {self._length}), got {index.min()} to {index.max()}")
        return map_leaves(lambda _path, array: array[index], self._arrays)

    @property
    def element_spec(self) -> Structure:
        return element_spec_of(self._arrays)


class RandomAccessSource:
    """Samples of an object with `__len__` and `__getitem__(position)`; `__getitems__(positions)` is used if there.

    Args:
        samples: the object; a sample is a nested structure of arrays, numbers and strings, with one structure, shape
            and dtype throughout. Python integers become int64, floats float64. Position 0 is read once, for the
            specification.

    Raises:
        ConfigError: the object lacks one of the two methods, or its rows are not samples (a data frame).
    """

    def __init__(self, samples: Any) -> None:
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
            raise ConfigError("source", type(samples).__name__, "must have __len__ and __getitem__(position)")
        if hasattr(samples, "iloc"):
            raise ConfigError("source", type(samples).__name__, "indexes columns, not samples", "Give .to_numpy().")
        self._samples = samples
        self._spec: Structure = None

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, positions: Sequence[int] | np.ndarray) -> Structure:
        wanted = [int(position) for position in positions]  # numpy integers surprise many __getitem__ methods
        if hasattr(self._samples, "__getitems__"):
            return stack(self._several(wanted), wanted)
        return stack([self._one(position) for position in wanted], wanted)

    @property
    def element_spec(self) -> Structure:
        if self._spec is None:
            self._spec = element_spec_of(self.read([0]))
        return self._spec

    def _one(self, position: int) -> Structure:
        try:
            return self._samples[position]
        except Exception as error:
            raise DataError(f"reading the sample at position {position} failed: {_said(error)}") from error

    def _several(self, wanted: list[int]) -> list[Structure]:
        try:
            samples = list(self._samples.__getitems__(wanted))
        except Exception as error:
            raise DataError(f"reading the samples at positions {listed(wanted)} failed: {_said(error)}") from error
        if len(samples) != len(wanted):
            raise DataError(f"__getitems__ returned {len(samples)} samples for the positions {listed(wanted)}")
        return samples


def as_source(value: Any) -> Source:
    """Arrays and indexable objects as a Source; a Source stays what it is.

    Raises:
        ConfigError: `value` is something whose samples can't be had by position, with what to do instead.
    """
    families = {f"{family.__module__.partition('.')[0]}.{family.__name__}" for family in type(value).__mro__}
    if families & {"tensorflow.DatasetV2", "keras.PyDataset", "torch.DataLoader"}:
        raise ConfigError(
            "source",
            type(value).__name__,
            "gives batches in an order of its own",
            "Give the arrays or records behind it, and what is done to each sample as map_fn.",
        )
    if isinstance(value, Source):
        return value
    if is_nested(value) or hasattr(value, "__array__"):
        return ArraySource(value)
    return RandomAccessSource(value)


def element_spec_of(rows: Structure) -> Structure:
    """The specification of one sample of arrays with a leading axis. Imports TensorFlow."""
    import tensorflow as tf

    def spec(_path: str, array: np.ndarray) -> Any:
        text = array.dtype.kind in "SUO"
        return tf.TensorSpec(array.shape[1:], tf.string if text else tf.as_dtype(array.dtype))

    return map_leaves(spec, rows)


def listed(positions: Sequence[int] | np.ndarray) -> str:
    """The first few positions, for messages."""
    numbers = [str(operator.index(position)) for position in positions[:5]]
    return ", ".join(numbers) + (f" and {len(positions) - 5} more" if len(positions) > 5 else "")


def _whole_array(path: str, leaf: Any) -> np.ndarray:
    if isinstance(leaf, (str, bytes, int, float, complex)) and not isinstance(leaf, np.generic):
        raise ConfigError(
            _leaf_name(path),
            leaf,
            "must be an array with samples along its first axis",
            "Convert lists: numpy.asarray(...).",
        )
    try:
        array = to_array(leaf, _leaf_name(path))
    except DataError as error:
        raise ConfigError(_leaf_name(path), type(leaf).__name__, str(error)) from error
    if array.ndim == 0:
        raise ConfigError(_leaf_name(path), leaf, "is a scalar, but samples lie along the first axis of an array")
    return array


def _leaf_name(path: str) -> str:
    return f"source{path}"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
