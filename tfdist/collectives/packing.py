"""Which tensors travel together: few large messages, but not one that is too large to overlap."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

PACK_BYTES = 16 << 20  # measured on loopback: pieces of some 16 MB concurrently beat one of 100 MB, smaller ones lose


@dataclass(frozen=True)
class Pack:
    """Indices of the tensors of one message, all of one dtype, and their sizes in elements."""

    dtype: str
    indices: tuple[int, ...]
    sizes: tuple[int, ...]

    def key(self, layout: str, number: int) -> int:
        """A key (30 bits) that is equal on all members exactly if they pack the same things the same way."""
        return zlib.crc32(f"{layout}/{number}/{self.dtype}/{sum(self.sizes)}".encode()) & ((1 << 30) - 1)


def pack(tensors: Sequence[tuple[str, int, int]], limit: int = PACK_BYTES) -> list[Pack]:
    """Groups `(dtype, elements, bytes per element)` by dtype, in order, into messages of about `limit` bytes."""
    packs: list[Pack] = []
    for dtype in dict.fromkeys(d for d, _, _ in tensors):
        indices: list[int] = []
        filled = 0
        for index, (d, elements, width) in enumerate(tensors):
            if d != dtype:
                continue
            if indices and filled + elements * width > limit:
                packs.append(Pack(dtype, tuple(indices), tuple(tensors[i][1] for i in indices)))
                indices, filled = [], 0
            indices.append(index)
            filled += elements * width
        packs.append(Pack(dtype, tuple(indices), tuple(tensors[i][1] for i in indices)))
    return packs
