"""What users call to look at checkpoints: no model and no TensorFlow is needed."""

from __future__ import annotations

import os

import numpy as np

from tfdist.checkpoint.layout import MANIFEST, step_name
from tfdist.checkpoint.manifest import Manifest
from tfdist.checkpoint.store import CheckpointStore
from tfdist.errors import CheckpointError

Directory = str | os.PathLike[str]


def load(directory: Directory, step: int | None = None) -> tuple[Manifest, dict[str, np.ndarray]]:
    """Reads a checkpoint, and checks every byte.

    Args:
        directory: path or URL.
        step: which one; None for the newest good one.

    Returns:
        The manifest (``facts`` has the progress), and the arrays by name.

    Raises:
        CheckpointError: there is no such checkpoint.
        DamagedCheckpointError: that step, or every checkpoint, is damaged.
    """
    store = CheckpointStore(directory)
    if step is None:
        found = store.restore_newest()
        if found is None:
            raise CheckpointError(f"{store.files.root} has no complete checkpoint.")
        return found
    step_dir = step_name(step)
    if not store.files.exists(f"{step_dir}/{MANIFEST}"):
        steps = ", ".join(str(manifest.step) for manifest in store.list()) or "none"
        raise CheckpointError(f"{store.files.root} has no complete checkpoint of step {step}; it has: {steps}.")
    manifest = store.manifest(step_dir)
    return manifest, store.read(manifest, step_dir)


def list_checkpoints(directory: Directory) -> list[Manifest]:
    """Returns the manifests of the complete checkpoints, oldest first; damaged ones are left out.

    Raises:
        CheckpointError: the directory cannot be read, or a checkpoint is of another format.
    """
    return CheckpointStore(directory).list()


def verify(directory: Directory, step: int | None = None) -> list[str]:
    """Reads every byte of the checkpoint of a step, or of all.

    Returns:
        What is wrong, one sentence each, with the file; nothing if all is well.

    Raises:
        CheckpointError: there is no checkpoint of that step.
    """
    return CheckpointStore(directory).verify(step)
