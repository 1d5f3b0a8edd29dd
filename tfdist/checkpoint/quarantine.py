"""Where damaged and partial checkpoints go: they are moved, not deleted, so that somebody can look at them."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from tfdist.checkpoint.files import Files
from tfdist.checkpoint.layout import MANIFEST, QUARANTINE
from tfdist.errors import CheckpointError, DamagedCheckpointError
from tfdist.observe.events import emit

KEEP = 3
SET_ASIDE = "manifest.set-aside.json"

_NAME = re.compile(r"([0-9]{6,9})-.+")


def put(files: Files, step_dir: str, reason: str) -> str | None:
    """Moves a checkpoint to quarantine/, and removes all but the newest three there. Tells both.

    Args:
        files: of the directory.
        step_dir: folder of the checkpoint.
        reason: what is wrong with it.

    Returns:
        Where it is now; None if it could not be moved (this is told, and no error: the caller goes on without it).
    """
    numbers = [int(match[1]) for name in files.list(QUARANTINE) if (match := _NAME.fullmatch(name))]
    target = f"{QUARANTINE}/{max(numbers, default=0) + 1:06d}-{step_dir}"
    try:
        files.move(step_dir, target)
    except CheckpointError as error:
        tell(files, step_dir, f"{reason}; it stays where it is: {error}")
        return None
    tell(files, step_dir, f"{reason}; it is now {target}")
    names = sorted((name for name in files.list(QUARANTINE) if _NAME.fullmatch(name)), key=_number)
    for name in names[:-KEEP]:
        try:
            files.remove_tree(f"{QUARANTINE}/{name}")
        except CheckpointError as error:
            emit("checkpoint_prune", f"{name} stays in quarantine: {error}", level=logging.WARNING)
    return target


def set_aside(files: Files, step_dir: str, reason: str) -> str | None:
    """As `put`, for a good checkpoint that the user does not want: later starts do not ask for it.

    Its manifest is kept under another name, by which it can be made valid again.
    """
    files.move(f"{step_dir}/{MANIFEST}", f"{step_dir}/{SET_ASIDE}")
    return put(files, step_dir, reason)


def tell(files: Files, step_dir: str, reason: str) -> None:
    """Tells that a checkpoint is not used."""
    emit(
        "checkpoint_damaged",
        f"checkpoint {files.name(step_dir)} is not used: {reason}",
        level=logging.WARNING,
        checkpoint=step_dir,
        reason=reason,
    )


def refuse_to_start_anew(files: Files, damaged: Sequence[str]) -> None:
    """Raises if there were checkpoints, where none can be used: their progress must not be lost silently.

    Args:
        files: of the directory.
        damaged: folders of checkpoints that were just found damaged.

    Raises:
        DamagedCheckpointError: `damaged` names some, or quarantine/ holds some that were complete once. What is left
            of a save that did not end is none.
    """
    kept = [f"{QUARANTINE}/{name}" for name in files.list(QUARANTINE)]
    kept = [name for name in kept if files.exists(f"{name}/{MANIFEST}")]
    names = sorted({*damaged, *kept} - {name.partition("-")[2] for name in kept})
    if names:
        raise DamagedCheckpointError(
            files.root,
            f"none of its checkpoints can be used ({', '.join(names)})",
            "`tfdist checkpoint verify` says what is wrong with one that is moved back to its place. To start anew, "
            "remove the directory or give another one.",
        )


def _number(name: str) -> int:
    return int(name.partition("-")[0])
