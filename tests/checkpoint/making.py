"""Makes small checkpoints for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.checkpoint.files import Files, open_files
from tfdist.checkpoint.layout import Spec, divide, step_name
from tfdist.checkpoint.manifest import Manifest, assemble
from tfdist.checkpoint.parts import write_part
from tfdist.checkpoint.store import CheckpointStore


def arrays_of(step: int) -> dict[str, np.ndarray]:
    """A small state that differs from step to step in every array."""
    return {
        "dense/kernel": np.arange(12, dtype="float32").reshape(4, 3) + step,
        "dense/bias": np.full(3, step, "float32"),
        "optimizer/iterations": np.array(step, "int64"),
    }


def write(files: Files, step: int, arrays: Mapping[str, np.ndarray], parts: int = 1, **facts: Any) -> Manifest:
    """Writes the parts, and returns the manifest that commits them."""
    specs = [Spec(name, array.shape, array.dtype.name) for name, array in arrays.items()]
    written = []
    for part, slices in enumerate(divide(specs, parts)):
        buffers = [
            arrays[one.spec.name][one.start : one.stop] if one.spec.shape else arrays[one.spec.name] for one in slices
        ]
        written += write_part(files, step_name(step), part, slices, buffers)
    metric = facts.pop("metric", None)
    return Manifest(step, "run", 1, parts, assemble(specs, written), facts, metric, {"tfdist": "test"})


def save(directory: str | Path, step: int, arrays: Mapping[str, np.ndarray] | None = None, **options: Any) -> Manifest:
    """Saves a whole checkpoint."""
    files = open_files(directory)
    files.make_root()
    manifest = write(files, step, arrays_of(step) if arrays is None else arrays, **options)
    CheckpointStore(directory, files=files).commit(manifest, step_name(step))
    return manifest


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Says whether two states are equal, bit by bit."""
    return one.keys() == other.keys() and all(
        a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in ((one[name], other[name]) for name in one)
    )
