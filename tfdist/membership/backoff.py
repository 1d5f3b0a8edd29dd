"""Keeps a member that is removed again and again out for a while. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.tf_config import Task


@dataclass(frozen=True)
class BackOff:
    """A member that was removed `limit` times within `window` waits; each further removal doubles the wait.

    Attributes:
        limit: removals within the window that are free of a wait, plus one.
        window: seconds for which a removal counts.
        first_wait: seconds of the first wait.
        longest_wait: seconds that no wait exceeds.
        removals: times of the removals by task, on the clock of whoever keeps this.
    """

    limit: int = 3
    window: float = 600.0
    first_wait: float = 10.0
    longest_wait: float = 600.0
    removals: Mapping[Task, tuple[float, ...]] = field(default_factory=dict)

    def removed(self, task: Task, now: float) -> "BackOff":
        """Returns the state after `task` was removed at `now` (seconds)."""
        recent = (*(at for at in self.removals.get(task, ()) if now - at < self.window), now)
        kept = {**self.removals, task: recent[-64:]}
        return BackOff(self.limit, self.window, self.first_wait, self.longest_wait, kept)

    def wait(self, task: Task, now: float) -> tuple[float, str]:
        """Returns (seconds that `task` has to wait still, why); 0 and an empty reason if it may join at once."""
        recent = [at for at in self.removals.get(task, ()) if now - at < self.window]
        if len(recent) < self.limit:
            return 0.0, ""
        total = min(self.first_wait * 2.0 ** (len(recent) - self.limit), self.longest_wait)
        left = recent[-1] + total - now
        if left <= 0:
            return 0.0, ""
        return left, f"{task} was removed {len(recent)} times in {self.window:.0f} s, waits {left:.1f} s more"
