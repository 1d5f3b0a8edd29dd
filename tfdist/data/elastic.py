"""What a model is trained on: a `tf.data.Dataset` to Keras, shares of global batches to a tfdist strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.data._variant import variant_of
from tfdist.data.epochs import EpochCounter
from tfdist.data.pipeline import Pipeline
from tfdist.data.plan import Plan
from tfdist.data.reader import Reader
from tfdist.data.sources import Source, as_source
from tfdist.data.structure import Structure
from tfdist.errors import ConfigError


def elastic_dataset(
    source: Source | Structure,
    global_batch_size: int,
    *,
    map_fn: Callable[..., Structure] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    drop_remainder: bool = False,
    prefetch: int = 2,
) -> ElasticDataset:
    """A data set whose global batches are the same whatever the number of workers.

    Without a tfdist strategy it is a plain `tf.data.Dataset` of the global batches, for `fit`, `evaluate` and
    `predict`; each pass over it is the next epoch. With one, every worker reads its own rows of each global batch.

    Args:
        source: nested arrays with equal first dimensions; an object with `__len__` and `__getitem__`; or a Source.
        global_batch_size: samples of one step, over all workers.
        map_fn: function of one sample, called as by `tf.data.Dataset.map`: with the parts of a tuple as arguments. If
            TensorFlow can trace it, it runs as a TensorFlow function, in parallel, where Python code (`random`,
            `print`) ran once, in tracing; if not, it is called with numpy values, and once for position 0 beforehand.
            Returns dense tensors of one shape.
        shuffle: a new order in each epoch; pass False for `predict` and wherever the order matters.
        seed: chooses the orders.
        drop_remainder: leave out a short last batch.
        prefetch: shares that are read ahead, at least 0.

    Raises:
        ConfigError: an argument or a part of the source does not fit; the message gives the remedy.
        DataError: the first sample could not be read or mapped.

    Example:
        >>> import numpy as np
        >>> dataset = elastic_dataset((np.zeros((100, 8)), np.zeros(100)), global_batch_size=32)
        >>> dataset.cardinality_steps
        4
    """
    if map_fn is not None and not callable(map_fn):
        raise ConfigError("map_fn", map_fn, "must be a function of one sample, or None")
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise ConfigError("prefetch", prefetch, "must be the number of shares to read ahead, an integer of at least 0")
    readable = as_source(source)
    plan = Plan(len(readable), global_batch_size, shuffle, seed, drop_remainder)
    return ElasticDataset(Pipeline(readable, map_fn), plan, prefetch)


def is_structure_of_specs(spec: Any) -> bool:
    """Whether `from_generator` takes it: no lists in it."""
    if isinstance(spec, dict):
        return all(map(is_structure_of_specs, spec.values()))
    if isinstance(spec, tuple):
        return all(map(is_structure_of_specs, spec))
    return isinstance(spec, tf.TypeSpec)


class ElasticDataset(tf.data.Dataset):
    """See `elastic_dataset`, which makes it.

    `map` (of batches), `prefetch` and `with_options` give an ElasticDataset again; every other transformation gives
    what tf.data makes of the global batches, which can't be divided among workers any more.

    Attributes:
        plan: which samples each step has.
        prefetch_shares: how many shares a reader holds ready.
        epochs: counts the passes over the plain form; shared with the data sets derived by `map`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        plan: Plan,
        prefetch_shares: int,
        epochs: EpochCounter | None = None,
        options: tf.data.Options | None = None,
    ) -> None:
        self.plan = plan
        self.prefetch_shares = prefetch_shares
        self.epochs = epochs or EpochCounter()
        self._pipeline = pipeline
        self._set_options = options
        self._plain = self._global_batches()
        super().__init__(variant_of(self._plain))

    @property
    def cardinality_steps(self) -> int:
        """Global steps of one epoch."""
        return self.plan.steps_per_epoch

    @property
    def batch_spec(self) -> Structure:
        """The nested structure of the type specs of a batch; the number of rows is None."""
        return self._pipeline.spec

    @property
    def element_spec(self) -> Structure:
        return self._pipeline.spec

    def reader(self) -> Reader:
        """A new reader of one member's shares. Close it after use."""
        return Reader(self.plan, self._pipeline, self.prefetch_shares)

    def map(self, map_func: Callable[..., Structure], *_: Any, **__: Any) -> tf.data.Dataset:
        """Applies a TensorFlow function to each batch (each worker's part of it). It must keep the number of rows.

        The other arguments of `tf.data.Dataset.map` are accepted and change nothing.
        """
        pipeline = self._pipeline.with_batch_map(map_func)
        # tf.distribute divides batches by such a function: then it has the plain form.
        if not is_structure_of_specs(pipeline.spec):
            return self._plain.map(map_func, *_, **__)
        return self._derived(pipeline, self._set_options)

    def prefetch(self, buffer_size: Any, name: str | None = None) -> ElasticDataset:
        """The data set itself: it reads ahead anyway, see `prefetch` of `elastic_dataset`."""
        del buffer_size, name
        return self

    def with_options(self, options: tf.data.Options, name: str | None = None) -> ElasticDataset:
        """The data set with `options` set, over those that it has."""
        del name
        merged = options if self._set_options is None else self._set_options.merge(options)
        return self._derived(self._pipeline, merged)

    def _derived(self, pipeline: Pipeline, options: tf.data.Options | None) -> ElasticDataset:
        return ElasticDataset(pipeline, self.plan, self.prefetch_shares, self.epochs, options)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._plain]

    def _global_batches(self) -> tf.data.Dataset:
        pipeline, plan, prefetch, epochs = self._pipeline, self.plan, self.prefetch_shares, self.epochs

        def one_epoch() -> Iterator[Structure]:
            epoch = epochs.next_epoch
            steps = plan.steps_per_epoch
            with Reader(plan, pipeline, prefetch) as reader:
                for step in range(steps):
                    batch = reader.get(epoch, step, 0, plan.rows(step))
                    for ahead in range(step + 1, min(step + 1 + prefetch, steps)):
                        reader.hint(epoch, ahead, 0, plan.rows(ahead))
                    if step + 1 == steps:
                        epochs.handed_out(epoch)
                    yield batch

        batches = tf.data.Dataset.from_generator(one_epoch, output_signature=pipeline.spec)
        batches = batches.apply(tf.data.experimental.assert_cardinality(plan.steps_per_epoch))
        # tf.data must not add a buffer of its own: it would take batches, and end epochs, that nobody has asked for.
        unbuffered = tf.data.Options()
        unbuffered.experimental_optimization.inject_prefetch = False
        batches = batches.with_options(unbuffered)
        return batches if self._set_options is None else batches.with_options(self._set_options)
