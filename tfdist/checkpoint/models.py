"""Checkpoints and models outside of `fit`: restoring into one, and exporting to Keras's own files."""

from __future__ import annotations

import os
from typing import Any

import keras

from tfdist.checkpoint import resuming
from tfdist.checkpoint.layout import step_name
from tfdist.checkpoint.manifest import Manifest
from tfdist.checkpoint.snapshot import VARIABLES
from tfdist.checkpoint.store import CheckpointStore
from tfdist.errors import CheckpointError, ConfigError, IncompatibleCheckpointError
from tfdist.strategies.progress import Progress
from tfdist.strategies.state import ModelState

SUFFIXES = (".keras", ".weights.h5")
MAX_CONFIG_BYTES = 1 << 20


def facts_of_model(model: Any) -> dict[str, Any]:
    """What of a model goes beside its arrays: how many variables are its own, and its configuration if it has one."""
    facts: dict[str, Any] = {"model_variables": len({id(v) for v in model.variables})}
    try:
        config = model.to_json()
    except Exception:  # noqa: BLE001 - a model of the user's own need not have one; exporting then asks for the model
        return facts
    return facts | ({"model": config} if len(config) <= MAX_CONFIG_BYTES else {})


def find(directory: str | os.PathLike[str], step: int | None) -> tuple[CheckpointStore, Manifest]:
    """The checkpoint of a step, or the newest one.

    Raises:
        CheckpointError: there is none.
    """
    store = CheckpointStore(directory)
    if step is not None:
        return store, store.manifest(step_name(step))
    newest = store.newest()
    if newest is None:
        raise CheckpointError(f"{os.fspath(directory)} holds no complete checkpoint")
    return store, newest[0]


def restore(model: Any, directory: str | os.PathLike[str], step: int | None = None) -> int:
    """Gives a built model the weights of a checkpoint, and its optimizer its own state if it is compiled alike.

    Args:
        model: a Keras model whose variables exist.
        directory: of the checkpoints, a path or URL.
        step: which one; None: the newest complete one.

    Returns:
        The committed step whose state it is.

    Raises:
        IncompatibleCheckpointError: of another model; the first leaf that differs is named.
        DamagedCheckpointError: a checksum is wrong; the file is named.
        CheckpointError: there is no such checkpoint.
    """
    if not model.built:
        raise ConfigError("model", model.name, "must be built", "Call it on a batch of data, or give it an Input.")
    store, manifest = find(directory, step)
    leaves = [leaf for leaf in manifest.leaves if leaf.name.startswith(VARIABLES)]
    variables = ModelState(model, Progress()).lasting()
    try:
        resuming.compare(variables, leaves[: len(variables)], manifest.step)
    except IncompatibleCheckpointError:  # compiled otherwise, or not at all: the model's own variables come first
        variables = list({id(v): v for v in model.variables}.values())
        own = int(manifest.facts.get("model_variables", len(leaves)))
        resuming.compare(variables, leaves[:own], manifest.step)
    leaves = leaves[: len(variables)]
    arrays = store.read(manifest, step_name(manifest.step), [leaf.name for leaf in leaves])
    for variable, leaf in zip(variables, leaves, strict=True):
        variable.assign(arrays[leaf.name])
    return manifest.step


def export(
    directory: str | os.PathLike[str], path: str | os.PathLike[str], *, model: Any = None, step: int | None = None
) -> int:
    """Writes a checkpoint as `.keras` (with the architecture) or `.weights.h5` (the weights), for Keras alone.

    Args:
        directory: of the checkpoints.
        path: the file, which is replaced if it exists.
        model: a model of the same architecture; None: the one that the checkpoint describes, which is possible
            where it consists of Keras's own layers. Nothing that is in the checkpoint is executed.
        step: which one; None: the newest complete one.

    Returns:
        The committed step whose state it is.

    Raises:
        ConfigError: another kind of file, or the model must be given.
    """
    name = os.fspath(path)
    if not name.endswith(SUFFIXES):
        raise ConfigError("path", name, f"must end in one of {', '.join(SUFFIXES)}")
    if model is None:
        _, manifest = find(directory, step)
        model, step = _described(manifest), manifest.step
    done = restore(model, directory, step)
    if name.endswith(".keras"):
        model.save(name)
    else:
        model.save_weights(name)
    return done


def _described(manifest: Manifest) -> Any:
    config = manifest.facts.get("model")
    remedy = "Use tfdist.checkpoint.export(..., model=...) in Python."
    if not isinstance(config, str):
        raise ConfigError("model", None, "must be given: the checkpoint does not describe the architecture", remedy)
    try:
        model = keras.models.model_from_json(config)
    except Exception as error:
        raise ConfigError("model", None, f"must be given: the description can't be used ({error})", remedy) from error
    if not model.built:
        raise ConfigError("model", None, "must be given: the description has no input shape", remedy)
    return model
