"""Removes checkpoints, and what crashed saves have left, so that none is ever half valid."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from tfdist.checkpoint.files import Files
from tfdist.checkpoint.layout import MANIFEST, REMOVED_MANIFEST, step_name, step_of
from tfdist.checkpoint.manifest import Manifest
from tfdist.checkpoint.retention import Entry, RetentionPolicy, removable
from tfdist.errors import CheckpointError
from tfdist.observe.events import emit
from tfdist.observe.points import reach


def entries(manifests: Sequence[Manifest]) -> list[Entry]:
    """Returns what counts of checkpoints for retention."""
    return [Entry(manifest.step, manifest.metric) for manifest in manifests]


def prune(
    files: Files, manifests: Sequence[Manifest], policy: RetentionPolicy, protected: Collection[int] = ()
) -> list[int]:
    """Removes checkpoints; only for who holds the claim.

    The manifest is renamed first: from then on nobody takes the checkpoint for a valid one. Folders without a manifest
    that are older than the newest checkpoint are what saves or removals that did not end have left, and go as well. A
    newer one may be a save that is running.

    Args:
        files: of the directory.
        manifests: of all complete checkpoints.
        policy: which of them stay.
        protected: steps that stay in any case.

    Returns:
        The steps of the complete checkpoints that were removed. What cannot be removed is told, and no error: a
        training goes on with a checkpoint too many.
    """
    steps, reason = removable(entries(manifests), policy, protected)
    removed = []
    for step in steps:
        folder = step_name(step)
        reach("checkpoint_prune", step=step, phase="begin")
        with _told(files, folder):
            files.move(f"{folder}/{MANIFEST}", f"{folder}/{REMOVED_MANIFEST}")
            removed.append(step)
            reach("checkpoint_prune", step=step, phase="renamed")
            files.remove_tree(folder)
    newest = max((manifest.step for manifest in manifests), default=0)
    for name in files.list(""):
        step_found = step_of(name)
        if step_found is not None and step_found < newest and not files.exists(f"{name}/{MANIFEST}"):
            remove_rubbish(files, name)
    if removed:
        emit("checkpoint_prune", f"removed the checkpoints of steps {removed}: {reason}", steps=removed)
    return removed


def remove_rubbish(files: Files, folder: str) -> None:
    """Removes a folder that is no valid checkpoint; that it cannot be removed is told, and no error."""
    with _told(files, folder):
        files.remove_tree(folder)


@contextmanager
def _told(files: Files, folder: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        emit("checkpoint_prune", f"{files.name(folder)} could not be removed: {error}", level=logging.WARNING)
