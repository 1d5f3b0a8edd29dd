"""Decides which checkpoints to remove. Pure: no clock, no files."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tfdist.errors import ConfigError

MODES = ("min", "max")


@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints stay; checked when built. One that any of these rules keeps is kept.

    Attributes:
        max_to_keep: the newest so many stay; None: all.
        keep_every: those whose step is a multiple of it stay for ever; None: there is no such rule.
        mode: "min" or "max": the one with the lowest or highest metric stays; None: the metric does not count.
    """

    max_to_keep: int | None = 3
    keep_every: int | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        for field, value in (("max_to_keep", self.max_to_keep), ("keep_every", self.keep_every)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(field, value, "must be None or a whole number of at least 1")
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError("mode", self.mode, 'must be None, "min" or "max"')


@dataclass(frozen=True)
class Entry:
    """What counts of a complete checkpoint: its step, and the monitored value (None or NaN: it has none)."""

    step: int
    metric: float | None = None


def best(entries: Sequence[Entry], mode: str) -> Entry | None:
    """Returns the entry with the best metric, the newest of equal ones; None if none has a metric."""
    rated = [entry for entry in entries if entry.metric is not None and not math.isnan(entry.metric)]
    sign = 1.0 if mode == "max" else -1.0
    return max(rated, key=lambda entry: (sign * (entry.metric or 0.0), entry.step), default=None)


def removable(
    entries: Sequence[Entry], policy: RetentionPolicy, protected: Collection[int] = ()
) -> tuple[list[int], str]:
    """Returns (steps of the checkpoints to remove, oldest first; the reason).

    Args:
        entries: the complete checkpoints, in any order.
        policy: which of them stay.
        protected: steps that stay whatever the policy says, such as the end states of calls of ``fit``.
    """
    steps = sorted({entry.step for entry in entries})
    if not steps:
        return [], "there is no checkpoint"
    if policy.max_to_keep is None or len(steps) <= policy.max_to_keep:
        bound = "all" if policy.max_to_keep is None else f"the newest {policy.max_to_keep}"
        return [], f"{len(steps)} checkpoints, of which {bound} stay"
    keep = set(steps[-policy.max_to_keep :])
    why = [f"the newest {policy.max_to_keep}"]
    if policy.keep_every:
        keep |= {step for step in steps if step % policy.keep_every == 0}
        why.append(f"multiples of {policy.keep_every}")
    leader = best(entries, policy.mode) if policy.mode else None
    if leader:
        keep.add(leader.step)
        why.append(f"the best (step {leader.step}, {leader.metric:g})")
    held = set(protected) & set(steps)
    if held:
        keep |= held
        why.append(f"{len(held)} protected")
    remove = [step for step in steps if step not in keep]
    return remove, f"{len(steps)} checkpoints, of which {', '.join(why)} stay"
