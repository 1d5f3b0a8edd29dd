"""Time stamps of committed steps: written by a worker, read by the benchmark, on one machine's monotonic clock."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import numpy as np

_RECORD = struct.Struct("<qd")
_DTYPE = np.dtype([("step", "<i8"), ("time", "<f8")])


class StampWriter:
    """Appends (committed steps, seconds) to a file; one small write each, some microseconds."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def stamp(self, step: int) -> None:
        """Says that `step` steps are committed now."""
        os.write(self._descriptor, _RECORD.pack(step, time.monotonic()))


class Stamps:
    """What one worker wrote, as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def count(self) -> int:
        """Number of complete records so far."""
        try:
            return self._path.stat().st_size // _RECORD.size
        except FileNotFoundError:
            return 0

    def read(self, since: float = 0.0) -> np.ndarray:
        """Records from `since` (monotonic seconds) on; fields `step` and `time`."""
        records = np.fromfile(self._path, _DTYPE, self.count()) if self.count() else np.zeros(0, _DTYPE)
        return records[np.searchsorted(records["time"], since) :]

    def before(self, time: float, count: int) -> np.ndarray:
        """The last `count` records before `time`."""
        records = self.read()
        return records[: np.searchsorted(records["time"], time)][-count:]
