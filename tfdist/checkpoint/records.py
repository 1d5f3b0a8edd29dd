"""What a checkpoint consists of: frozen values, and how the pieces of all writers become leaves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.checkpoint.layout import Spec
from tfdist.errors import CheckpointError


@dataclass(frozen=True)
class Piece:
    """Some rows of a leaf, in a file.

    Attributes:
        part: number of the writer.
        start, stop: rows [start, stop) of axis 0; [0, 1) for rank 0.
        path: of the raw bytes (C order, little-endian), relative to the checkpoint.
        nbytes: of that file.
        checksum: xxh3_128 of the bytes, 32 hexadecimal digits.
    """

    part: int
    start: int
    stop: int
    path: str
    nbytes: int
    checksum: str


@dataclass(frozen=True)
class Leaf:
    """An array, and the pieces that make it up, in order."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def spec(self) -> Spec:
        """The array without its values."""
        return Spec(self.name, self.shape, self.dtype)


@dataclass(frozen=True)
class Manifest:
    """One checkpoint.

    Attributes:
        step: the committed step whose state it is.
        run_id: of the run that saved it.
        generation: of the roster that saved it.
        parts: how many writers there were.
        leaves: the arrays.
        facts: JSON: progress, callbacks, history. NaN and infinities are allowed.
        metric: the monitored value, by which the best is kept; None if there was none.
        versions: package -> version.
        saved_at: ISO time, for people only: nothing is decided by it.
    """

    step: int
    run_id: str
    generation: int
    parts: int
    leaves: tuple[Leaf, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    metric: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    saved_at: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(piece.nbytes for leaf in self.leaves for piece in leaf.pieces)


def assemble(specs: Sequence[Spec], written: Iterable[tuple[str, Piece]]) -> tuple[Leaf, ...]:
    """Returns the leaves, from what all writers together have written (see `write_part`).

    Raises:
        CheckpointError: a piece of an unknown leaf, or a leaf that its pieces do not cover exactly once.
    """
    pieces: dict[str, list[Piece]] = {spec.name: [] for spec in specs}
    for name, piece in written:
        if name not in pieces:
            raise CheckpointError(f"part {piece.part} holds {name!r}, which is none of the {len(pieces)} leaves.")
        pieces[name].append(piece)
    leaves = []
    for spec in specs:
        ordered = tuple(sorted(pieces[spec.name], key=lambda piece: (piece.start, piece.stop)))
        problem = uncovered(spec, ordered)
        if problem:
            raise CheckpointError(f"leaf {spec.name!r}: {problem}.")
        leaves.append(Leaf(spec.name, spec.shape, spec.dtype, ordered))
    return tuple(leaves)


def uncovered(spec: Spec, pieces: Sequence[Piece]) -> str:
    """Says why `pieces` are not every row of the array exactly once, in order; nothing if they are."""
    row = 0
    for piece in pieces:
        if piece.start != row or piece.stop < piece.start or (piece.stop == piece.start and len(pieces) > 1):
            return f"a piece has rows [{piece.start}, {piece.stop}) where row {row} is the next"
        if piece.nbytes != (piece.stop - piece.start) * spec.row_nbytes:
            return f"rows [{piece.start}, {piece.stop}) of {spec.shape} {spec.dtype} are not {piece.nbytes} bytes"
        row = piece.stop
    if not pieces or row != spec.rows:
        return f"its pieces end at row {row} of {spec.rows}" if pieces else "it has no piece"
    return ""
