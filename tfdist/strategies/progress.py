"""Where a member is in the run: what is compared when a group forms, and what a joiner is told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """Advanced by one at each event that all members take part in: a step, or a meeting between steps.

    Attributes:
        clock: number of events that this member has completed; members of one roster differ by at most one.
        committed: completed training steps of the run (tfdist's own count: a skipped update counts, too).
        call: number of the current `fit` or `evaluate` of the script, from 1.
        epoch, step: the training step that comes next in the current `fit`.
        data_pass, data_step: the same as position in the dataset (they differ with `steps_per_epoch`).
        control: requests that the last training step brought to everybody's knowledge, summed over the members.
        epoch_logs: logs of the last training step, which are those of its epoch if it was its last one.
        logs: what the last event gave: logs of a step, or answers of a meeting.
        sharded: each member computes what its shard of the dataset gives (see `strategies.sharded`).
        fresh: this process has not received the run's state yet; it is never a source.
    """

    clock: int = 0
    committed: int = 0
    call: int = 0
    epoch: int = 0
    step: int = 0
    data_pass: int = 0
    data_step: int = 0
    control: list[float] = field(default_factory=list)
    epoch_logs: Any = field(default=None)
    logs: Any = field(default=None)
    sharded: bool = False
    fresh: bool = True

    def facts(self) -> dict[str, Any]:
        """As JSON values; logs as floats."""
        return {**self.__dict__, "logs": plain(self.logs), "epoch_logs": plain(self.epoch_logs)}

    def adopt(self, facts: dict[str, Any]) -> None:
        for name in ("clock", "committed", "call", "epoch", "step", "data_pass", "data_step"):
            setattr(self, name, int(facts[name]))
        self.sharded = bool(facts["sharded"])
        self.control = [float(value) for value in facts["control"]]
        self.logs, self.epoch_logs = facts["logs"], facts["epoch_logs"]
        self.fresh = False


def plain(logs: Any) -> Any:
    """Logs (tensors, NumPy scalars, nested in dicts and lists) as JSON values."""
    if isinstance(logs, dict):
        return {str(k): plain(v) for k, v in logs.items()}
    if isinstance(logs, (list, tuple)):
        return [plain(v) for v in logs]
    if logs is None or isinstance(logs, (bool, int, float, str)):
        return logs
    return logs.numpy().tolist() if hasattr(logs, "numpy") else logs.tolist() if hasattr(logs, "tolist") else str(logs)


class Rate:
    """Samples per second over about the last second."""

    def __init__(self) -> None:
        self._since, self._rows, self._last = time.monotonic(), 0, 0.0

    def per_second(self, rows: int) -> float:
        """Counts `rows` more; the rate of the last full second."""
        self._rows += rows
        elapsed = time.monotonic() - self._since
        if elapsed >= 1.0:
            self._last = round(self._rows / elapsed, 1)
            self._since, self._rows = time.monotonic(), 0
        return self._last
