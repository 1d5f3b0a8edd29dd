"""Writes one writer's part of a checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import xxhash

from tfdist.checkpoint import zarr
from tfdist.checkpoint.files import Files
from tfdist.checkpoint.layout import MANIFEST, Slice, part_name
from tfdist.checkpoint.manifest import Piece
from tfdist.checkpoint.names import folder_of
from tfdist.errors import CheckpointError, CheckpointWriteError
from tfdist.observe.points import reach


def write_part(
    files: Files, step_dir: str, part: int, slices: Sequence[Slice], buffers: Sequence[memoryview | np.ndarray]
) -> list[tuple[str, Piece]]:
    """Writes the part of one writer, durably. It becomes valid with the manifest, see `CheckpointStore.commit`.

    What an earlier save left of this part is removed first; if this one fails, what it wrote is removed. Copying,
    checksums and writing leave the GIL to others.

    Args:
        files: of the directory.
        step_dir: folder of the checkpoint, see `layout.step_name`.
        part: number of the writer, from 0.
        slices: what to write, see `layout.divide`; at most one slice of each leaf.
        buffers: the bytes of each slice (C order, little-endian), which must not change meanwhile. An array that is
            not contiguous is copied.

    Returns:
        (name of the leaf, piece) for each slice, in order.

    Raises:
        ValueError: a buffer does not have the bytes of its slice, or a leaf comes twice.
        CheckpointError: the checkpoint is complete already.
        CheckpointWriteError: the system refuses, for example because the disk is full.
    """
    names = [one.spec.name for one in slices]
    if len(set(names)) != len(names) or len(buffers) != len(slices):
        raise ValueError(f"part {part}: {len(slices)} slices of {len(set(names))} leaves, {len(buffers)} buffers")
    views = [as_bytes(buffer, one) for one, buffer in zip(slices, buffers, strict=True)]
    folder = f"{step_dir}/{part_name(part)}"
    if files.exists(f"{step_dir}/{MANIFEST}"):
        raise CheckpointError(
            f"{files.name(step_dir)} is complete: nothing can be written into it. Remove it, or go on from it."
        )
    files.remove_tree(folder)
    known = frozenset(names)
    arrays = [folder_of(name, known) for name in names]
    try:
        files.write(f"{folder}/{zarr.TREE_FILE}", [memoryview(zarr.tree_file(arrays))], durable=False)
        # The large ones first: none of them is begun when all others are written.
        order = sorted(range(len(slices)), key=lambda index: -slices[index].nbytes)
        pool = ThreadPoolExecutor(files.writers, "tfdist-checkpoint")
        try:
            write = partial(_write_slice, files, step_dir, part)
            jobs = {index: pool.submit(write, slices[index], arrays[index], views[index]) for index in order}
            pieces = [jobs[index].result() for index in range(len(slices))]
        finally:
            pool.shutdown(cancel_futures=True)
        files.sync(folder)
    except BaseException:
        # A full disk needs the bytes back. The first error is the one to tell.
        with contextlib.suppress(CheckpointWriteError):
            files.remove_tree(folder)
        raise
    return list(zip(names, pieces, strict=True))


def as_bytes(buffer: memoryview | np.ndarray, one: Slice) -> memoryview:
    """Returns the bytes of a buffer, without copying where it is contiguous.

    Raises:
        ValueError: it is not of the size or type of the slice.
    """
    if isinstance(buffer, np.ndarray) and (buffer.dtype.name != one.spec.dtype or buffer.dtype.str.startswith(">")):
        raise ValueError(f"{one.spec.name!r}: an array of {buffer.dtype.str} is no {one.spec.dtype}, little-endian")
    if buffer.nbytes != one.nbytes:
        raise ValueError(
            f"{one.spec.name!r}: rows [{one.start}, {one.stop}) of {one.spec.shape} {one.spec.dtype} are {one.nbytes} "
            f"bytes, and the buffer has {buffer.nbytes}"
        )
    if not buffer.nbytes:
        return memoryview(b"")
    if isinstance(buffer, np.ndarray):
        return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8).data
    return buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")


def _write_slice(files: Files, step_dir: str, part: int, one: Slice, array: str, view: memoryview) -> Piece:
    folder = f"{part_name(part)}/{array}"
    path = f"{folder}/{zarr.chunk_name(len(one.spec.shape))}"
    reach("checkpoint_write", step_dir=step_dir, part=part, path=path)
    checksum = xxhash.xxh3_128()
    files.write(f"{step_dir}/{path}", [view], seen=checksum.update, durable=False)
    files.write(f"{step_dir}/{folder}/{zarr.ARRAY_FILE}", [memoryview(zarr.array_file(one))], durable=False)
    return Piece(part, one.start, one.stop, path, view.nbytes, checksum.hexdigest())
