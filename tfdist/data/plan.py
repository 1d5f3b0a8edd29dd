"""Which samples a global step consists of: a pure function of (seed, epoch, step), the same on every worker.

Nothing here knows about workers. A worker asks for rows [start, stop) of a global batch, and the union of what the
workers ask for is the batch, whatever their number was or becomes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfdist.data.permutation import permute
from tfdist.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """The order of the samples of a training run.

    Args:
        num_samples: samples of the data set, at least 1.
        global_batch_size: samples of one global step, over all workers.
        shuffle: True gives every epoch an order of its own; False keeps the source's order.
        seed: chooses the orders; any integer.
        drop_remainder: True leaves out the samples that do not fill the last global batch (others in each epoch, if
            shuffled); False makes the last batch a short one. A data set smaller than one global batch is one short
            batch.

    Raises:
        ConfigError: no samples, a batch size below 1, or `drop_remainder` where it would leave no batch at all.

    Example:
        >>> plan = Plan(num_samples=10, global_batch_size=4, shuffle=False)
        >>> plan.steps_per_epoch, plan.rows(2)
        (3, 2)
        >>> plan.positions(epoch=0, step=1, start=1, stop=3).tolist()
        [5, 6]
    """

    num_samples: int
    global_batch_size: int
    shuffle: bool = True
    seed: int = 0
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        _integer("num_samples", self.num_samples)
        _integer("global_batch_size", self.global_batch_size)
        _integer("seed", self.seed)
        if self.num_samples < 1:
            raise ConfigError("num_samples", self.num_samples, "must be at least 1", "Look at the source: it is empty.")
        if self.global_batch_size < 1:
            raise ConfigError(
                "global_batch_size", self.global_batch_size, "must be the number of samples of one step, at least 1"
            )
        if self.drop_remainder and self.num_samples < self.global_batch_size:
            raise ConfigError(
                "drop_remainder",
                self.drop_remainder,
                f"would leave no batch, because the data set has {self.num_samples} samples and a global batch has "
                f"{self.global_batch_size}",
                f"Use drop_remainder=False or a global batch of at most {self.num_samples}.",
            )

    @property
    def steps_per_epoch(self) -> int:
        """Global steps of one epoch, at least 1."""
        if self.drop_remainder:
            return self.num_samples // self.global_batch_size
        return -(-self.num_samples // self.global_batch_size)

    def rows(self, step: int) -> int:
        """Samples of the global batch of `step` (counted from 0 in each epoch)."""
        self._check_step(step)
        return min(self.global_batch_size, self.num_samples - step * self.global_batch_size)

    def positions(self, epoch: int, step: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Source positions of rows [start, stop) of a global batch.

        Args:
            epoch: from 0.
            step: step within the epoch, from 0.
            start: first row.
            stop: row after the last one; None for the end of the batch.

        Returns:
            int64 array [stop - start], values in [0, num_samples).

        Raises:
            ValueError: there is no such epoch, step or row.
        """
        rows = self.rows(step)
        stop = rows if stop is None else stop
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        if not 0 <= start <= stop <= rows:
            raise ValueError(f"rows [{start}, {stop}) are not within the {rows} rows of step {step}")
        first = step * self.global_batch_size
        ranks = np.arange(first + start, first + stop, dtype=np.int64)
        return permute(ranks, self.num_samples, self.seed, epoch) if self.shuffle else ranks

    def _check_step(self, step: int) -> None:
        if not 0 <= step < self.steps_per_epoch:
            raise ValueError(f"step must be in [0, {self.steps_per_epoch}), got {step}")


def _integer(field: str, value: object) -> None:
    # A float such as 1e6 would pass every comparison and break the arithmetic of positions much later.
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ConfigError(field, value, f"must be an integer, not {type(value).__name__}")
