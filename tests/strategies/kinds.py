"""Kinds of models, optimizers and losses whose results must not depend on how a batch is divided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import Input, Model, Sequential, layers, losses, optimizers

from tests.strategies.custom_models import Assigning, Gan, OwnStep

ROWS, BATCH, EPOCHS = 69, 16, 2  # the last batch has 5 rows: 3 and 2 on two devices

draw = np.random.RandomState(0)
X = draw.randn(ROWS, 6)
Y = X.sum(1, keepdims=True)
WORDS = draw.randint(0, 50, (ROWS, 5))
CLASSES = draw.randint(0, 3, ROWS)
IMAGES = draw.randn(ROWS, 8, 8, 1)
WEIGHTS = draw.rand(ROWS)
MASKED = draw.randint(0, 4, (ROWS, 7))  # 0 is masked, so shares differ in how many entries count
Y_PER_ENTRY = np.repeat(Y[:, None, :], 7, 1)
Y_WITH_INFINITE_LOSS = np.where(np.arange(ROWS)[:, None] == 20, 1e200, Y)


def mlp(optimizer: Any, **compile_arguments: Any) -> Any:
    model = Sequential([Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], **compile_arguments)
    return model


def cnn() -> Any:
    stack = [layers.Conv2D(4, 3, activation="relu"), layers.MaxPool2D(), layers.Flatten(), layers.Dense(3)]
    model = Sequential([Input((8, 8, 1)), *stack])
    model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def masked(loss: Any) -> Any:
    stack = [layers.Embedding(4, 5, mask_zero=True), layers.Dense(4, activation="tanh"), layers.Dense(1)]
    model = Sequential([Input((7,), dtype="int32"), *stack])
    model.compile(optimizers.SGD(0.1), loss, metrics=["mae"], weighted_metrics=["mae"])
    return model


def several_inputs_and_outputs() -> Any:
    numbers, words = Input((6,), name="numbers"), Input((5,), dtype="int32", name="words")
    both = layers.Concatenate()(
        [layers.Dense(4, activation="tanh")(numbers), layers.GlobalAveragePooling1D()(layers.Embedding(50, 4)(words))]
    )
    outputs = {"r": layers.Dense(1, name="r")(both), "c": layers.Dense(3, name="c")(both)}
    model = Model({"numbers": numbers, "words": words}, outputs)
    loss = {"r": "mse", "c": losses.SparseCategoricalCrossentropy(from_logits=True)}
    metrics = {"c": ["accuracy"], "r": ["mae"]}
    model.compile(optimizers.Adam(0.01), loss, loss_weights={"r": 1.0, "c": 0.5}, metrics=metrics)
    return model


def embedding() -> Any:
    table = layers.Embedding(50, 4, embeddings_regularizer="l2")
    model = Sequential([Input((5,), dtype="int32"), table, layers.Flatten(), layers.Dense(1)])
    model.compile(optimizers.Ftrl(0.1), "mse")
    return model


def activity_regularizer() -> Any:
    hidden = layers.Dense(8, activation="tanh", activity_regularizer="l2")
    model = Sequential([Input((6,)), hidden, layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def assigning() -> Any:
    model = Sequential([Input((6,)), Assigning(), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def gan() -> Any:
    model = Gan()
    model.build((None, 6))
    model.compile(optimizers.Adam(0.01), optimizers.Adam(0.02))
    return model


def own_step() -> Any:
    model = OwnStep()
    model.compile(optimizers.SGD(0.1))
    return model


def schedule() -> Any:
    return optimizers.schedules.ExponentialDecay(0.1, 3, 0.9)


XY: Mapping[str, Any] = {"x": X, "y": Y}
EMA = {"use_ema": True, "ema_overwrite_frequency": 4}

# Name -> (a compiled model, arguments of `fit`).
KINDS: dict[str, tuple[Callable[[], Any], Mapping[str, Any]]] = {
    "AdamW, schedule, clipping, EMA": (lambda: mlp(optimizers.AdamW(schedule(), clipnorm=0.1, **EMA)), XY),
    "accumulation, clipping of the whole": (
        lambda: mlp(optimizers.Adam(0.01, gradient_accumulation_steps=3, global_clipnorm=0.1)),
        XY,
    ),
    "several steps per execution, validation data": (
        lambda: mlp(optimizers.Adam(0.01), steps_per_execution=4),
        {**XY, "validation_data": (X[:33], Y[:33])},
    ),
    "run eagerly": (lambda: mlp(optimizers.Adam(0.01), run_eagerly=True), XY),
    "loss scaling, sample weights, validation split": (
        lambda: mlp(optimizers.LossScaleOptimizer(optimizers.Adam(0.01), initial_scale=8.0)),
        {**XY, "sample_weight": WEIGHTS, "validation_split": 0.3},
    ),
    # One row on one device makes the gradient infinite: all skip that update.
    "loss scaling, infinite gradient": (
        lambda: mlp(optimizers.LossScaleOptimizer(optimizers.Adam(0.01), initial_scale=8.0)),
        {"x": X, "y": Y_WITH_INFINITE_LOSS},
    ),
    "CNN, class weights": (cnn, {"x": IMAGES, "y": CLASSES, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}),
    "two optimizers": (gan, {"x": X}),
    "own train_step with its own mean": (own_step, XY),
    "variables assigned in call": (assigning, XY),
    "mask": (lambda: masked("mse"), {"x": MASKED, "y": Y_PER_ENTRY}),
    "mean with sample weight": (
        lambda: masked(losses.MeanSquaredError(reduction="mean_with_sample_weight")),
        {"x": MASKED, "y": Y_PER_ENTRY},
    ),
    "several inputs and outputs": (
        several_inputs_and_outputs,
        {"x": {"numbers": X, "words": WORDS}, "y": {"r": Y, "c": CLASSES}},
    ),
    "embedding, regularizer": (embedding, {"x": WORDS, "y": Y}),
    "activity regularizer": (activity_regularizer, XY),
}


def train(name: str, strategy: Any) -> dict[str, Any]:
    """Weights, History and evaluation of one kind, under a strategy or (None) without."""
    keras.utils.set_random_seed(3)
    make, given = KINDS[name]
    if strategy is None:
        model = make()
    else:
        with strategy.scope():
            model = make()
    history = model.fit(**given, batch_size=BATCH, shuffle=False, verbose=0, epochs=EPOCHS).history
    result = {"weights": model.get_weights(), "history": {k: [float(v) for v in h] for k, h in history.items()}}
    if not isinstance(model, Gan | OwnStep):
        data = {key: given[key] for key in ("x", "y") if key in given}
        result["evaluate"] = [float(value) for value in np.ravel(model.evaluate(**data, batch_size=BATCH, verbose=0))]
    return result
