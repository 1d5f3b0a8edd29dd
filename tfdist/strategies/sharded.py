"""A feed for datasets that give other batches in each process (an unseeded shuffle): TensorFlow's own sharding.

Each member computes what its part of the dataset gives, batches of whatever size, and the averages are exact over
what was
read. But which samples those are after a change of the roster is up to TensorFlow: exactly-once does not hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist import runtime
from tfdist.strategies.feeds import rows_of, slice_rows
from tfdist.strategies.group import ElasticGroup
from tfdist.strategies.inputs import Part


class ShardedFeed:
    """One member's shard, made anew when the roster has changed."""

    def __init__(self, dataset: tf.data.Dataset, group: ElasticGroup):
        self.dataset, self._group = dataset, group
        cardinality = int(dataset.cardinality())
        self.steps = cardinality if cardinality >= 0 else None
        self._iterator: Iterator[Any] | None = None
        self._of: tuple[int, int] = (-1, -1)  # generation and pass of the iterator
        self._at = -1
        self._batch: Any = None
        self._rows = 0

    def parts(self, data_pass: int, step: int) -> list[Part]:
        """This member's next batch, and where its rows lie among those that all members have.

        Raises:
            StopIteration: nobody has any more.
        """
        self._seek(data_pass, step)
        answers = self._group.meeting("rows", {"rows": self._rows})
        counts = {task: answer["rows"] for task, answer in answers.items()}
        total = sum(counts.values())
        if total == 0:
            raise StopIteration
        me = str(self._group.session.me.task)
        start = sum(counts[str(task)] for task in self._group.roster.tasks if str(task) < me)
        cuts = [start + self._rows * i // self._group.devices for i in range(self._group.devices + 1)]
        return [Part(a, b, total) for a, b in itertools.pairwise(cuts)]

    def read(self, parts: list[Part]) -> Any:
        first = parts[0].start
        pieces = []
        for part in parts:
            a, b = part.start - first, part.stop - first
            pieces.append(slice_rows(self._batch, a, b) if b > a else slice_rows(self._batch, 0, 1))
        return runtime.regroup(pieces)

    def _seek(self, data_pass: int, step: int) -> None:
        if self._of != (self._group.generation, data_pass):
            shard = runtime.shard(self.dataset, self._group.size, self._group.rank)
            self._iterator, self._of, self._at = iter(shard), (self._group.generation, data_pass), -1
        while self._at < step:
            batch = next(self._iterator, None)
            self._at += 1
            self._rows = 0 if batch is None else rows_of(batch)
            if batch is not None:  # one who has run dry keeps its last batch, to take part with nothing of it
                self._batch = batch
        if self._batch is None:
            self._batch = next(iter(self.dataset))
