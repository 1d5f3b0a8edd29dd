"""What the workers of the benchmarks run: `fit` on a multilayer perceptron that never ends, each step stamped.

With tfdist, or with TensorFlow's own strategy as the one to compare with.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stamps import StampWriter

FEATURES, CLASSES = 32, 10
STEPS_PER_EPOCH = 2000
TURN_SECONDS = 600.0  # how long a worker waits for its turn before it takes the benchmark for dead
DEFAULTS: Mapping[str, Any] = {
    "strategy": "tfdist",  # or "stock"
    "data": "elastic",  # or "tf.data"
    "layers": 4,
    "width": 256,
    "batch": 64,
    "heartbeat_timeout": None,  # seconds; None: the default
    "folder": None,  # where the stamps go
    "turns": None,  # a file with the number of steps that may be done; None: no end
}


def stamps_of(folder: Path, task: int) -> Path:
    """The file of a worker's stamps."""
    return folder / f"stamps-{task}"


def train(given: dict[str, Any]) -> None:
    """Trains until it is killed."""
    import keras
    import numpy as np

    options = {**DEFAULTS, **given}
    keras.utils.set_random_seed(7)
    strategy = _strategy(options)
    callbacks = [_watcher(options)]
    if options["strategy"] == "tfdist":
        import tfdist.callbacks

        callbacks.append(tfdist.callbacks.ElasticTraining())
    with strategy.scope():
        hidden = [keras.layers.Dense(options["width"], "relu") for _ in range(options["layers"])]
        model = keras.Sequential([keras.layers.Input((FEATURES,)), *hidden, keras.layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    x = np.random.RandomState(0).randn(STEPS_PER_EPOCH * options["batch"], FEATURES).astype("float32")
    y = x[:, :CLASSES].argmax(1)
    model.fit(**_data(x, y, options), verbose=0, callbacks=callbacks)


def _strategy(options: Mapping[str, Any]) -> Any:
    if options["strategy"] == "stock":
        return _repaired()()
    import tfdist

    timeout = options["heartbeat_timeout"]
    timing = {} if timeout is None else {"heartbeat_timeout": timeout, "heartbeat_interval": timeout / 5}
    return tfdist.ElasticMultiWorkerMirroredStrategy(membership=tfdist.MembershipOptions(**timing))


def _repaired() -> type:
    """TensorFlow's strategy with the least that the `fit` of Keras 3 needs of one for several workers."""
    import tensorflow as tf

    class Repaired(tf.distribute.MultiWorkerMirroredStrategy):
        def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
            if isinstance(value, (tuple, list, dict)):
                return tf.nest.map_structure(lambda v: self.experimental_local_results(v)[0], value)
            if self.experimental_local_results(value)[0].shape.rank == 0:
                axis = None
            return super().reduce(reduce_op, value, axis)

    return Repaired


def _data(x: Any, y: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `fit`: batches of one size, without an end."""
    if options["data"] == "elastic":
        from tfdist.data import elastic_dataset

        return {"x": elastic_dataset((x, y), options["batch"], seed=7), "epochs": 10**6}
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(options["batch"], drop_remainder=True)
    return {"x": batches.prefetch(2), "steps_per_epoch": 10**9}


def _watcher(options: Mapping[str, Any]) -> Any:
    """A callback that stamps each step, and waits for its turn where several trainings take turns."""
    import keras

    task = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    writer = StampWriter(stamps_of(Path(options["folder"]), task))

    class Watcher(keras.callbacks.Callback):
        epoch = allowed = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            step = self.epoch * STEPS_PER_EPOCH + batch + 1
            writer.stamp(step)
            if options["turns"] is not None and step >= self.allowed:
                self.allowed = _wait_for_turn(Path(options["turns"]), step)

    return Watcher()


def _wait_for_turn(turns: Path, done: int) -> int:
    """Waits until more than `done` steps are allowed; returns how many."""
    deadline = time.monotonic() + TURN_SECONDS
    while time.monotonic() < deadline:
        allowed = int(turns.read_text())
        if allowed > done:
            return allowed
        time.sleep(0.002)
    raise TimeoutError(f"no turn after step {done} in {TURN_SECONDS:.0f} s")
