"""The one thing the data sets need of TensorFlow that is not public API.

Relies on `tf.data.Dataset._variant_tensor`, the handle that `tf.data.Dataset.__init__` documents as its argument, and
on `_inputs()`, which every data set overrides. Looked at in TensorFlow 2.21 (python/data/ops/dataset_ops.py,
DatasetV2).
"""

from __future__ import annotations

from typing import Any


def variant_of(dataset: Any) -> Any:
    """The variant tensor of a `tf.data.Dataset`."""
    return dataset._variant_tensor
