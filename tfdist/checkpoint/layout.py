"""What is called how, and who writes what: the names of folders, and the division of arrays among writers. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

from tfdist.checkpoint.dtypes import item_size

MANIFEST = "manifest.json"
REMOVED_MANIFEST = "manifest.removed.json"  # of a checkpoint that is being removed
QUARANTINE = "quarantine"
MAX_STEP = 10**15

_STEP = re.compile(r"step-([0-9]{12,16})")


@dataclass(frozen=True)
class Spec:
    """An array, without its values.

    Attributes:
        name: of the leaf, any text but none; "/" makes folders.
        shape: of the whole array.
        dtype: name of the element type, such as "float32" or "bfloat16".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def rows(self) -> int:
        """Length of axis 0; 1 for rank 0."""
        return self.shape[0] if self.shape else 1

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape[1:]) * item_size(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.rows * self.row_nbytes


@dataclass(frozen=True)
class Slice:
    """Rows [start, stop) of axis 0 of an array; an array of rank 0 is rows [0, 1)."""

    spec: Spec
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        return (self.stop - self.start) * self.spec.row_nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of these rows."""
        return (self.stop - self.start, *self.spec.shape[1:]) if self.spec.shape else ()


def divide(specs: Sequence[Spec], parts: int) -> list[list[Slice]]:
    """Divides arrays among writers, evenly by bytes.

    The arrays are laid one after the other, and cut at the rows of axis 0 that lie closest to the even cuts. So each
    part is within one row of even, and at most ``parts - 1`` arrays are cut.

    Args:
        specs: the arrays, in an order that all writers share.
        parts: how many writers, at least 1.

    Returns:
        For each part its slices, in the order of `specs`. Each row of each array is in exactly one; an array without
        bytes is in one as a whole.

    Raises:
        ValueError: `parts` is below 1.
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, got {parts}")
    offsets = [0, *accumulate(spec.nbytes for spec in specs)]
    cuts = [(0, 0), *(_cut(specs, offsets, part, parts) for part in range(1, parts)), (len(specs), 0)]
    divided: list[list[Slice]] = []
    for (first, start), (last, stop) in pairwise(cuts):
        slices = []
        for index in range(first, min(last + 1, len(specs))):
            begin = start if index == first else 0
            end = stop if index == last else specs[index].rows
            # One without rows belongs to the part that reaches beyond it.
            if begin < end or (specs[index].rows == 0 and index < last):
                slices.append(Slice(specs[index], begin, end))
        divided.append(slices)
    return divided


def _cut(specs: Sequence[Spec], offsets: Sequence[int], part: int, parts: int) -> tuple[int, int]:
    """Returns (array, row) closest to `part / parts` of all bytes; in whole numbers, so that all writers agree."""
    target = offsets[-1] * part  # in 1/parts bytes
    # The last array that begins at the target or before it. Those without bytes begin where the next one does.
    index = bisect_right(offsets, target // parts) - 1
    if index >= len(specs):
        return len(specs), 0
    row = specs[index].row_nbytes * parts
    number = (2 * (target - offsets[index] * parts) + row) // (2 * row)
    return (index, number) if number < specs[index].rows else (index + 1, 0)


def step_name(step: int) -> str:
    """Returns the folder of a checkpoint: 12 is "step-000000000012"."""
    if not 0 <= step < MAX_STEP:
        raise ValueError(f"step must be in [0, {MAX_STEP}), got {step}")
    return f"step-{step:012d}"


def step_of(name: str) -> int | None:
    """Returns the step of a checkpoint's folder; None if the name is no such folder's."""
    match = _STEP.fullmatch(name)
    step = int(match[1]) if match else None
    return step if step is not None and step < MAX_STEP and step_name(step) == name else None


def part_name(part: int) -> str:
    """Returns the folder of one writer's part within a checkpoint: 1 is "part-0001"."""
    if part < 0:
        raise ValueError(f"part must be at least 0, got {part}")
    return f"part-{part:04d}"
