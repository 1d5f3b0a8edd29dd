"""Where a step's rows come from: each feed gives any rows of the current global batch, as often as asked."""

from __future__ import annotations

import contextlib
import itertools
import logging
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow as tf

from tfdist import runtime
from tfdist.observe.events import emit
from tfdist.strategies.inputs import Part

if TYPE_CHECKING:
    from tfdist.strategies.group import ElasticGroup
    from tfdist.strategies.sharded import ShardedFeed


class Feed(Protocol):
    """One pass after the other over global batches; `position` says which batch comes next."""

    steps: int | None

    def rows(self, data_pass: int, step: int) -> int:
        """Rows of that global batch; raises StopIteration where the pass has ended."""

    def read(self, data_pass: int, step: int, start: int, stop: int) -> Any:
        """Rows [start, stop) of it, a structure of eager tensors."""

    def hint(self, data_pass: int, step: int, start: int, stop: int) -> None:
        """What will probably be read next."""


class IndexedFeed:
    """Over an `ElasticDataset`: each member reads its own rows only."""

    def __init__(self, dataset: Any):
        self.dataset, self.steps = dataset, dataset.cardinality_steps
        self.reader = dataset.reader()

    def rows(self, data_pass: int, step: int) -> int:
        if step >= self.steps:
            raise StopIteration
        return self.dataset.plan.rows(step)

    def read(self, data_pass: int, step: int, start: int, stop: int) -> Any:
        return self.reader.get(data_pass, step, start, stop)

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """While it lasts, nothing is read in the background (TensorFlow's context may change)."""
        return self.reader.paused()

    def hint(self, data_pass: int, step: int, start: int, stop: int) -> None:
        if step < self.steps:
            self.reader.hint(data_pass, step, start, stop)


class GlobalFeed:
    """Over a plain `tf.data.Dataset`: each member reads all global batches and takes its rows."""

    def __init__(self, dataset: tf.data.Dataset):
        self.dataset = dataset
        cardinality = int(dataset.cardinality())
        self.steps = cardinality if cardinality >= 0 else None
        self._iterator: Iterator[Any] | None = None
        self._at = (-1, -1)
        self._batch: Any = None

    def _seek(self, data_pass: int, step: int) -> Any:
        if self._at == (data_pass, step):
            return self._batch
        if self._iterator is None or self._at[0] != data_pass or step < self._at[1]:
            self._iterator, self._at = iter(self.dataset), (data_pass, -1)
        while self._at[1] < step:
            self._batch = next(self._iterator)  # StopIteration where the pass has ended
            self._at = (data_pass, self._at[1] + 1)
        return self._batch

    def rows(self, data_pass: int, step: int) -> int:
        return rows_of(self._seek(data_pass, step))

    def fingerprint(self, data_pass: int) -> int:
        """Checksum of the first batch of a pass: equal on all members if the dataset is deterministic."""
        crc = 0
        for value in tf.nest.flatten(self._seek(data_pass, 0), expand_composites=True):
            if value is not None:
                array = value.numpy()
                crc = zlib.crc32(repr(array.tolist()).encode() if array.dtype == object else array.tobytes(), crc)
        return crc

    def read(self, data_pass: int, step: int, start: int, stop: int) -> Any:
        return slice_rows(self._seek(data_pass, step), start, stop)

    def hint(self, data_pass: int, step: int, start: int, stop: int) -> None:
        """The pipeline reads ahead itself."""


class BatchFeed:
    """One global batch given by hand (`train_on_batch`)."""

    steps = 1

    def __init__(self, batch: Any):
        self._batch = tf.nest.map_structure(
            lambda v: v if v is None or _is_tensor(v) else tf.convert_to_tensor(v), batch
        )

    def rows(self, data_pass: int, step: int) -> int:
        return rows_of(self._batch)

    def read(self, data_pass: int, step: int, start: int, stop: int) -> Any:
        return slice_rows(self._batch, start, stop)

    def hint(self, data_pass: int, step: int, start: int, stop: int) -> None:
        """There is nothing else."""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor))


def rows_of(batch: Any) -> int:
    for value in tf.nest.flatten(batch):
        if value is None or isinstance(value, tf.experimental.Optional):
            continue
        if isinstance(value, tf.RaggedTensor):
            return int(value.nrows())
        return int(value.shape[0]) if value.shape[0] is not None else int(tf.shape(value)[0])
    raise ValueError("a batch without any tensor has no rows")


def slice_rows(batch: Any, start: int, stop: int) -> Any:
    def one(value: Any) -> Any:
        if value is None or isinstance(value, (tf.experimental.Optional, np.str_)):
            return value
        if isinstance(value, tf.SparseTensor):
            shape = tf.concat([[stop - start], value.dense_shape[1:]], 0)
            return tf.sparse.slice(value, tf.concat([[start], tf.zeros_like(value.dense_shape[1:])], 0), shape)
        return value if start == 0 and value.shape[0] == stop else value[start:stop]

    return tf.nest.map_structure(one, batch)


class FeedIterator:
    """What Keras gets as the iterator of a pass: it names the pass, the wrapped train function reads from the feed."""

    def __init__(self, source: DistributedFeed, data_pass: int, step: int = 0):
        self.source, self.feed, self.data_pass, self.step = source, source.feed, data_pass, step

    def __iter__(self) -> FeedIterator:
        return self

    def parts(self, group: ElasticGroup) -> list[Part]:
        """The rows of the next global batch that the local replicas compute.

        Raises:
            StopIteration: the pass over the data has ended.
        """
        if self.source.sharded is None and self.step == 0 and group.size > 1 and isinstance(self.feed, GlobalFeed):
            mine = self.feed.fingerprint(self.data_pass)
            answers = group.meeting("first batch", {"crc": mine})
            if len({answer["crc"] for answer in answers.values()}) > 1:
                self.source.shard(group)
        if self.source.sharded is not None:
            return self.source.sharded.parts(self.data_pass, self.step)
        return group.parts(self.feed.rows(self.data_pass, self.step))

    def __next__(self) -> Any:
        """A look at the next batch, for Keras to build a model from; it is not used up."""
        return self.feed.read(self.data_pass, self.step, 0, min(2, self.feed.rows(self.data_pass, self.step)))

    def read(self, parts: list[Part]) -> Any:
        """The rows of the local replicas; one without rows gets the batch's first, which then counts nothing."""
        if self.source.sharded is not None:
            return self.source.sharded.read(parts)
        start, stop = parts[0].start, parts[-1].stop
        mine = self.feed.read(self.data_pass, self.step, start, stop) if stop > start else None
        structures = []
        for part in parts:
            if part.stop > part.start:
                structures.append(slice_rows(mine, part.start - start, part.stop - start))
            else:
                structures.append(self.feed.read(self.data_pass, self.step, 0, min(1, part.rows)))
        return runtime.regroup(structures)

    def hint(self, parts: list[Part]) -> None:
        self.feed.hint(self.data_pass, self.step + 1, parts[0].start, parts[-1].stop)

    def advance(self) -> None:
        self.source.used(self)
        self.step += 1


class DistributedFeed:
    """What `experimental_distribute_dataset` gives Keras; each iteration is one pass."""

    def __init__(self, feed: Feed, first_pass: int = 0, ended: Callable[[int], None] | None = None):
        self.feed, self.next_pass, self._next_step, self._ended = feed, first_pass, 0, ended
        self.sharded: ShardedFeed | None = None

    def __iter__(self) -> FeedIterator:
        return FeedIterator(self, self.next_pass, self._next_step)

    def shard(self, group: ElasticGroup) -> None:
        """From now on each member computes what its shard gives: the dataset differs from process to process."""
        from tfdist.strategies.sharded import ShardedFeed

        if not isinstance(self.feed, GlobalFeed):
            return  # every other feed gives the same rows in all processes
        self.sharded = ShardedFeed(self.feed.dataset, group)
        policy = self.feed.dataset.options().experimental_distribute.auto_shard_policy.name
        group.progress.sharded = True
        emit(
            "sharded",
            "the dataset gives other batches in each process: each worker computes what TensorFlow's auto-sharding "
            f"({policy}) leaves of its own data, and a change of workers may repeat or leave out samples. Was it an "
            "unseeded shuffle? Use elastic_dataset, or give shuffle a seed. Has each worker its own data? Set "
            "AutoShardPolicy.OFF, else a part of them is not used",
            level=logging.WARNING,
        )

    def start_at(self, data_pass: int, step: int) -> None:
        """Where the next iteration begins (a joiner's first)."""
        self.next_pass, self._next_step = data_pass, step

    def used(self, iterator: FeedIterator) -> None:
        """A batch of `iterator` was used, so the next iteration is another pass (a mere look does not count)."""
        self.next_pass, self._next_step = max(self.next_pass, iterator.data_pass + 1), 0
        if self._ended is not None and self.feed.steps is not None and iterator.step + 1 >= self.feed.steps:
            self._ended(iterator.data_pass)


class LocalBatches:
    """For `predict`: every process computes all of it, without the others."""

    def __init__(self, dataset: tf.data.Dataset, replicas: int):
        self._dataset, self._replicas = dataset, replicas

    def __iter__(self) -> Iterator[Any]:
        for batch in self._dataset:
            if self._replicas == 1:
                yield batch
                continue
            rows = rows_of(batch)
            cuts = [rows * i // self._replicas for i in range(self._replicas + 1)]
            yield runtime.regroup([slice_rows(batch, a, b) for a, b in itertools.pairwise(cuts)])
