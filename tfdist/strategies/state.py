"""The state of a model under training: which variables it has, what a failed step must put back, how it is sent."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import IncompatibleError
from tfdist.strategies.callback_state import callback_arrays, callback_facts, install_callbacks
from tfdist.strategies.progress import Progress, plain

SAMPLED_ABOVE = 64 << 20  # bytes; above, the digest looks at each variable's beginning and end only


def _optimizers(model: Any) -> list[Any]:
    import keras

    found = [getattr(model, "optimizer", None), *vars(model).values()]
    return list({id(o): o for o in found if isinstance(o, keras.optimizers.Optimizer)}.values())


def state_variables(model: Any) -> list[Any]:
    """Keras variables of the model, its optimizers and its metrics, in an order that is the same in every process."""
    variables = [*model.variables]
    for optimizer in _optimizers(model):
        variables += optimizer.variables
    variables += model.metrics_variables
    return list({id(v): v for v in variables}.values())


def tensor_of(variable: Any) -> tf.Tensor:
    """The present value without copying it: on CPU the next assignment copies on write."""
    value = getattr(variable, "_value", None)
    value = variable.value if value is None else value
    if isinstance(value, tf.distribute.DistributedValues):
        value = value.values[0]
    return tf.raw_ops.ReadVariableOp(resource=value.handle, dtype=value.dtype)


class State:
    """Variables under training: what is sent to a member that is behind, or joins."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self.callbacks: list[Any] = []
        self.history: Any = None
        self._at_commit: dict[int, tf.Tensor] = {}
        self._pending: tuple[dict[int, np.ndarray], dict[str, Any], list[np.ndarray]] | None = None
        self._small: list[Any] | None = None

    def variables(self) -> list[Any]:
        """Keras variables, or what looks like one, in the same order in every process."""
        raise NotImplementedError

    def totals(self) -> list[Any]:
        """Those of the variables that Keras resets between steps."""
        return []

    def small_variables(self) -> list[Any]:
        """What Python code around the steps sets: totals, and single numbers (a learning rate, a counter)."""
        if self._small is None:
            totals = {id(v) for v in self.totals()}
            self._small = [
                v for v in self.variables() if id(v) in totals or (math.prod(v.shape) == 1 and not v.trainable)
            ]
        return self._small

    def forget_layout(self) -> None:
        self._small = None
        self._at_commit.clear()

    def commit(self) -> None:
        """Keeps the small variables as they are at this event: callbacks may change them before the next one."""
        self._at_commit = {id(v): tensor_of(v) for v in self.small_variables()}

    def at_commit(self) -> dict[int, tf.Tensor]:
        """{id(variable): value} of the small variables at the last event, before callbacks or validation."""
        return dict(self._at_commit)

    # --- a failed step ---

    def handles(self, variables: Iterable[Any]) -> list[tuple[Any, tf.Tensor]]:
        return [(v, tensor_of(v)) for v in variables]

    @staticmethod
    def put_back(handles: list[tuple[Any, tf.Tensor]]) -> None:
        for variable, value in handles:
            variable.assign(value)

    # --- sending and receiving ---

    def _arrays(self, variables: list[Any], at_commit: bool) -> list[np.ndarray]:
        kept = self._at_commit if at_commit else {}
        return [np.asarray(kept[id(v)] if id(v) in kept else tensor_of(v), order="C") for v in variables]

    def digest(self) -> int:
        """Checksum of the state at the last event (of samples of it where it is larger than 64 MiB)."""
        crc = 0
        arrays = self._arrays(self.variables(), at_commit=True)
        sampled = sum(a.nbytes for a in arrays) > SAMPLED_ABOVE
        for array in arrays:
            data = _bytes(array)
            for part in (data[:4096], data[-4096:]) if sampled else (data,):
                crc = zlib.crc32(part, crc)
        return crc

    def outgoing(self) -> tuple[dict[str, Any], list[memoryview]]:
        """(header, buffers): the state as it is now, then the small variables as they were at the last event.

        A joiner takes the former; a member that is one event behind the latter, since its own callbacks are yet to do
        what the sender's have done since.
        """
        variables = self.variables()
        arrays = self._arrays(variables, at_commit=False)
        small = self._arrays(self.small_variables(), at_commit=True)
        extra = callback_arrays(self.callbacks)
        header = {
            "progress": self.progress.facts(),
            "variables": [[v.path, list(a.shape), a.dtype.name] for v, a in zip(variables, arrays, strict=True)],
            "small": [[list(a.shape), a.dtype.name] for a in small],
            "callbacks": callback_facts(self.callbacks),
            "arrays": [[list(a.shape), a.dtype.name] for a in extra],
            "history": history_facts(self.history),
        }
        return header, [_bytes(a) for a in [*arrays, *small, *extra]]

    def expected_bytes(self, header: dict[str, Any]) -> int:
        """Checks a header against this model; the number of bytes that follow it."""
        mine = [[v.path, list(v.shape), v.dtype] for v in self.variables()]
        theirs = header["variables"]
        for number, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if a != b:
                raise IncompatibleError(f"variable {number}", a, b)
        if len(mine) != len(theirs):
            raise IncompatibleError("number of variables", len(mine), len(theirs))
        if len(header["small"]) != len(self.small_variables()):
            raise IncompatibleError("number of small variables", len(self.small_variables()), len(header["small"]))
        specs = [[shape, dtype] for _, shape, dtype in theirs] + header["small"] + header["arrays"]
        return sum(_nbytes(shape, dtype) for shape, dtype in specs)

    def lasting(self) -> list[Any]:
        """Variables without totals, which may not have been created yet; the optimizer's are, if need be."""
        totals = {id(v) for v in self.totals()}
        return [v for v in self.variables() if id(v) not in totals]

    def expected_bytes_of_end(self, header: dict[str, Any]) -> int:
        """As `expected_bytes`, for a state of which only the lasting variables are wanted."""
        for number, (variable, theirs) in enumerate(zip(self.lasting(), header["variables"], strict=False)):
            mine = [variable.path, list(variable.shape), variable.dtype]
            if mine != theirs:
                raise IncompatibleError(f"variable {number}", mine, theirs)
        specs = [[s, d] for _, s, d in header["variables"]] + header["small"] + header["arrays"]
        return sum(_nbytes(shape, dtype) for shape, dtype in specs)

    def install_end(self, header: dict[str, Any], data: memoryview) -> None:
        """Assigns the lasting variables of a state that was received whole."""
        incoming = _unpack([[s, d] for _, s, d in header["variables"]], data)
        for variable in self.lasting():
            variable.assign(next(incoming))

    def install(self, header: dict[str, Any], data: memoryview) -> None:
        """Swaps in a state that was received whole; callbacks and History follow in `install_pending`."""
        joins = self.progress.fresh
        incoming = _unpack([[s, d] for _, s, d in header["variables"]] + header["small"] + header["arrays"], data)
        variables, smalls = self.variables(), self.small_variables()
        now = {id(v): next(incoming) for v in variables}
        at_commit = {id(v): next(incoming) for v in smalls}
        for variable in variables:
            variable.assign(now[id(variable)] if joins else at_commit.get(id(variable), now[id(variable)]))
        self.progress.adopt(header["progress"])
        self._at_commit = {i: tf.convert_to_tensor(a) for i, a in at_commit.items()}
        if joins:
            self._pending = ({id(v): now[id(v)] for v in smalls}, header, list(incoming))

    def restore(self, values: list[np.ndarray], facts: dict[str, Any], extra: list[np.ndarray]) -> None:
        """Assigns a state that was read from a checkpoint: `values` in the order of `variables()`.

        In the middle of an epoch what Keras and callbacks reset at its beginning follows in `install_pending`.
        """
        variables = self.variables()
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        self.progress.adopt(facts["progress"])
        self.commit()
        self._install_facts(facts, extra)
        if self.progress.step:
            by_id = {id(v): value for v, value in zip(variables, values, strict=True)}
            self._pending = ({id(v): by_id[id(v)] for v in self.small_variables()}, facts, extra)

    def _install_facts(self, facts: dict[str, Any], extra: list[np.ndarray]) -> None:
        install_callbacks(self.callbacks, facts["callbacks"], extra)
        if self.history is not None and facts["history"] is not None:
            self.history.epoch = list(facts["history"]["epoch"])
            self.history.history = {k: list(v) for k, v in facts["history"]["history"].items()}

    def install_pending(self) -> None:
        """At the first step of a joiner: what Keras and callbacks have reset on the way there is put in again."""
        if self._pending is None:
            return
        (small, header, extra), self._pending = self._pending, None
        for variable in self.small_variables():
            variable.assign(small[id(variable)])
        self._install_facts(header, extra)
        self.commit()


class ModelState(State):
    """The state of one Keras model."""

    def __init__(self, model: Any, progress: Progress):
        super().__init__(progress)
        self.model = model

    def variables(self) -> list[Any]:
        return state_variables(self.model)

    def totals(self) -> list[Any]:
        return self.model.metrics_variables

    def lasting(self) -> list[Any]:
        self.build_optimizer()
        return super().lasting()

    def build_optimizer(self) -> None:
        """Its variables, which otherwise the first step creates."""
        optimizer = getattr(self.model, "optimizer", None)
        if self.model.built and optimizer is not None and not optimizer.built:
            with self.model.distribute_strategy.scope():
                optimizer.build(self.model.trainable_variables)


def _bytes(array: np.ndarray) -> memoryview:
    """The array's own memory, not a copy."""
    raw: Any = array.reshape(-1).view(np.uint8)
    return memoryview(raw)


def _unpack(specs: list[list[Any]], data: memoryview) -> Iterator[np.ndarray]:
    offset = 0
    for shape, dtype in specs:
        size = _nbytes(shape, dtype)
        yield np.frombuffer(data[offset : offset + size], _dtype(dtype)).reshape(shape)
        offset += size


def history_facts(history: Any) -> dict[str, Any] | None:
    if history is None:
        return None
    return {"epoch": [int(e) for e in getattr(history, "epoch", [])], "history": plain(history.history)}


def _dtype(name: str) -> np.dtype:
    return np.dtype(tf.as_dtype(name).as_numpy_dtype)


def _nbytes(shape: list[int], dtype: str) -> int:
    return math.prod(shape) * _dtype(dtype).itemsize
