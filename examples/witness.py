"""An independent witness of exactly-once: one number per sample, in the model, that each use raises by exactly 1.

It is no bookkeeping of tfdist's: the number is a weight like any other, and what raises it is its gradient in the very
step that trains the rest. A sample that is dropped leaves its number behind, one that is repeated (or a step that is
applied twice) puts it ahead. After E epochs every number must be E.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

LEARNING_RATE = 0.125  # a power of two: 0.125 * 8 is 1 without rounding


@keras.saving.register_keras_serializable(package="digits")
class Uses(keras.layers.Layer):
    """Holds the numbers. Its output is always 0, and has the gradient 1 with regard to the samples of the batch."""

    def __init__(self, samples: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.samples = samples
        self.counts = keras.layers.Embedding(samples, 1, embeddings_initializer="zeros")

    def build(self, _: Any) -> None:
        self.counts.build()

    def call(self, sample: Any) -> Any:
        count = self.counts(sample)
        return count - keras.ops.stop_gradient(count)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "samples": self.samples}


@keras.saving.register_keras_serializable(package="digits")
class OnePerUse(keras.losses.Loss):
    """The sum over the samples, weighted so that SGD adds 1. Its value is 0, so it changes no log."""

    def __init__(self, **kwargs: Any):
        super().__init__(**{"reduction": "sum", **kwargs})

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return -y_pred / LEARNING_RATE


def with_witness(model: keras.Model, samples: int) -> keras.Model:
    """A model with the inputs "image" and "sample" and the outputs "digit" and "uses" around a model of images."""
    image = keras.Input(model.input_shape[1:], name="image")
    sample = keras.Input((), dtype="int64", name="sample")
    digit = keras.layers.Identity(name="digit")(model(image))
    return keras.Model({"image": image, "sample": sample}, {"digit": digit, "uses": Uses(samples, name="uses")(sample)})


def counts(model: keras.Model) -> np.ndarray:
    """How often each sample was used; float array [samples]."""
    return np.asarray(model.get_layer("uses").counts.embeddings).reshape(-1)
