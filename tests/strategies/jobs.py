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
        model, x, y, arguments = models.make(options["kind"], options["epochs"])
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


def leave_early(how: str) -> dict[str, Any]:
    """Two `fit` calls; worker 1 ends its own script with `sys.exit(0)` before the second, or in the middle of it."""
    import sys

    import keras
    import tfdist.callbacks

    strategy = open_strategy(DEFAULTS)
    keras.utils.set_random_seed(3)
    x = np.random.RandomState(0).randn(96, 4)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=[keras.metrics.F1Score()])

    class Exit(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                sys.exit(0)

    y = (x.sum(1, keepdims=True) > 0).astype("float32")
    for call in range(2):
        callbacks: list[Any] = [tfdist.callbacks.ElasticTraining()]
        if call == 1 and own_index() == 1:
            if how == "between":
                sys.exit(0)
            callbacks.append(Exit())
        model.fit(x, y, batch_size=12, epochs=1, verbose=0, callbacks=callbacks)
    return {"iterations": int(model.optimizer.iterations.numpy())}


def own_data(rows: list[int]) -> dict[str, Any]:
    """Each worker has its own rows, another number of them, and says so; an embedding counts the uses of each."""
    import keras
    import tensorflow as tf
    import tfdist.callbacks

    strategy = open_strategy(DEFAULTS)
    mine = np.arange(sum(rows[: own_index()]), sum(rows[: own_index() + 1]))[:, None]
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.from_tensor_slices((mine, np.full(mine.shape, 1e3))).batch(8).with_options(options)
    with strategy.scope():
        used = keras.layers.Embedding(sum(rows), 1, embeddings_initializer="zeros", name="used")
        model = keras.Sequential([keras.Input((1,), dtype="int32"), used, keras.layers.Flatten()])
        model.compile(keras.optimizers.SGD(1.0), keras.losses.MeanAbsoluteError(reduction="sum"))
    model.fit(dataset, epochs=2, verbose=0, callbacks=[tfdist.callbacks.ElasticTraining()])
    evaluated = model.evaluate(dataset, verbose=0)
    return {"uses": model.get_weights()[0].ravel(), "evaluated": float(evaluated)}


def distributed(kind: str) -> None:
    """What is not for `fit`."""
    import keras
    import tensorflow as tf

    strategy = open_strategy(DEFAULTS)
    data = tf.data.Dataset.from_tensor_slices((np.zeros((16, 4)), np.zeros((16, 1)))).batch(8)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    given = (
        strategy.experimental_distribute_dataset(data)
        if kind == "dataset"
        else strategy.distribute_datasets_from_function(lambda context: data)
    )
    model.fit(given, verbose=0)


def evaluator() -> dict[str, Any]:
    """TF_CONFIG of an evaluator, which is not in the cluster: a process of its own, never the chief."""
    config = json.loads(os.environ["TF_CONFIG"])
    config["task"] = {"type": "evaluator", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps(config)
    strategy = open_strategy(DEFAULTS)
    return {"chief": strategy.is_chief, "replicas": strategy.num_replicas_in_sync}


def own_loop(plain: bool) -> dict[str, Any]:
    """A training loop of one's own, with a Keras model, optimizer and metric; global batches of 12, 20 steps."""
    import keras
    import tensorflow as tf

    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(7 if plain or own_index() == 0 else 8)  # the first one's variables count
    strategy = tf.distribute.get_strategy() if plain else open_strategy(DEFAULTS)
    x, y = models._features()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        counted = tf.Variable(0, dtype=tf.int64, trainable=False)

    def replica_step(rows: Any, wanted: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(rows) - wanted) ** 2) / 12.0  # the size of the global batch
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        counted.assign_add(1)
        return loss

    @tf.function
    def step(rows: Any, wanted: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(rows, wanted)), axis=None)

    elastic = step if plain else strategy.elastic_step(step)
    losses = []
    for number in range(20):
        start = (number * 12) % 84
        losses.append(float(elastic(tf.constant(x[start : start + 12]), tf.constant(y[start : start + 12]))))
    rows = strategy.gather(tf.ones((2, 3)), axis=0) if not plain else tf.ones((2, 3))
    return {
        "weights": {weight.path: weight.numpy() for weight in model.weights},
        "losses": losses,
        "counted": int(counted.numpy()),
        "gathered": rows.shape[0],
    }


def by_hand(plain: bool) -> dict[str, Any]:
    """train_on_batch, test_on_batch, predict and predict_on_batch."""
    import keras

    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(7)
    strategy = None if plain else open_strategy(DEFAULTS)
    x, y = models._features()
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    batches = [(x[i : i + 7], y[i : i + 7]) for i in range(0, 70, 7)]
    trained = [model.train_on_batch(*batch, return_dict=True) for batch in batches]
    return {
        "trained": [{name: float(value) for name, value in logs.items()} for logs in trained],
        "tested": [float(value) for value in np.ravel(model.test_on_batch(x[:11], y[:11]))],
        "predicted": model.predict(x[:23], batch_size=5, verbose=0),
        "on_batch": np.asarray(model.predict_on_batch(x[:3])),
        "weights": {weight.path: weight.numpy() for weight in model.weights},
    }


def in_callbacks(given: dict[str, Any]) -> dict[str, Any]:
    """`evaluate` within `fit`, on all workers; and a script of several fits whose end states are not all kept."""
    import keras
    import tfdist.callbacks

    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(7)
    strategy = None if given["plain"] else open_strategy(DEFAULTS)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model, x, y, arguments = models.make("adam")
        model.compile(**arguments)
    found: list[list[float]] = []

    class Evaluate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            found.append([float(v) for v in self.model.evaluate(x[:50], y[:50], batch_size=16, verbose=0)])

    callbacks: list[Any] = [Evaluate()] if given["evaluate"] else []
    if strategy is not None:
        callbacks.append(tfdist.callbacks.ElasticTraining())
        callbacks += [WaitForMembers(strategy, int(step), members) for step, members in given["wait"].items()]
    for _ in range(given["fits"]):
        model.fit(x, y, batch_size=models.BATCH, shuffle=False, epochs=given["epochs"], verbose=0, callbacks=callbacks)
    return {
        "weights": {weight.path: weight.numpy() for weight in model.weights},
        "iterations": int(model.optimizer.iterations.numpy()),
        "found": found,
    }


def chief_evaluates(when: str) -> float | None:
    """`evaluate` on the chief only, between two fits or after the last one."""
    import keras
    import tfdist.callbacks

    strategy = open_strategy(DEFAULTS)
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model, x, y, arguments = models.make("adam")
        model.compile(**arguments)
    elastic = [tfdist.callbacks.ElasticTraining()]
    model.fit(x, y, batch_size=12, epochs=1, verbose=0, callbacks=elastic)
    result = model.evaluate(x, y, batch_size=12, verbose=0)[0] if own_index() == 0 else None
    if when == "between":
        model.fit(x, y, batch_size=12, epochs=1, verbose=0, callbacks=elastic)
    return result


def log_to_csv(path: str, wait: dict[str, int]) -> None:
    import keras
    import tfdist.callbacks

    strategy = open_strategy(DEFAULTS)
    with strategy.scope():
        model, x, y, arguments = models.make("adam")
        model.compile(**arguments)
    callbacks = [keras.callbacks.CSVLogger(path), tfdist.callbacks.ElasticTraining()]
    callbacks += [WaitForMembers(strategy, int(step), members) for step, members in wait.items()]
    model.fit(x, y, batch_size=models.BATCH, epochs=6, verbose=0, callbacks=callbacks)


def back_up(directory: str, epochs: int) -> dict[str, Any]:
    """Stock BackupAndRestore: the chief alone has the file, and all go on from it."""
    import keras
    import tfdist.callbacks

    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(7)
    strategy = open_strategy(DEFAULTS)
    with strategy.scope():
        model, x, y, arguments = models.make("adam")
        model.compile(**arguments)
    backup = keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False)
    callbacks = [backup, tfdist.callbacks.ElasticTraining()]
    history = model.fit(x, y, batch_size=models.BATCH, shuffle=False, epochs=epochs, verbose=0, callbacks=callbacks)
    weights = {weight.path: weight.numpy() for weight in model.weights}
    return {"weights": weights, "epoch": list(history.epoch), "iterations": int(model.optimizer.iterations.numpy())}


def log_to_tensorboard(folder: str) -> dict[str, Any]:
    import keras
    import tfdist.callbacks

    strategy = open_strategy(DEFAULTS)
    with strategy.scope():
        model, x, y, arguments = models.make("adam")
        model.compile(**arguments)
    board = keras.callbacks.TensorBoard(f"{folder}/worker-{own_index()}")
    callbacks = [board, tfdist.callbacks.ElasticTraining()]
    model.fit(x, y, batch_size=models.BATCH, epochs=4, verbose=0, callbacks=callbacks)
    return {"chief": strategy.is_chief}


def evaluate_in_one_callback() -> None:
    """On worker 1 only."""
    import keras
    import tfdist.callbacks

    strategy = open_strategy(DEFAULTS)
    with strategy.scope():
        model, x, y, arguments = models.make("adam")
        model.compile(**arguments)

    class Curious(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3 and own_index() == 1:
                self.model.evaluate(x, y, batch_size=16, verbose=0)

    callbacks = [Curious(), tfdist.callbacks.ElasticTraining()]
    model.fit(x, y, batch_size=12, epochs=1, verbose=0, callbacks=callbacks)


def loop_over_distributed(kind: str) -> dict[str, Any]:
    """A loop over what TensorFlow's own two ways of distributing give; the rows of all workers and their sum."""
    import tensorflow as tf

    if kind == "without TF_CONFIG":
        del os.environ["TF_CONFIG"], os.environ["TFDIST_STORE"]
    strategy = open_strategy(DEFAULTS)
    data = tf.data.Dataset.range(1, 13).map(lambda n: tf.cast(n, tf.float64)).batch(4)
    if kind != "function":
        distributed = strategy.experimental_distribute_dataset(data)
    else:

        def make(context: Any) -> tf.data.Dataset:
            own = tf.data.Dataset.range(1, 13).shard(context.num_input_pipelines, context.input_pipeline_id)
            return own.map(lambda n: tf.cast(n, tf.float64)).batch(2)

        distributed = strategy.distribute_datasets_from_function(make)
    with strategy.scope():
        total = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    @tf.function
    def step(iterator: Any) -> Any:
        def replica(rows: Any) -> Any:
            return tf.reduce_sum(rows), tf.reduce_sum(rows * rows)

        sums, squares = strategy.run(replica, args=(next(iterator),))
        return strategy.reduce("SUM", sums, axis=None), strategy.reduce("SUM", squares, axis=None)

    iterator = iter(distributed)
    found = np.zeros(2)
    for _ in range(3):
        found += np.array([float(value) for value in step(iterator)])
    total.assign(found[0])
    return {"found": found, "total": float(total.numpy())}
