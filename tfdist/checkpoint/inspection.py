"""Compares a checkpoint on disk with its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tfdist.checkpoint import zarr
from tfdist.checkpoint.arrays import check_piece
from tfdist.checkpoint.files import Files
from tfdist.checkpoint.layout import Slice, part_name
from tfdist.checkpoint.manifest import Manifest, Piece
from tfdist.errors import CheckpointError


def wrong_sizes(files: Files, manifest: Manifest, step_dir: str) -> str:
    """Returns what is wrong with the sizes of the files of a checkpoint (one clause), or nothing. Reads no bytes."""
    sizes = files.sizes(step_dir)
    wrong = (_wrong_size(piece, sizes) for leaf in manifest.leaves for piece in leaf.pieces)
    return next((f"its file {problem}" for problem in wrong if problem), "")


def problems_of(files: Files, manifest: Manifest, step_dir: str) -> list[str]:
    """Reads every byte of a checkpoint; returns what is wrong, one sentence each."""
    buffer = memoryview(bytearray(files.chunk))
    sizes = files.sizes(step_dir)
    found = []
    for leaf in manifest.leaves:
        for piece in leaf.pieces:
            problem = _wrong_size(piece, sizes)
            if problem:
                found.append(f"{files.name(step_dir)}/{problem}.")
            else:
                found.append(check_piece(files, step_dir, piece, buffer))
    return [problem for problem in found if problem] + list(_foreign(files, manifest, step_dir))


def _wrong_size(piece: Piece, sizes: Mapping[str, int]) -> str:
    found = sizes.get(piece.path)
    if found == piece.nbytes:
        return ""
    return f"{piece.path} " + ("is missing" if found is None else f"has {found} bytes instead of {piece.nbytes}")


def _foreign(files: Files, manifest: Manifest, step_dir: str) -> Iterator[str]:
    """Yields what is wrong with the files that only Orbax and zarr read: they follow from the manifest."""
    expected: dict[str, bytes] = {}
    folders: dict[int, list[str]] = {part: [] for part in range(manifest.parts)}
    for leaf in manifest.leaves:
        for piece in leaf.pieces:
            folder = piece.path.rpartition("/")[0]
            expected[f"{folder}/{zarr.ARRAY_FILE}"] = zarr.array_file(Slice(leaf.spec, piece.start, piece.stop))
            folders[piece.part].append(folder.partition("/")[2])
    for part, names in folders.items():
        expected[f"{part_name(part)}/{zarr.TREE_FILE}"] = zarr.tree_file(names)
    for path, text in expected.items():
        name = f"{step_dir}/{path}"
        try:
            good = files.read(name, len(text)) == text
        except CheckpointError as error:
            yield f"{error} tfdist does not need this file, Orbax does."
            continue
        if not good:
            yield f"{files.name(name)} is damaged: it differs from what was written. Orbax needs it, tfdist does not."
