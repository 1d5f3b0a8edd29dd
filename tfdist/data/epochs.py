"""Which epoch the next pass over a plain `tf.data` form is."""

from __future__ import annotations

import threading


class EpochCounter:
    """Counts an epoch when its last batch is handed out.

    So an iterator that is given up after some batches (Keras takes one to build a model) does not use an epoch up. In a
    data set of one step, the first batch is the last: there a peek does count, and the next pass has another order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    @property
    def next_epoch(self) -> int:
        """The epoch that the next pass will be, from 0."""
        return self._next

    def start_at(self, epoch: int) -> None:
        """The next pass is that epoch: training goes on from a checkpoint."""
        with self._lock:
            self._next = epoch

    def handed_out(self, epoch: int) -> None:
        """The last batch of `epoch` was handed out. Two iterators over one epoch count it once."""
        with self._lock:
            self._next = max(self._next, epoch + 1)
