"""When a save is due."""

from __future__ import annotations

import datetime

from tfdist.checkpoint import interval
from tfdist.checkpoint.cost import CostOfSaves
from tfdist.checkpoint.options import SaveFrequency


class Schedule:
    """Asked at each step boundary and at each end of an epoch.

    Args:
        save_freq: "epoch", a number of steps, a timedelta, or "auto".
        now: seconds of a monotonic clock.
        step: committed steps at the start; what was saved before does not count again.
        cost: of saves, as measured so far.
    """

    def __init__(self, save_freq: SaveFrequency, now: float, step: int, cost: CostOfSaves):
        self._freq = save_freq
        self._saved_at, self.saved_step = now, step
        self._cost, self._policy = cost, interval.IntervalPolicy()

    def due(self, now: float, step: int, epoch_ended: bool) -> bool:
        """Whether the state after `step` committed steps is to be saved."""
        if step <= self.saved_step:
            return False
        if self._freq == "epoch":
            return epoch_ended
        if isinstance(self._freq, int):
            return step // self._freq > self.saved_step // self._freq
        return now - self._saved_at >= self.seconds()

    def seconds(self) -> float:
        """The interval in seconds of a `save_freq` that is one."""
        if isinstance(self._freq, datetime.timedelta):
            return self._freq.total_seconds()
        return interval.interval(self._cost.measured, self._policy)[0]

    def saved(self, now: float, step: int) -> None:
        """A save of that step has begun, or was given up because another one was still going on."""
        self._saved_at, self.saved_step = now, step
