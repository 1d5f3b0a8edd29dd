"""Reads the arrays of a checkpoint, and checks every byte on the way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import xxhash

from tfdist.checkpoint.dtypes import numpy_dtype
from tfdist.checkpoint.files import Files
from tfdist.checkpoint.manifest import Leaf, Manifest, Piece
from tfdist.errors import CheckpointError, DamagedCheckpointError


def read_arrays(
    files: Files,
    manifest: Manifest,
    step_dir: str,
    names: Iterable[str] | None = None,
    into: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Reads arrays of a checkpoint.

    Args:
        files: of the directory.
        manifest: of the checkpoint.
        step_dir: its folder.
        names: of the leaves to read; None for all.
        into: arrays that get the values, by name: contiguous, writeable, of the same shape and type. For other leaves
            new ones are made. After an error they hold anything.

    Returns:
        {name: array}, each of the whole shape.

    Raises:
        DamagedCheckpointError: a file is missing, short, or its checksum is wrong; it is named.
        CheckpointError: the checkpoint has no leaf of that name, or `into` has an array that does not fit; or the
            system refuses to read.
    """
    leaves = {leaf.name: leaf for leaf in manifest.leaves}
    wanted = list(leaves) if names is None else list(names)
    arrays: dict[str, np.ndarray] = {}
    jobs: list[tuple[Piece, memoryview]] = []
    for name in wanted:
        if name not in leaves:
            raise CheckpointError(f"{files.name(step_dir)} has no leaf {name!r}; it has {len(leaves)} others.")
        target = into.get(name) if into else None
        array = np.empty(leaves[name].shape, numpy_dtype(leaves[name].dtype)) if target is None else target
        if target is not None:
            _check_fits(leaves[name], target)
        arrays[name] = array
        row = leaves[name].spec.row_nbytes
        view = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(bytearray())
        jobs += [(piece, view[piece.start * row : piece.stop * row]) for piece in leaves[name].pieces]
    jobs.sort(key=lambda job: -job[0].nbytes)
    threads = max(files.writers, min(4, os.cpu_count() or 1))
    pool = ThreadPoolExecutor(threads, "tfdist-restore")
    try:
        for done in [pool.submit(_read_piece, files, step_dir, piece, view) for piece, view in jobs]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
    return arrays


def check_piece(files: Files, step_dir: str, piece: Piece, buffer: memoryview) -> str:
    """Reads a piece through a small buffer; returns what is wrong with it, or nothing."""
    try:
        checksum = xxhash.xxh3_128()
        for offset in range(0, piece.nbytes, buffer.nbytes):
            run = buffer[: min(buffer.nbytes, piece.nbytes - offset)]
            files.read_into(f"{step_dir}/{piece.path}", offset, run)
            checksum.update(run)
        _compare(files, step_dir, piece, checksum.hexdigest())
    except CheckpointError as error:
        return str(error)
    return ""


def _read_piece(files: Files, step_dir: str, piece: Piece, view: memoryview) -> None:
    checksum = xxhash.xxh3_128()
    for offset in range(0, piece.nbytes, files.chunk):
        run = view[offset : offset + files.chunk]
        files.read_into(f"{step_dir}/{piece.path}", offset, run)
        checksum.update(run)  # while these bytes are in the CPU's cache
    _compare(files, step_dir, piece, checksum.hexdigest())


def _compare(files: Files, step_dir: str, piece: Piece, found: str) -> None:
    if found != piece.checksum:
        raise DamagedCheckpointError(
            files.name(f"{step_dir}/{piece.path}"), f"checksum {piece.checksum} was expected, and {found} is found"
        )


def _check_fits(leaf: Leaf, target: np.ndarray) -> None:
    good = target.shape == leaf.shape and target.dtype == numpy_dtype(leaf.dtype)
    if not good or not target.flags.c_contiguous or not target.flags.writeable:
        raise CheckpointError(
            f"leaf {leaf.name!r} is {leaf.shape} {leaf.dtype}, and cannot be read into an array {target.shape} "
            f"{target.dtype} (contiguous: {target.flags.c_contiguous}, writeable: {target.flags.writeable})."
        )
