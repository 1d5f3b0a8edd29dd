"""What runs inside the workers of these tests: one training, with tfdist or (for the values to expect) without it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.strategies import models
from tests.strategies.callbacks import LogBatches, StopAt, WaitForMembers
from tests.strategies.mutations import MUTATIONS

DEFAULTS: Mapping[str, Any] = {
    "kind": "witness",
    "plain": False,  # without tfdist: what is to be expected
    "data": "elastic",  # or "arrays", "tf.data"
    "shuffle": True,
    "seed": 5,
    "batch": models.BATCH,
    "samples": models.SAMPLES,
    "epochs": models.EPOCHS,
    "steps_per_execution": 1,
    "elastic": True,
    "validation": False,
    "script": False,  # evaluate, fit, evaluate, fit instead of one fit
    "wait": {},  # {step: members}: all workers wait at this step until so many are there, or ask to be
    "stop": None,  # [worker, step]: that worker alone sets stop_training
    "mutate": None,  # what is broken on purpose (mutations.py)
    "compile": {},
    "membership": {},
    "only": {},  # {worker: options}: for that worker only
}


def own_index() -> int:
    return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])


def train(given: dict[str, Any]) -> dict[str, Any]:
    """Trains as the options say (see DEFAULTS) and returns all that is to be equal."""
    import keras

    options = {**DEFAULTS, **given, **given.get("only", {}).get(str(own_index()), {})}
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(7)
    strategy = None if options["plain"] else open_strategy(options)
    if options["mutate"]:
        MUTATIONS[options["mutate"]](own_index())
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model, x, y, arguments = models.make(options["kind"])
        model.compile(**{**arguments, **options["compile"]}, steps_per_execution=options["steps_per_execution"])
    logs = LogBatches()
    callbacks: list[Any] = [logs]
    if strategy is not None:
        import tfdist.callbacks

        callbacks += [WaitForMembers(strategy, int(step), members) for step, members in options["wait"].items()]
        callbacks += [tfdist.callbacks.ElasticTraining()] if options["elastic"] else []
    if options["stop"] and options["stop"][0] in (own_index(), None):
        callbacks.append(StopAt(options["stop"][1]))
    x, y = (_first(part, options["samples"]) for part in (x, y))
    calls = _script(model, x, y, options, callbacks) if options["script"] else [_fit(model, x, y, options, callbacks)]
    return {
        "weights": {weight.path: weight.numpy() for weight in model.weights},
        "iterations": int(model.optimizer.iterations.numpy()),
        "calls": calls,
        "batches": logs.rows,
    }


def open_strategy(options: Mapping[str, Any]) -> Any:
    import tfdist

    timing = {"heartbeat_interval": 0.2, "heartbeat_timeout": 1.0, **options["membership"]}
    return tfdist.ElasticMultiWorkerMirroredStrategy(membership=tfdist.MembershipOptions(**timing))


def _first(part: Any, samples: int) -> Any:
    return {name: array[:samples] for name, array in part.items()} if isinstance(part, dict) else part[:samples]


def _fit(model: Any, x: Any, y: Any, options: Mapping[str, Any], callbacks: list[Any]) -> dict[str, list[float]]:
    arguments: dict[str, Any] = {"epochs": options["epochs"], "verbose": 0, "callbacks": callbacks}
    if options["validation"]:
        arguments |= {"validation_data": (_first(x, 50), _first(y, 50)), "validation_batch_size": options["batch"]}
    if options["data"] == "arrays":
        history = model.fit(x, y, batch_size=options["batch"], shuffle=options["shuffle"], **arguments)
    else:
        history = model.fit(_dataset(x, y, options), **arguments)
    return {name: [float(value) for value in values] for name, values in history.history.items()}


def _dataset(x: Any, y: Any, options: Mapping[str, Any]) -> Any:
    if options["data"] == "tf.data":
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((x, y)).batch(options["batch"])
    from tfdist.data import elastic_dataset

    return elastic_dataset((x, y), options["batch"], shuffle=options["shuffle"], seed=options["seed"])


def _script(model: Any, x: Any, y: Any, options: Mapping[str, Any], callbacks: list[Any]) -> list[Any]:
    """As a user's script with several calls. The first `fit` has no callbacks that count steps."""
    quiet = [one for one in callbacks if type(one).__name__ == "ElasticTraining"]
    return [
        _evaluate(model, x, y),
        _fit(model, x, y, {**options, "epochs": 1}, quiet),
        _evaluate(model, x, y),
        _fit(model, x, y, options, callbacks),
    ]


def _evaluate(model: Any, x: Any, y: Any) -> dict[str, float]:
    logs = model.evaluate(_first(x, 50), _first(y, 50), batch_size=16, verbose=0, return_dict=True)
    return {name: float(value) for name, value in logs.items()}


def h(rows: int, data: str) -> dict[str, Any]:
    """The small harness of the field reports: one linear layer on 4 features, global batch 16, 2 epochs, no shuffle."""
    import keras
    import tensorflow as tf
    import tfdist.callbacks

    from tfdist.data import elastic_dataset

    strategy = open_strategy(DEFAULTS)
    keras.utils.set_random_seed(1)
    x = np.random.RandomState(0).randn(rows, 4).astype("float32")
    y = x.sum(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    given: dict[str, Any] = {
        "arrays": lambda: {"x": x, "y": y, "batch_size": 16, "shuffle": False},
        "elastic": lambda: {"x": elastic_dataset((x, y), 16, shuffle=False)},
        "tf.data": lambda: {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(16)},
    }[data]()
    initial, kernels = model.get_weights()[0].ravel(), []
    before = model.evaluate(x, y, batch_size=16, verbose=0)
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: kernels.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    )
    callbacks = [keep, tfdist.callbacks.ElasticTraining()]
    history = model.fit(**given, epochs=2, verbose=0, callbacks=callbacks).history
    return {
        "initial": initial,
        "before": before,
        "loss": history["loss"],
        "mae": history["mae"],
        "kernels": kernels,
        "iterations": int(model.optimizer.iterations.numpy()),
        "after": model.evaluate(x, y, batch_size=16, verbose=0)[0],
    }


def half(given: dict[str, Any]) -> dict[str, Any]:
    """mixed_float16 with loss scaling. One sample makes the gradient infinite, on the one worker that has it."""
    import keras

    strategy = None if given["plain"] else open_strategy(DEFAULTS)
    keras.utils.set_random_seed(3)
    keras.mixed_precision.set_global_policy("mixed_float16")
    x = 0.1 * np.random.RandomState(0).randn(96, 4).astype("float32")
    y = np.where(np.arange(96)[:, None] == 30, 1e30, x.sum(1, keepdims=True))
    callbacks: list[Any] = []
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    if strategy is not None:
        import tfdist.callbacks

        callbacks.append(tfdist.callbacks.ElasticTraining())
    model.fit(x, y, batch_size=12, shuffle=False, epochs=2, verbose=0, callbacks=callbacks)
    return {
        "weights": {weight.path: weight.numpy() for weight in model.weights},
        "optimizer": type(model.optimizer).__name__,
        "updates": int(model.optimizer.inner_optimizer.iterations.numpy()),
        "scale": float(model.optimizer.dynamic_scale.numpy()),
    }
