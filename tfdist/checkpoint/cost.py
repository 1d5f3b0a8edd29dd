"""What saves cost the training, measured as it goes: the time it is held up, and steps that are slower meanwhile."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from tfdist.checkpoint.interval import Measured

STEPS = 64  # of which the usual duration is the median


class CostOfSaves:
    """Told of each step; `measured` is what `interval` decides from.

    Args:
        kept: what the checkpoint has that this job goes on from ("measured" in its facts), or nothing. Going on from a
            checkpoint means that there was a failure.
    """

    def __init__(self, kept: Mapping[str, Any] | None = None):
        self.measured = Measured() if kept is None else Measured(**kept).failed()
        self._usual: deque[float] = deque(maxlen=STEPS)
        self._last: float | None = None
        self._lost = 0.0
        self._saving = False

    def facts(self) -> dict[str, Any]:
        """For the next checkpoint."""
        return dataclasses.asdict(self.measured)

    def held_up(self, seconds: float) -> None:
        """A save has held the training thread up."""
        self._lost += seconds
        self._saving = True

    def step(self, now: float, saving: bool) -> None:
        """A step has ended.

        Args:
            now: seconds of a monotonic clock.
            saving: whether a save is being written.
        """
        last, self._last = self._last, now
        if last is None:
            return
        seconds = now - last
        self.measured = self.measured.observed(seconds)
        if saving or self._saving:
            self._lost += max(0.0, seconds - statistics.median(self._usual)) if self._usual else 0.0
        else:
            self._usual.append(seconds)
        if self._saving and not saving:
            self.measured = self.measured.saved(self._lost)
            self._lost, self._saving = 0.0, False
