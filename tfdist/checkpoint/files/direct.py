"""Writes the bytes of one local file: large ones past the page cache.

With O_DIRECT the kernel hands the bytes to the device without copying them to the page cache: that takes less time of
the CPU, and leaves the cache to what the training reads. It wants memory and offsets that are aligned, so the bytes
take their way through a buffer of this module, in pieces small enough to stay in the CPU's cache on the way from
there to the checksum.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from tfdist.checkpoint.files.base import Seen

LARGE = 1 << 20  # bytes from which O_DIRECT is used
ALIGNMENT = 4096  # suits every device that we know of; offsets and lengths must be multiples of it
CHUNK = 2 << 20

_O_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only
_local = threading.local()


def write_file(descriptor: int, buffers: Sequence[memoryview], seen: Seen | None) -> None:
    """Writes `buffers` one after the other to a new, empty file.

    Args:
        descriptor: open for writing; its O_DIRECT flag is changed.
        buffers: contiguous, of format "B".
        seen: called with each run of bytes, in order, before it is written.

    Raises:
        OSError: the system refuses.
    """
    large = sum(buffer.nbytes for buffer in buffers) >= LARGE and set_direct(descriptor, True)
    if not large:
        for buffer in buffers:
            for start in range(0, buffer.nbytes, CHUNK):
                _write(descriptor, buffer[start : start + CHUNK], seen)
        return
    for run in _aligned_runs(buffers):
        if run.nbytes % ALIGNMENT:
            set_direct(descriptor, False)  # the end of the file
        _write(descriptor, run, seen)


def set_direct(descriptor: int, on: bool) -> bool:
    """Turns O_DIRECT on or off; returns False where the file system does not have it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _O_DIRECT if on else flags & ~_O_DIRECT)
    except OSError:
        return False
    return bool(_O_DIRECT)


def _write(descriptor: int, run: memoryview, seen: Seen | None) -> None:
    if seen:
        seen(run)
    while run.nbytes:
        try:
            done = os.write(descriptor, run)
        except OSError as error:
            if error.errno != errno.EINVAL or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & _O_DIRECT:
                raise
            # This file system takes the flag, and refuses the write.
            set_direct(descriptor, False)
            continue
        if done < run.nbytes and done % ALIGNMENT:
            set_direct(descriptor, False)  # a short write, such as before the disk is full: the rest is not aligned
        run = run[done:]


def _aligned_runs(buffers: Sequence[memoryview]) -> Iterator[memoryview]:
    """Yields the bytes of `buffers` in runs of CHUNK bytes, the last one shorter, in a buffer that is used again."""
    filled = 0
    bounce = _bounce_buffer()
    target = np.frombuffer(bounce, np.uint8)
    for buffer in buffers:
        source = np.frombuffer(buffer, np.uint8) if buffer.nbytes else np.empty(0, np.uint8)
        start = 0
        while start < source.size:
            count = min(CHUNK - filled, source.size - start)
            np.copyto(target[filled : filled + count], source[start : start + count])  # without the GIL
            filled, start = filled + count, start + count
            if filled == CHUNK:
                yield bounce
                filled = 0
    # Two runs, so that all but the last 4 KiB go past the cache.
    whole = filled - filled % ALIGNMENT
    if whole:
        yield bounce[:whole]
    if filled > whole:
        yield bounce[whole:filled]


def _bounce_buffer() -> memoryview:
    """Returns this thread's buffer of CHUNK bytes, aligned to a page as every mapping is."""
    buffer = getattr(_local, "buffer", None)
    if buffer is None:
        # Private: a child that was forked must not write into it.
        buffer = _local.buffer = memoryview(mmap.mmap(-1, CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    return buffer
