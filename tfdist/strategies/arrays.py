"""Arrays given to `fit` and `evaluate` become an `elastic_dataset`: exactly once, and each worker reads its own rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def as_arrays(arrays: Any) -> Any | None:
    """The nested arrays as a source, or None where they are of another kind (sparse, ragged): those Keras slices itself."""
    flat = tf.nest.flatten(arrays)
    if not flat or not all(isinstance(a, np.ndarray) or _dense_tensor(a) for a in flat):
        return None
    return arrays


def _dense_tensor(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.Variable))


def run_seed(session: Any, call: int) -> int:
    """The seed of the order of samples: the same on all members, fixed by the script's seed where there is one."""
    import keras

    seed = keras.utils.get_random_seed() if hasattr(keras.utils, "get_random_seed") else None
    if seed is None:
        seed = 0 if session is None else session.run_seed
    return (int(seed) * 1_000_003 + call) & 0x7FFFFFFF
