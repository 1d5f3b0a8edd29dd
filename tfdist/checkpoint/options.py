"""What a user chooses about checkpoints, checked when built."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Any

from tfdist.errors import ConfigError

SaveFrequency = str | int | datetime.timedelta
MODES = ("min", "max")
BUSY = ("skip", "wait", "replace")


@dataclass(frozen=True)
class CheckpointOptions:
    """See `tfdist.callbacks.AsyncCheckpoint`, whose arguments these are.

    Raises:
        ConfigError: a value breaks its rule.
    """

    save_freq: SaveFrequency = "epoch"
    max_to_keep: int | None = 3
    keep_every: int | None = None
    monitor: str | None = None
    mode: str | None = None
    resume: bool | str | int = True
    if_busy: str = "skip"
    raise_on_failure: bool = False

    def __post_init__(self) -> None:
        self._check_save_freq()
        for name in ("max_to_keep", "keep_every"):
            value = getattr(self, name)
            if value is not None and not _whole(value, 1):
                raise ConfigError(f"AsyncCheckpoint.{name}", value, "must be None or a whole number of at least 1")
        if self.monitor is not None and (not isinstance(self.monitor, str) or not self.monitor):
            raise ConfigError("AsyncCheckpoint.monitor", self.monitor, "must be the name of a log, such as 'val_loss'")
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError("AsyncCheckpoint.mode", self.mode, f"must be one of {', '.join(MODES)}")
        if not (isinstance(self.resume, bool) or self.resume == "latest" or _whole(self.resume, 0)):
            raise ConfigError("AsyncCheckpoint.resume", self.resume, "must be True, False, 'latest' or a step")
        if self.if_busy not in BUSY:
            raise ConfigError("AsyncCheckpoint.if_busy", self.if_busy, f"must be one of {', '.join(BUSY)}")

    def _check_save_freq(self) -> None:
        value, name = self.save_freq, "AsyncCheckpoint.save_freq"
        rule = "must be 'epoch', 'auto', a number of steps of at least 1, or a datetime.timedelta above 0"
        if isinstance(value, datetime.timedelta):
            good = value.total_seconds() > 0 and math.isfinite(value.total_seconds())
        else:
            good = value in ("epoch", "auto") if isinstance(value, str) else _whole(value, 1)
        if not good:
            raise ConfigError(name, value, rule)

    @property
    def best_of(self) -> str | None:
        """ "min" or "max" of `monitor`; guessed as Keras does where `mode` is not given."""
        if self.monitor is None:
            return None
        if self.mode is not None:
            return self.mode
        return "max" if any(word in self.monitor for word in ("acc", "auc", "precision", "recall", "f1")) else "min"


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
