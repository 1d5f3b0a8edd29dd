"""Training with an AsyncCheckpoint, in one process or with a strategy: what runs in the workers of these tests."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

ROWS, BATCH, STEPS = 80, 8, 10

DEFAULTS: Mapping[str, Any] = {
    "directory": None,  # None: without checkpoints
    "strategy": None,  # "elastic", "mirrored"
    "data": "arrays",  # "elastic", "tf.data", "generator", "repeated"
    "epochs": 3,
    "save": 3,  # save_freq: a number of steps, "epoch", "auto", or {"seconds": …}
    "fits": 1,
    "dropout": True,
    "steps_per_execution": 1,
    "checkpoint": {},  # further arguments of AsyncCheckpoint
    "order": "last",  # where AsyncCheckpoint stands among the callbacks
    "sizes": [8],  # of the hidden layers
    "validation": False,
    "preemptible": False,  # with a PreemptionHandler
    "twice": False,  # two AsyncCheckpoint
    "stop": None,  # set stop_training after so many batches of this process
    "pause": None,  # [step, path]: in that step, wait until the process has noticed the file
}


def train(given: Mapping[str, Any]) -> dict[str, Any]:
    """Trains as the options say, and returns all that is to be equal."""
    import keras
    import tfdist.callbacks

    options = {**DEFAULTS, **given}
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(11)
    strategy = _strategy(options["strategy"])
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = _model(options)
    batches = LogBatches()
    callbacks: list[Any] = [
        keras.callbacks.EarlyStopping("loss", patience=100),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.7, patience=1, min_delta=10.0),
        batches,
    ]
    if options["directory"]:
        save = options["save"]
        freq = datetime.timedelta(**save) if isinstance(save, dict) else save
        checkpoint = tfdist.callbacks.AsyncCheckpoint(options["directory"], freq, **options["checkpoint"])
        callbacks.insert(0 if options["order"] == "first" else len(callbacks), checkpoint)
        if options["twice"]:
            callbacks.append(tfdist.callbacks.AsyncCheckpoint(options["directory"]))
    if options["strategy"] == "elastic":
        callbacks.append(tfdist.callbacks.ElasticTraining())
    if options["preemptible"]:
        callbacks.append(tfdist.callbacks.PreemptionHandler())
    if options["stop"]:
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=_stopper(options["stop"], model)))
    if options["pause"]:
        callbacks.append(WaitForNotice(callbacks[-1], options["pause"][0]))
    calls = [_fit(model, options, callbacks) for _ in range(options["fits"])]
    return {
        "weights": {weight.path: weight.numpy() for weight in model.weights},
        "optimizer": [variable.numpy() for variable in model.optimizer.variables],
        "iterations": int(model.optimizer.iterations.numpy()),
        "calls": calls,
        "batches": batches.rows,
        "wait": callbacks[1 if options["order"] == "first" and options["directory"] else 0].wait,
    }


def _strategy(name: str | None) -> Any:
    if name is None:
        return None
    import tensorflow as tf

    import tfdist

    if name == "elastic":
        timing = tfdist.MembershipOptions(heartbeat_interval=0.2, heartbeat_timeout=1.0)
        return tfdist.ElasticMultiWorkerMirroredStrategy(membership=timing)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _model(options: Mapping[str, Any]) -> Any:
    import keras
    from keras import layers

    stack: list[Any] = [layers.Dense(size, "tanh") for size in options["sizes"]]
    if options["dropout"]:
        stack.append(layers.Dropout(0.3, seed=5))
    model = keras.Sequential([keras.Input((4,)), *stack, layers.Dense(1)])
    model.compile(
        keras.optimizers.Adam(0.01), "mse", metrics=["mae"], steps_per_execution=options["steps_per_execution"]
    )
    return model


def _data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.RandomState(0).randn(ROWS, 4)
    return x, np.tanh(x.sum(1, keepdims=True))


def _fit(model: Any, options: Mapping[str, Any], callbacks: list[Any]) -> dict[str, Any]:
    import tensorflow as tf

    import tfdist.data

    x, y = _data()
    arguments: dict[str, Any] = {"epochs": options["epochs"], "verbose": 0, "callbacks": callbacks}
    if options["validation"]:
        arguments |= {"validation_data": (x[:20], y[:20]), "validation_batch_size": BATCH}
    kind = options["data"]
    if kind == "arrays":
        arguments |= {"x": x, "y": y, "batch_size": BATCH}
    elif kind == "elastic":
        arguments["x"] = tfdist.data.elastic_dataset((x, y), BATCH, seed=3)
    elif kind == "generator":
        arguments["x"] = tf.data.Dataset.from_generator(
            lambda: iter([(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]),
            output_signature=(tf.TensorSpec((None, 4), tf.float64), tf.TensorSpec((None, 1), tf.float64)),
        )
    else:
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=9).batch(BATCH)
        arguments["x"] = dataset.repeat() if kind == "repeated" else dataset
        if kind == "repeated":
            arguments["steps_per_epoch"] = 7
    history = model.fit(**arguments)
    return {
        "epoch": list(history.epoch),
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
    }


def _callback_base() -> Any:
    import keras

    return keras.callbacks.Callback


class LogBatches(_callback_base()):  # type: ignore[misc]
    """Rows [epoch, batch] of the training batches that this process did."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[int]] = []
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rows.append([self._epoch, batch])


def _stopper(batches: int, model: Any) -> Any:
    left = [batches]

    def stop(batch: int, logs: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            model.stop_training = True

    return stop


class WaitForNotice(_callback_base()):  # type: ignore[misc]
    """Holds a step up until the handler has its notice."""

    def __init__(self, handler: Any, step: int) -> None:
        super().__init__()
        self._handler, self._step = handler, step

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        deadline = time.monotonic() + 30.0
        while batch == self._step and not self._handler.told:
            if time.monotonic() > deadline:
                raise TimeoutError("no notice in 30 s")
            time.sleep(0.01)


def restore_and_export(directory: str, target: str) -> dict[str, Any]:
    """What a model gives that was restored, and one that was exported and loaded without tfdist."""
    import keras

    import tfdist.checkpoint
    from tfdist.launch.cli import main

    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    x, _ = _data()
    model = _model(DEFAULTS)
    step = tfdist.checkpoint.restore(model, directory)
    bare = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    refused = ""
    try:
        tfdist.checkpoint.restore(keras.Sequential([keras.Input((4,)), keras.layers.Dense(7)]), directory)
    except tfdist.errors.IncompatibleCheckpointError as error:
        refused = str(error)
    codes = [main(["checkpoint", "export", directory, f"{target}{suffix}"]) for suffix in (".keras", ".weights.h5")]
    bare.load_weights(f"{target}.weights.h5")
    return {
        "step": step,
        "codes": codes,
        "refused": refused,
        "iterations": int(model.optimizer.iterations.numpy()),
        "outputs": [one.predict(x, verbose=0) for one in (model, keras.models.load_model(f"{target}.keras"), bare)],
    }
