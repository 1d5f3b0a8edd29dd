"""What the processes of a LocalCluster left: exit code, return value, output, events.

A value travels as JSON and arrays in one .npz file, never as a pickle.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.launch.supervise import describe_exit

_ARRAY = "__array__"
_TREE = "tree"


@dataclasses.dataclass(frozen=True)
class ProcessResult:
    """One process.

    Args:
        task: Index of its worker.
        incarnation: 0 for the first process of the task, 1 for its first replacement.
        pid: Process id.
        code: Exit code, or minus the signal; None if it still runs.
        value: What the function returned; None if it did not return.
        output: Its standard output and error.
        events: Of this process, as tfdist.observe.read_events gives them.
    """

    task: int
    incarnation: int
    pid: int
    code: int | None
    value: Any
    output: str
    events: Sequence[dict[str, Any]]

    def __str__(self) -> str:
        end = "still runs" if self.code is None else describe_exit(self.code)
        text = "".join(f"    {line}\n" for line in self.output.splitlines())
        return f"worker {self.task}, process {self.incarnation} (pid {self.pid}) {end}; its output:\n{text}"


@dataclasses.dataclass(frozen=True)
class Results:
    """All processes, in the order they were started."""

    processes: Sequence[ProcessResult]

    def last(self, task: int) -> ProcessResult:
        """The newest process of a task. Raises KeyError if there was none."""
        for process in reversed(self.processes):
            if process.task == task:
                return process
        raise KeyError(f"no process of worker {task} was started")

    @property
    def values(self) -> dict[int, Any]:
        """By task: what its newest process returned; tasks whose newest process did not end with 0 are left out."""
        tasks = sorted({process.task for process in self.processes})
        return {task: self.last(task).value for task in tasks if self.last(task).code == 0}

    @property
    def codes(self) -> dict[int, int | None]:
        """By task: the exit code of its newest process."""
        return {process.task: process.code for process in self.processes}

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events of all processes, of one kind or all, in the order they happened."""
        found = [event for process in self.processes for event in process.events if kind in (None, event["kind"])]
        return sorted(found, key=lambda event: event["monotonic"])

    def __str__(self) -> str:
        return "\n".join(map(str, self.processes))


def save_value(value: Any, path: Path) -> None:
    """Writes a value made of dictionaries with text keys, sequences, numbers, text, None, arrays and tensors.

    Raises:
        TypeError: It holds something else.
    """
    arrays: dict[str, np.ndarray] = {}
    tree = json.dumps(_take_arrays(value, arrays)).encode()
    buffer = io.BytesIO()
    content: dict[str, Any] = {_TREE: np.frombuffer(tree, np.uint8), **arrays}
    np.savez(buffer, **content)
    temporary = path.with_suffix(".partial")
    temporary.write_bytes(buffer.getvalue())
    os.replace(temporary, path)  # a process killed while it writes leaves no result


def load_value(path: Path) -> Any:
    """Reads what `save_value` wrote. Sequences come back as lists. Unpickles nothing."""
    with np.load(path, allow_pickle=False) as file:
        return _put_arrays(json.loads(file[_TREE].tobytes()), {name: file[name] for name in file.files})


def _take_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): _take_arrays(entry, arrays) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_take_arrays(entry, arrays) for entry in value]
    if isinstance(value, np.ndarray) or hasattr(value, "numpy") or hasattr(value, "__array__"):
        array = np.asarray(value)
        if not array.dtype.hasobject:
            arrays[f"array{len(arrays)}"] = array
            return {_ARRAY: f"array{len(arrays) - 1}"}
    raise TypeError(
        f"a worker's function returned a {type(value).__name__}; return numbers, text, arrays, lists, dictionaries"
    )


def _put_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _put_arrays(entry, arrays) for key, entry in value.items()}
    if isinstance(value, list):
        return [_put_arrays(entry, arrays) for entry in value]
    return value
