"""Looks at the checkpoints in a directory, and removes old ones.

    tfdist checkpoint ls /ckpt
    tfdist checkpoint show /ckpt --step 1200
    tfdist checkpoint verify gs://bucket/run
    tfdist checkpoint export /ckpt model.keras
    tfdist checkpoint prune /ckpt --keep 2 --keep-every 1000 --dry-run

`export` writes a model for Keras alone, or with `.weights.h5` its weights; it needs a model of Keras's own layers (for
another one there is tfdist.checkpoint.export in Python). `verify` reads every byte, and ends with 1 if one is wrong.
`prune` is refused while a job writes to the directory.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tfdist import errors

if TYPE_CHECKING:
    from tfdist.checkpoint.manifest import Manifest
    from tfdist.checkpoint.store import CheckpointStore

# The modules of checkpoints are imported where they are used: `tfdist run` starts without numpy.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    for name, handler, about in (
        ("ls", _ls, "list the checkpoints"),
        ("show", _show, "say what a checkpoint holds"),
        ("verify", _verify, "read every byte and compare it with what was written"),
        ("export", _export, "write a checkpoint as .keras or .weights.h5"),
        ("prune", _prune, "remove old checkpoints"),
    ):
        action = actions.add_parser(name, help=about, description=about.capitalize() + ".")
        action.add_argument("directory", metavar="DIRECTORY", help="path or URL")
        action.set_defaults(action_handler=handler)
        if name == "export":
            action.add_argument("path", metavar="FILE", help="ends in .keras or .weights.h5")
        if name in ("show", "verify", "export"):
            default = "all" if name == "verify" else "the newest"
            action.add_argument("--step", type=int, metavar="N", help=f"of this step (default: {default})")
        if name == "prune":
            add = action.add_argument
            add("--keep", type=int, default=3, metavar="N", help="the newest N stay (default: %(default)s)")
            add("--keep-every", type=int, metavar="K", help="those whose step is a multiple of K stay")
            add("--best", choices=("min", "max"), help="the one with the lowest or highest metric stays")
            add("--dry-run", action="store_true", help="only say what would be removed")


def main(namespace: argparse.Namespace) -> int:
    """Returns the exit code."""
    from tfdist.checkpoint.store import CheckpointStore

    handler: Callable[[CheckpointStore, argparse.Namespace], int] = namespace.action_handler
    try:
        store = CheckpointStore(namespace.directory)
        if not store.files.exists(""):
            raise errors.ConfigError("DIRECTORY", namespace.directory, "does not exist")
        return handler(store, namespace)
    except errors.TfdistError as error:
        sys.stderr.write(f"tfdist checkpoint: {error}\n")
        return errors.exit_code(error)


def _ls(store: CheckpointStore, namespace: argparse.Namespace) -> int:
    from tfdist.checkpoint.layout import MANIFEST, step_of

    rows: list[tuple[str, ...]] = [("STEP", "EPOCH", "SIZE", "PARTS", "AGE", "METRIC", "")]
    names = sorted((step, name) for name in store.files.list("") if (step := step_of(name)) is not None)
    for step, name in names:
        if not store.files.exists(f"{name}/{MANIFEST}"):
            rows.append((str(step), "", "", "", "", "", "incomplete: it is being written, or its save did not end"))
            continue
        try:
            rows.append(_row(store.manifest(name)))
        except errors.CheckpointError as error:
            rows.append((str(step), "", "", "", "", "", str(error)))
    if len(rows) == 1:
        sys.stderr.write(f"tfdist checkpoint: {store.files.root} has no checkpoint\n")
        return 0
    _write_table(rows)
    return 0


def _row(manifest: Manifest) -> tuple[str, ...]:
    metric = "" if manifest.metric is None else f"{manifest.metric:.6g}"
    size, parts = _size(manifest.nbytes), str(manifest.parts)
    return str(manifest.step), _epoch(manifest), size, parts, _age(manifest.saved_at), metric, ""


def _show(store: CheckpointStore, namespace: argparse.Namespace) -> int:
    from tfdist.checkpoint.layout import MANIFEST, step_name

    if namespace.step is None:
        found = store.newest()
        if found is None:
            raise errors.CheckpointError(f"{store.files.root} has no complete checkpoint.")
        manifest, step_dir = found
    else:
        step_dir = step_name(namespace.step)
        manifest = store.manifest(step_dir)
    lines = [
        f"{store.files.name(step_dir)}: step {manifest.step} of run {manifest.run_id!r}, generation "
        f"{manifest.generation}, saved {manifest.saved_at or 'at an unknown time'} ({_age(manifest.saved_at)} ago)",
        f"{len(manifest.leaves)} arrays, {_size(manifest.nbytes)}, written in {manifest.parts} parts",
        "versions: " + (", ".join(f"{name} {version}" for name, version in manifest.versions.items()) or "unknown"),
        f"metric: {'none' if manifest.metric is None else manifest.metric}",
        *(f"{name}: {_short(value)}" for name, value in manifest.facts.items()),
    ]
    sys.stdout.write("\n".join(lines) + f"\n\nEverything else is in {store.files.name(step_dir)}/{MANIFEST}.\n\n")
    leaves = [
        (leaf.name, leaf.dtype, str(leaf.shape), _size(leaf.spec.nbytes), f"{len(leaf.pieces)}")
        for leaf in manifest.leaves
    ]
    _write_table([("ARRAY", "TYPE", "SHAPE", "SIZE", "PIECES"), *leaves])
    return 0


def _verify(store: CheckpointStore, namespace: argparse.Namespace) -> int:
    problems = store.verify(namespace.step)
    for problem in problems:
        sys.stdout.write(problem + "\n")
    good = store.list()
    if not problems and not good:
        sys.stderr.write(f"tfdist checkpoint: {store.files.root} has no complete checkpoint\n")
        return errors.EXIT_SCRIPT_FAILED
    if not problems:
        which = f"step {namespace.step}" if namespace.step is not None else f"all {len(good)} checkpoints"
        sys.stdout.write(f"{which}: every byte is what was written\n")
    return errors.EXIT_SCRIPT_FAILED if problems else errors.EXIT_DONE


def _export(store: CheckpointStore, namespace: argparse.Namespace) -> int:
    from tfdist.checkpoint.models import export

    step = export(namespace.directory, namespace.path, step=namespace.step)
    sys.stdout.write(f"{namespace.path}: the model after step {step}\n")
    return 0


def _prune(store: CheckpointStore, namespace: argparse.Namespace) -> int:
    from tfdist.checkpoint.claim import Claim
    from tfdist.checkpoint.removal import entries
    from tfdist.checkpoint.retention import RetentionPolicy, removable

    policy = RetentionPolicy(namespace.keep, namespace.keep_every, namespace.best)
    manifests = store.list()
    protected = [manifest.step for manifest in manifests if manifest.facts.get("protected")]
    steps, reason = removable(entries(manifests), policy, protected)
    if namespace.dry_run:
        sys.stdout.write(f"would remove the steps {steps}: {reason}\n")
        return 0
    with Claim(store.files, f"tfdist checkpoint prune, {os.getpid()}", "command line"):
        removed = store.prune(policy, protected)
    sys.stdout.write(f"removed the steps {removed}: {reason}\n")
    return 0


def _epoch(manifest: Manifest) -> str:
    places = [manifest.facts, *(value for value in manifest.facts.values() if isinstance(value, dict))]
    return next((str(place["epoch"]) for place in places if isinstance(place.get("epoch"), int)), "")


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB" if count < 1000 else f"{count / 1000:.4g} TB"


def _age(saved_at: str) -> str:
    try:
        then = datetime.fromisoformat(saved_at)
    except ValueError:
        return "?"
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    seconds = max(0.0, (datetime.now(UTC) - then).total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:100] + "..."


def _write_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
