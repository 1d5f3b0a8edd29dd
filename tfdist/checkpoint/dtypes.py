"""The element types of a checkpoint: their names, sizes, and how zarr and numpy call them."""

from __future__ import annotations

import numpy as np

from tfdist.errors import CheckpointError, IncompatibleCheckpointError

# Those that numpy has itself; the bytes of a checkpoint are little-endian.
_NATIVE = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
# Those of the package ml_dtypes, with their bytes per element. Imported when an array of them is made, not before.
_EXTENDED = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "int4": 1,  # numpy, and zarr as tensorstore reads it, use a byte for each; tensorstore does not know uint4
}

NAMES = frozenset((*_NATIVE, *_EXTENDED))


def item_size(name: str) -> int:
    """Returns the bytes of one element.

    Raises:
        CheckpointError: no checkpoint can hold that type.
    """
    if name in _NATIVE:
        return _NATIVE[name].itemsize
    if name in _EXTENDED:
        return _EXTENDED[name]
    raise CheckpointError(
        f"dtype {str(name)[:80]!r} cannot be stored in a checkpoint; those that can are {', '.join(sorted(NAMES))}."
    )


def zarr_name(name: str) -> str:
    """Returns what zarr (version 2, as tensorstore extends it) calls the type: "float32" is "<f4"."""
    item_size(name)
    return _NATIVE[name].str if name in _NATIVE else name


def numpy_dtype(name: str) -> np.dtype:
    """Returns numpy's type of that name.

    Raises:
        CheckpointError: no checkpoint can hold that type.
        IncompatibleCheckpointError: it needs the package ml_dtypes, which is missing.
    """
    item_size(name)
    if name in _NATIVE:
        return _NATIVE[name]
    try:
        import ml_dtypes
    except ImportError:
        raise IncompatibleCheckpointError(
            f"dtype {name} needs the package ml_dtypes: pip install 'tfdist[checkpoint]' (TensorFlow brings it, too)."
        ) from None
    return np.dtype(getattr(ml_dtypes, name))
