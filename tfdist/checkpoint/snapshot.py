"""The whole state of one committed step, taken without copying it and laid down in memory that is used again."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import keras_internals
from tfdist.checkpoint.layout import Slice, Spec
from tfdist.strategies.callback_state import callback_arrays, callback_facts
from tfdist.strategies.state import State, history_facts, tensor_of

TOUCHED_AT_ONCE = 1024  # pages; numpy holds the lock of Python for less of them than it could
ALIGNMENT = 4096  # bytes: what direct input and output asks of buffers
VARIABLES, CALLBACKS, GLOBAL_SEED = "variables/", "callbacks/", "global_seed"


@dataclass
class Snapshot:
    """One state; each of its arrays is let go as soon as it is copied.

    Attributes:
        step: committed steps.
        specs: of all leaves, in the same order in every process.
        values: eager tensors or arrays, one per spec; None once released.
        facts: JSON: progress, state of callbacks, History.
    """

    step: int
    specs: list[Spec]
    values: list[Any]
    facts: dict[str, Any]

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs)


def take(state: State, at_commit: bool = False) -> Snapshot:
    """The state as it is now. On CPU nothing is copied: until a value is released, the next assignment copies it.

    Args:
        at_commit: small variables (metrics, a learning rate) as they were right after the last step, since validation
            goes on.
    """
    kept = state.at_commit() if at_commit else {}
    variables = state.variables()
    names = unique([v.path for v in variables])
    pairs = [
        (VARIABLES + name, kept[id(v)] if id(v) in kept else _value(v))
        for name, v in zip(names, variables, strict=True)
    ]
    pairs += [(f"{CALLBACKS}{i}", array) for i, array in enumerate(callback_arrays(state.callbacks))]
    seed = keras_internals.global_seed_state()
    if seed is not None:
        pairs.append((GLOBAL_SEED, tensor_of(seed)))
    specs = [Spec(name, tuple(int(n) for n in value.shape), _dtype_name(value)) for name, value in pairs]
    facts = {
        "progress": state.progress.facts(),
        "callbacks": callback_facts(state.callbacks),
        "history": history_facts(state.history),
    }
    return Snapshot(state.progress.committed, specs, [value for _, value in pairs], facts)


def _value(variable: Any) -> Any:
    """The value of one replica, or what all replicas have counted together (a metric under MirroredStrategy)."""
    value = getattr(variable, "_value", None)
    spread = isinstance(value, tf.distribute.DistributedValues) and len(value.values) > 1
    if spread and variable.synchronization == "on_read":
        return tf.identity(value)
    return tensor_of(variable)


def unique(paths: Iterable[str]) -> list[str]:
    """Names of which none is there twice: the second "a" becomes "a#2"."""
    seen: Counter[str] = Counter()
    names = []
    for path in paths:
        seen[path] += 1
        names.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return names


def _dtype_name(value: Any) -> str:
    return value.dtype.name


class WarmBuffer:
    """Memory for the slices of a part, allocated once: touching 400 MB for the first time costs a second of a core."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._size = 0

    def reserve(self, slices: Sequence[Slice]) -> list[memoryview]:
        """Room for the bytes of each slice, every one aligned for direct output. It is used again by the next call."""
        offsets, size = [], 0
        for piece in slices:
            offsets.append(size)
            size += -(-piece.nbytes // ALIGNMENT) * ALIGNMENT
        if size > self._size:
            self._memory, self._size = mmap.mmap(-1, size), size  # the old one goes with its last view
        if self._memory is None:
            return [memoryview(b"") for _ in slices]
        whole = memoryview(self._memory)
        return [whole[at : at + piece.nbytes] for at, piece in zip(offsets, slices, strict=True)]


def touch(room: Sequence[memoryview]) -> None:
    """Has the system hand the memory out now. A snapshot that waits for that keeps more copies of variables alive."""
    for view in room:
        pages = np.frombuffer(view, np.uint8)[::ALIGNMENT]
        for start in range(0, len(pages), TOUCHED_AT_ONCE):
            pages[start : start + TOUCHED_AT_ONCE] = 0


def lay_down(snapshot: Snapshot, slices: Sequence[Slice], room: Sequence[memoryview]) -> None:
    """Copies the slices of one part, and lets go of the snapshot leaf by leaf.

    Called in a thread of its own, beside the training: the copies hold no lock of Python's for long.
    """
    index = {spec.name: i for i, spec in enumerate(snapshot.specs)}
    wanted: dict[int, list[tuple[Slice, memoryview]]] = {}
    for piece, view in zip(slices, room, strict=True):
        wanted.setdefault(index[piece.spec.name], []).append((piece, view))
    for number in range(len(snapshot.values)):
        value, snapshot.values[number] = snapshot.values[number], None
        for piece, view in wanted.get(number, ()):
            if not piece.nbytes:
                continue
            array = np.asarray(value, order="C")
            rows = array.reshape(1, -1) if array.ndim == 0 else array[piece.start : piece.stop]
            np.copyto(np.frombuffer(view, np.uint8), rows.reshape(-1).view(np.uint8))
