"""Small models with their data, in float64: what the workers of these tests train."""

from __future__ import annotations

from typing import Any

import numpy as np

SAMPLES = 90
BATCH = 12  # 8 steps an epoch, the last one of 6 rows
STEPS = 8
EPOCHS = 3


def make(kind: str, epochs: int = EPOCHS) -> tuple[Any, Any, Any, dict[str, Any]]:
    """(a model that is not compiled, x, y, arguments of `compile`). Call it under the strategy's scope."""
    if kind == "witness":
        return _witness(epochs)
    return {
        "momentum": _mlp,
        "adam": _mlp,
        "adamw": _mlp,
        "accumulation": _mlp,
        "cnn": _cnn,
        "batchnorm": _batchnorm,
        "batchnorm, other rows": _batchnorm,
    }[kind](kind)


def _optimizer(kind: str) -> Any:
    from keras import optimizers

    return {
        "momentum": lambda: optimizers.SGD(0.05, momentum=0.9),
        "adam": lambda: optimizers.Adam(0.01),
        "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
        "accumulation": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=3),
    }[kind]()


def _features(width: int = 4) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.RandomState(0).randn(SAMPLES, width)
    return x, np.tanh(x.sum(1, keepdims=True))


def _mlp(kind: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    from keras import Input, Sequential, layers

    x, y = _features()
    model = Sequential([Input((4,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    return model, x, y, {"optimizer": _optimizer(kind), "loss": "mse", "metrics": ["mae"]}


def _witness(epochs: int) -> tuple[Any, Any, Any, dict[str, Any]]:
    """A small network beside an embedding with a row per sample: each use of a sample adds exactly 1 to its row.

    The row grows towards a target that it does not reach.
    """
    from keras import Input, Model, layers, losses, optimizers

    features, y = _features()
    data, index = Input((4,), name="data"), Input((1,), dtype="int32", name="index")
    hidden = layers.Dense(8, activation="tanh")(data)
    used = layers.Embedding(SAMPLES, 1, embeddings_initializer="zeros", name="used")(index)
    outputs = {"result": layers.Dense(1, name="result")(hidden), "count": layers.Flatten(name="count")(used)}
    arguments = {
        "optimizer": optimizers.SGD(1.0),
        "loss": {"result": "mse", "count": losses.MeanAbsoluteError(reduction="sum")},
        "loss_weights": {"result": 0.05, "count": 1.0},
        "metrics": {"result": ["mae"]},
    }
    x = {"data": features, "index": np.arange(SAMPLES)[:, None]}
    return (
        Model({"data": data, "index": index}, outputs),
        x,
        {"result": y, "count": np.full((SAMPLES, 1), max(1e3, 2.0 * epochs))},
        arguments,
    )


def _cnn(kind: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    from keras import Input, Sequential, layers, losses, optimizers

    draw = np.random.RandomState(1)
    x, y = draw.randn(SAMPLES, 8, 8, 1), draw.randint(0, 3, SAMPLES)
    stack = [layers.Conv2D(4, 3, activation="relu"), layers.MaxPool2D(), layers.Flatten(), layers.Dense(3)]
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    return (
        Sequential([Input((8, 8, 1)), *stack]),
        x,
        y,
        {"optimizer": optimizers.Adam(0.01), "loss": loss, "metrics": ["accuracy"]},
    )


def _batchnorm(kind: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """All rows are alike, so that every batch has the same statistics, however it is divided: steps can be counted."""
    from keras import Input, Sequential, layers, optimizers

    x = np.tile(np.array([1.0, -2.0, 3.0, 0.5]), (SAMPLES, 1))
    if kind == "batchnorm, other rows":
        x = np.random.RandomState(2).randn(SAMPLES, 4)
    stack = [layers.BatchNormalization(momentum=0.9, name="norm"), layers.Dense(3, activation="tanh"), layers.Dense(1)]
    return Sequential([Input((4,)), *stack]), x, _features()[1], {"optimizer": optimizers.Adam(0.01), "loss": "mse"}
