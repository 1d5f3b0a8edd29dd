"""State of Keras callbacks that a joiner needs: EarlyStopping's best, a plateau's patience, anything with get_state.

Only plain values and arrays travel (numbers, strings, lists of arrays); never code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Public attributes of stock callbacks that change while they train. A callback of one's own: get_state/set_state.
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best", "_current_iter", "_batches_seen_since_last_saving", "_last_batch_seen"),
}


def _attributes(callback: Any) -> tuple[str, ...]:
    for cls in type(callback).__mro__:
        if cls.__name__ in _ATTRIBUTES and cls.__module__.startswith("keras"):
            return tuple(a for a in _ATTRIBUTES[cls.__name__] if hasattr(callback, a))
    return ()


def _values(callback: Any) -> dict[str, Any]:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        return dict(callback.get_state())
    return {name: getattr(callback, name) for name in _attributes(callback)}


def _is_arrays(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (
        isinstance(value, (list, tuple)) and bool(value) and all(hasattr(v, "shape") for v in value)
    )


def callback_facts(callbacks: list[Any]) -> list[dict[str, Any]]:
    """Per callback its plain values; of values that are arrays the number of arrays."""
    facts = []
    for callback in callbacks:
        entry: dict[str, Any] = {"type": type(callback).__name__, "values": {}, "arrays": {}}
        for name, value in _values(callback).items():
            if _is_arrays(value):
                entry["arrays"][name] = -1 if isinstance(value, np.ndarray) else len(value)
            elif value is None or isinstance(value, (bool, int, float, str)):
                entry["values"][name] = value
            elif hasattr(value, "tolist"):
                entry["values"][name] = value.tolist()
            elif hasattr(value, "numpy"):
                entry["values"][name] = value.numpy().tolist()
        facts.append(entry)
    return facts


def callback_arrays(callbacks: list[Any]) -> list[np.ndarray]:
    """The arrays, in the order of `callback_facts`."""
    arrays = []
    for callback in callbacks:
        for value in _values(callback).values():
            if _is_arrays(value):
                items = [value] if isinstance(value, np.ndarray) else value
                arrays += [np.asarray(v, order="C") for v in items]
    return arrays


def install_callbacks(callbacks: list[Any], facts: list[dict[str, Any]], arrays: list[np.ndarray]) -> None:
    """Gives callbacks of the same types in the same order the state of the sender's."""
    remaining = list(arrays)
    for callback, entry in zip(callbacks, facts, strict=False):
        values = dict(entry["values"])
        for name, count in entry["arrays"].items():
            taken = [remaining.pop(0) for _ in range(abs(count))]
            values[name] = taken[0] if count < 0 else taken
        if type(callback).__name__ != entry["type"]:
            continue  # another list of callbacks on this worker: what belongs to nobody here is left out
        if hasattr(callback, "set_state"):
            callback.set_state(values)
            continue
        for name in _attributes(callback):
            if name in values:
                setattr(callback, name, values[name])
