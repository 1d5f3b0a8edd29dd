"""Which feed a dataset gets: chosen when Keras hands it to the strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.feeds import DistributedFeed, FeedIterator, GlobalFeed, IndexedFeed, LocalBatches
from tfdist.strategies.group import ElasticGroup


class Feeding:
    """Makes feeds, and knows the one of the present `fit`."""

    def __init__(self, group: ElasticGroup):
        self._group = group
        self._training: DistributedFeed | None = None
        self._first_batch = 0
        self.steps_per_epoch: int | None = None  # as given to the present `fit`

    def distribute(self, kind: str, dataset: tf.data.Dataset) -> Any:
        """The feed of a dataset that is used for `kind` ("train", "test", "predict")."""
        if kind == "predict":
            return LocalBatches(dataset, self._group.devices)
        if hasattr(dataset, "cardinality_steps"):
            feed = DistributedFeed(IndexedFeed(dataset), dataset.epochs.next_epoch, dataset.epochs.handed_out)
        else:
            feed = DistributedFeed(GlobalFeed(dataset))
        if kind == "train" and self._training is None:
            self._training = feed
            self._group.changing = getattr(feed.feed, "paused", self._group.changing)
        return feed

    @property
    def sharded(self) -> bool:
        """Whether each member trains on data of its own: a pass ends when nobody has any more."""
        return self._training is not None and self._training.sharded is not None

    def forget(self) -> None:
        """The `fit` is over."""
        self._training, self._first_batch = None, 0

    def peek(self) -> FeedIterator:
        """An iterator over the training data of the present `fit`, to look at its first rows."""
        return iter(self._training)

    def start_where_others_are(self, steps_per_execution: int) -> None:
        """A joiner's first epoch begins in its middle, with the execution in which the others are."""
        progress = self._group.progress
        self._first_batch = progress.step - progress.step % steps_per_execution
        steps = self._training.feed.steps
        if steps is not None and progress.data_step >= steps:  # nothing of this epoch is left, but its validation
            self._training.start_at(progress.data_pass + 1, 0)
        else:
            self._training.start_at(progress.data_pass, progress.data_step)
        if progress.sharded:
            self._training.shard(self._group)

    def after_pass(self, progress: Any) -> dict[str, int]:
        """{"data_pass", "data_step"} of the next pass where an epoch has used the present one up, else nothing."""
        steps = self._training.feed.steps if self._training is not None else None
        whole = self.steps_per_epoch is None
        over = whole or (steps is not None and progress.data_step >= steps)
        return {"data_pass": progress.data_pass + 1, "data_step": 0} if over else {}

    def take_first_batch(self) -> int:
        """Number of the first batch of the epoch that begins now."""
        first, self._first_batch = self._first_batch, 0
        return first


def as_elastic(arrays: Any, batch_size: int, shuffle: Any, session: Any, call: int) -> Any | None:
    """Arrays given to `fit` as an `elastic_dataset`: exactly once, and each worker reads its own rows.

    None where they are of another kind (sparse, ragged): those Keras slices itself.
    """
    flat = tf.nest.flatten(arrays)
    if not flat or not all(isinstance(a, (np.ndarray, tf.Tensor, tf.Variable)) for a in flat):
        return None
    from tfdist.data import elastic_dataset

    return elastic_dataset(arrays, batch_size, shuffle=bool(shuffle), seed=_order_seed(session, call))


def _order_seed(session: Any, call: int) -> int:
    """The same on all members; fixed by the script's own seed where it has set one."""
    from tfdist.keras_internals import global_seed

    seed = global_seed()
    if seed is None:
        seed = 0 if session is None else session.run_seed
    return (int(seed) * 1_000_003 + call) & 0x7FFFFFFF
