"""Puts a checkpoint into a model under training: every leaf checked first, then all assigned."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist import keras_internals
from tfdist.checkpoint.manifest import Leaf, Manifest
from tfdist.checkpoint.snapshot import CALLBACKS, GLOBAL_SEED, VARIABLES, unique
from tfdist.errors import IncompatibleCheckpointError
from tfdist.strategies.state import ModelState

_NUMBER = re.compile(r"_\d+(?=/|$|#)")


def alike(one: str, other: str) -> bool:
    """Whether two paths may be those of one variable.

    Keras numbers layers in the order of their creation ("dense_3"), and a model that was built in another way has other
    layers in front ("sequential/dense/kernel", "dense/kernel"); an optimizer's slot has the path in its own name.
    """
    ends = [_NUMBER.sub("", path.rpartition("/")[2]) for path in (one, other)]
    return ends[0].endswith(ends[1]) or ends[1].endswith(ends[0])


def check(state: ModelState, manifest: Manifest) -> None:
    """Compares the model's variables with the leaves of a checkpoint, in their order.

    Raises:
        IncompatibleCheckpointError: names the first leaf that differs, with both shapes.
    """
    state.build_optimizer()
    compare(state.variables(), [leaf for leaf in manifest.leaves if leaf.name.startswith(VARIABLES)], manifest.step)


def compare(variables: Sequence[Any], leaves: Sequence[Leaf], step: int) -> None:
    """See `check`."""
    mine = [(n, tuple(v.shape), v.dtype) for n, v in zip(unique(v.path for v in variables), variables, strict=True)]
    theirs = [(leaf.name.removeprefix(VARIABLES), tuple(leaf.shape), leaf.dtype) for leaf in leaves]
    where = f"the checkpoint of step {step} is of another model"
    remedy = "Train that model, or use another directory."
    for one, other in zip(mine, theirs, strict=False):
        if not alike(one[0], other[0]) or one[1:] != other[1:]:
            raise IncompatibleCheckpointError(
                f"{where}: leaf {other[0]} has shape {other[1]} ({other[2]}) there, and in its place the model has "
                f"{one[0]} with shape {one[1]} ({one[2]}). {remedy}"
            )
    if len(mine) != len(theirs):
        longer, here = (mine, "the model") if len(mine) > len(theirs) else (theirs, "the checkpoint")
        name, shape, _ = longer[min(len(mine), len(theirs))]
        raise IncompatibleCheckpointError(
            f"{where}: {here} has {name} with shape {shape}, which the other one has not ({len(mine)} leaves in the "
            f"model, {len(theirs)} in the checkpoint). {remedy}"
        )


def install(state: ModelState, manifest: Manifest, arrays: Mapping[str, np.ndarray]) -> None:
    """Gives the model, its optimizer, callbacks and History the state of a checkpoint that `check` has accepted.

    What Keras resets on the way to the first batch (metrics) is put in again there: `State.install_pending`.
    """
    values = [arrays[leaf.name] for leaf in manifest.leaves if leaf.name.startswith(VARIABLES)]
    count = sum(leaf.name.startswith(CALLBACKS) for leaf in manifest.leaves)
    state.restore(values, dict(manifest.facts), [arrays[f"{CALLBACKS}{i}"] for i in range(count)])
    if GLOBAL_SEED in arrays:
        keras_internals.make_global_seed_state().assign(arrays[GLOBAL_SEED])


def install_end(state: ModelState, manifest: Manifest, arrays: Mapping[str, np.ndarray]) -> None:
    """Model and optimizer only: the call is over, and the script goes on behind it. Metrics come last in both."""
    variables = state.lasting()
    leaves = [leaf for leaf in manifest.leaves if leaf.name.startswith(VARIABLES)][: len(variables)]
    compare(variables, leaves, manifest.step)
    for variable, leaf in zip(variables, leaves, strict=True):
        variable.assign(arrays[leaf.name])
