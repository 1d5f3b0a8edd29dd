"""What a save costs a training that goes on: tfdist, and what else there is, in turn in one process."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from figures import bound

from tfdist.testing import LocalCluster

TURNS = 10
STEPS = 12  # between two saves
WIDTH, LAYERS = 2048, 12  # 50 million weights with momentum: 403 MB of state


def run(events: int | None) -> dict[str, Any]:
    """Blocked seconds, all that a save costs, and seconds until durable, of each candidate; and of resuming."""
    with tempfile.TemporaryDirectory(prefix="tfdist-checkpoint-") as folder, LocalCluster(1) as cluster:
        found = cluster.run(measure, folder, events or TURNS, timeout=1500.0).values[0]
    others = [found["saves"][name] for name in found["saves"] if name not in ("tfdist", "memcpy", "nothing")]
    mine = found["saves"]["tfdist"]
    plain = found["saves"]["tf.train.Checkpoint async"]["durable"]
    return {
        **found,
        "best of the others": min(other["cost"] for other in others),
        "bounds": [
            bound("save, training thread blocked, median", mine["blocked"], 0.010, "s"),
            bound("save, all that it costs training, median", mine["cost"], 0.2, "s"),
            bound("save, until durable, as a part of tf.train.Checkpoint async", mine["durable"] / plain, 1.0, "x"),
            bound("resuming, as a part of reading the bytes", found["resume"], 1.2, "x"),
            bound("extra memory, as a part of the state", found["memory"], 1.0, "x"),
        ],
    }


def measure(folder: str, turns: int) -> dict[str, Any]:
    """In the worker: one model, one loop, all candidates in turn."""
    import keras

    keras.utils.set_random_seed(1)
    stack = [keras.layers.Dense(WIDTH, "relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *stack, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    loop = Loop(model)
    loop.steps(5)
    before = resident()
    mine = Tfdist(model, folder)
    loop.steps(20)  # as a training has done when its first save is due
    candidates = {
        "nothing": Nothing(),
        "tfdist": mine,
        "memcpy": Memcpy(model),
        "save_weights (ModelCheckpoint, BackupAndRestore)": SaveWeights(model, folder),
        "tf.train.Checkpoint async": TrainCheckpoint(model, folder),
        "orbax AsyncCheckpointer": OrbaxAsync(model, folder),
    }
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in candidates}
    for turn in range(turns + 1):
        for name, candidate in candidates.items():
            one = loop.with_save(candidate)
            if turn:  # the first one touches memory and imports
                samples[name].append(one)
            if name == "tfdist" and turn == 0:
                memory = (resident() - before) / state_bytes(model)  # no other one has allocated anything yet
    plain = statistics.median(one["loop"] for one in samples["nothing"])
    saves = {
        name: {
            "blocked": round(statistics.median(one["blocked"] for one in ones), 4),
            "cost": round(statistics.median(one["loop"] for one in ones) - plain, 4),
            "durable": round(statistics.median(one["durable"] for one in ones), 4),
        }
        for name, ones in samples.items()
    }
    resume, reading = measure_resume(model, folder)
    return {
        "megabytes": round(state_bytes(model) / 1e6, 1),
        "step": round(plain / STEPS, 4),
        "saves": saves,
        "memory": round(memory, 3),
        "resume": round(resume / reading, 3),
        "resume seconds": round(resume, 3),
        "samples": samples,
    }


class Loop:
    """Training steps, and a save at the beginning of some of them."""

    def __init__(self, model: Any):
        import tensorflow as tf

        batch = (np.ones((16, WIDTH), "float32"), np.ones((16, 1), "float32"))
        self._data = iter(tf.data.Dataset.from_tensors(batch).repeat())
        model.make_train_function()
        self._train = model.train_function

    def steps(self, count: int) -> None:
        for _ in range(count):
            float(self._train(self._data)["loss"])

    def with_save(self, candidate: Any) -> dict[str, float]:
        """Seconds: of the save call, of the whole loop, and from the call until the save was durable."""
        self.steps(1)
        done: list[float] = []
        began = time.monotonic()
        candidate.save()
        blocked = time.monotonic() - began

        def wait() -> None:
            candidate.wait()
            done.append(time.monotonic() - began)

        waiter = threading.Thread(target=wait)
        waiter.start()
        self.steps(STEPS)
        whole = time.monotonic() - began
        waiter.join(120.0)
        return {"blocked": blocked, "loop": whole, "durable": done[0]}


class Nothing:
    def save(self) -> None:
        pass

    def wait(self) -> None:
        pass


class Tfdist:
    """What `AsyncCheckpoint` does at a step boundary."""

    def __init__(self, model: Any, folder: str):
        from tfdist.checkpoint.layout import divide
        from tfdist.checkpoint.retention import RetentionPolicy
        from tfdist.checkpoint.saver import Saver
        from tfdist.checkpoint.snapshot import take
        from tfdist.checkpoint.store import CheckpointStore
        from tfdist.strategies.plain_fit import Alone
        from tfdist.strategies.progress import Progress
        from tfdist.strategies.state import ModelState

        self.store = CheckpointStore(Path(folder) / "tfdist")
        self.store.files.make_root()
        self.state = ModelState(model, Progress())
        self._team = Alone("benchmark")
        self._saver = Saver(self.store, {}, lambda manifest: self.store.prune(RetentionPolicy(2)))
        self._job: Any = None
        self._saver.prepare(divide(take(self.state).specs, 1)[0])

    def save(self) -> None:
        from tfdist.checkpoint.saver import Job
        from tfdist.checkpoint.snapshot import take

        self.state.progress.committed += 1
        snapshot = take(self.state)
        self._job = Job(snapshot, self._team)
        self._saver.submit(self._job)

    def wait(self) -> None:
        self._job.done.wait(60.0)
        if self._saver.stats.failed:
            raise RuntimeError(self._saver.stats.last_error)


class Memcpy:
    """The limit: the same bytes into memory that is warm."""

    def __init__(self, model: Any):
        self._variables = [*model.variables, *model.optimizer.variables]
        self._room = [np.empty(v.shape, v.dtype) for v in self._variables]

    def save(self) -> None:
        for variable, room in zip(self._variables, self._room, strict=True):
            np.copyto(room, np.asarray(variable.value.read_value()))

    def wait(self) -> None:
        pass


class SaveWeights:
    def __init__(self, model: Any, folder: str):
        self._model, self._path = model, Path(folder) / "latest.weights.h5"

    def save(self) -> None:
        self._model.save_weights(self._path, overwrite=True)

    def wait(self) -> None:
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())


class TrainCheckpoint:
    """Of plain variables: it refuses those of Keras 3. Copies of them are kept, outside of what is measured."""

    def __init__(self, model: Any, folder: str):
        import tensorflow as tf

        self._variables = [*model.variables, *model.optimizer.variables]
        plain = [v.value for v in self._variables]
        self._checkpoint = tf.train.Checkpoint(**{f"v{i}": v for i, v in enumerate(plain)})
        self._options = tf.train.CheckpointOptions(enable_async=True)
        self._prefix = str(Path(folder) / "tf" / "ckpt")

    def save(self) -> None:
        self._checkpoint.write(self._prefix, options=self._options)

    def wait(self) -> None:
        self._checkpoint.sync()


class OrbaxAsync:
    def __init__(self, model: Any, folder: str):
        os.environ["JAX_PLATFORMS"] = "cpu"
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self._variables = [*model.variables, *model.optimizer.variables]
        self._checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        self._folder, self._count = Path(folder) / "orbax", 0
        self._folder.mkdir()

    def save(self) -> None:
        self.wait()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder / str(self._count - 1))
        tree = {str(i): np.asarray(v.value.read_value()) for i, v in enumerate(self._variables)}
        self._checkpointer.save(self._folder / str(self._count), args=self._ocp.args.StandardSave(tree))
        self._count += 1

    def wait(self) -> None:
        self._checkpointer.wait_until_finished()


def measure_resume(model: Any, folder: str) -> tuple[float, float]:
    """Median seconds of (reading and installing the newest checkpoint, reading the bytes), the cache dropped before."""
    from tfdist.checkpoint import resuming
    from tfdist.checkpoint.store import CheckpointStore
    from tfdist.strategies.progress import Progress
    from tfdist.strategies.state import ModelState

    store, state = CheckpointStore(Path(folder) / "tfdist"), ModelState(model, Progress())
    files = [path for path in (Path(folder) / "tfdist").rglob("*") if path.is_file()]
    newest = store.newest()
    if newest is None:
        raise RuntimeError("nothing was saved")
    chunks = [path for path in files if newest[1] in str(path)]
    mine, reading = [], []
    for _ in range(6):
        drop(chunks)
        began = time.monotonic()
        found = store.restore_newest()
        resuming.install(state, *found)
        mine.append(time.monotonic() - began)
        drop(chunks)
        began = time.monotonic()
        for path in chunks:
            path.read_bytes()
        reading.append(time.monotonic() - began)
    return statistics.median(mine[1:]), statistics.median(reading[1:])


def drop(paths: list[Path]) -> None:
    """Takes files out of the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def state_bytes(model: Any) -> int:
    return sum(int(np.prod(v.shape)) * 4 for v in [*model.variables, *model.optimizer.variables])
