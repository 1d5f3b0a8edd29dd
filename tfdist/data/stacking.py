"""Samples, one by one, into arrays with a leading axis; and the rules for what a sample may be made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfdist.data.errors import DataError
from tfdist.data.structure import Structure, fill, is_nested, leaves, map_leaves, shape_of

_TENSOR_KINDS = "biufcSUV"  # "V": bfloat16 and its like, which numpy knows as void


def sample_arrays(sample: Structure, position: int) -> Structure:
    """Makes each leaf of one sample a numpy array: Python integers become int64, floats float64, text strings.

    Raises:
        DataError: a leaf that can't become a tensor, or a list of plain numbers, where a list of arrays (several
            inputs) and one array can't be told apart.
    """
    where = f"of the sample at position {position}"
    for path, value in _lists(sample):
        if value and all(isinstance(item, (bool, int, float, complex)) for item in value):
            raise DataError(f"{_name(path)} {where} is a list of numbers; make it an array: numpy.asarray(...)")
    return map_leaves(lambda path, leaf: to_array(leaf, f"{_name(path)} {where}"), sample)


def to_array(leaf: Any, what: str) -> np.ndarray:
    """The leaf as a numpy array, without a copy where possible. Raises DataError, naming `what`."""
    if isinstance(leaf, (str, bytes)):
        return np.array(leaf, dtype=object)  # "S" would cut trailing zero bytes off
    if hasattr(leaf, "numpy") and not hasattr(leaf, "__array__"):
        leaf = leaf.numpy()
    if not isinstance(leaf, (bool, int, float, complex, np.generic)) and not hasattr(leaf, "__array__"):
        raise DataError(f"{what} is a {type(leaf).__name__}; use numpy arrays, numbers, strings or tensors")
    array = np.asarray(leaf)
    if array.dtype == object:
        others = {type(item).__name__ for item in array.flat if not isinstance(item, (str, bytes))}
        if others:
            raise DataError(
                f"{what} has dtype object and holds {', '.join(sorted(others))}; convert it with .astype(...), "
                "and pad parts of different lengths to one shape"
            )
    elif array.dtype.kind not in _TENSOR_KINDS or array.dtype.fields:
        raise DataError(f"{what} has dtype {array.dtype}, which TensorFlow does not have; convert it with .astype(...)")
    return array


def stack(samples: Sequence[Structure], positions: Sequence[int]) -> Structure:
    """Stacks samples of one structure, shape and dtype.

    Args:
        samples: at least one.
        positions: the source position of each sample, for the messages.

    Returns:
        The structure of arrays [len(samples), ...].

    Raises:
        DataError: naming the position of the first sample that differs from the first one, and how.
    """
    rows = [sample_arrays(sample, position) for sample, position in zip(samples, positions, strict=True)]
    nesting = shape_of(rows[0])
    for row, position in zip(rows, positions, strict=True):
        if shape_of(row) != nesting:
            raise DataError(
                f"the sample at position {position} has the structure {shape_of(row)}, the one at position "
                f"{positions[0]} has {nesting}; all samples must have one structure"
            )
    columns = zip(*([leaf for _, leaf in leaves(row)] for row in rows), strict=True)
    paths = [path for path, _ in leaves(rows[0])]
    stacked = [_stack_leaf(path, column, positions) for path, column in zip(paths, columns, strict=True)]
    return fill(rows[0], iter(stacked))


def _stack_leaf(path: str, column: Sequence[np.ndarray], positions: Sequence[int]) -> np.ndarray:
    first = column[0]
    for array, position in zip(column, positions, strict=True):
        if array.shape != first.shape or _kind(array) != _kind(first):
            raise DataError(
                f"{_name(path)} of the sample at position {position} is {array.dtype}{list(array.shape)}, of the "
                f"one at position {positions[0]} {first.dtype}{list(first.shape)}; bring the samples to one shape and "
                "dtype (pad, resize, astype), in the source or, for encoded samples, in map_fn"
            )
    return np.stack(column)


def _kind(array: np.ndarray) -> Any:
    # Texts of different lengths have different numpy dtypes and are one TensorFlow dtype.
    return "string" if array.dtype.kind in "SUO" else array.dtype


def _lists(structure: Structure, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    if isinstance(structure, list):
        yield path, structure
    if isinstance(structure, dict):
        for key, value in structure.items():
            yield from _lists(value, f"{path}[{key!r}]")
    elif is_nested(structure):
        for number, value in enumerate(structure):
            yield from _lists(value, f"{path}[{number}]")


def _name(path: str) -> str:
    return f"part {path}" if path else "the value"
