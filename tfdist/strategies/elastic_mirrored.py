"""`ElasticMultiWorkerMirroredStrategy`: synchronous training whose workers may come and go."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import keras_internals, runtime
from tfdist.collectives.tensorflow_runtime import TensorFlowCollectives
from tfdist.errors import ConfigError
from tfdist.membership.options import MembershipOptions
from tfdist.strategies.calls import KerasCalls
from tfdist.strategies.ending import Ending
from tfdist.strategies.extended import ElasticExtended
from tfdist.strategies.group import ElasticGroup
from tfdist.strategies.inputs import StepInputs
from tfdist.strategies.joining import open_session, resolver_of
from tfdist.strategies.loops import Loops
from tfdist.versions import check_versions


class ElasticMultiWorkerMirroredStrategy(runtime.StrategyBase):
    """A `tf.distribute.MultiWorkerMirroredStrategy` for Keras 3 that survives lost workers.

    With `tfdist.callbacks.ElasticTraining` in `fit`, workers may be killed, freeze, join and leave; the weights are
    those of
    plain single-process training over the same global batches. Without TF_CONFIG it is a strategy for the local
    devices.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`; default: TF_CONFIG.
        communication_options: `tf.distribute.experimental.CommunicationOptions`.
        min_workers: below it the survivors wait for others, state in memory (default 1, or TFDIST_MIN_WORKERS).
        max_workers: no more are admitted (default: no bound, or TFDIST_MAX_WORKERS).
        membership: `tfdist.MembershipOptions`.
        gradient_compression: not available yet; must be None.
        communication: "auto" or "tensorflow".

    Raises:
        ConfigError: TF_CONFIG, an option or the store is wrong; the message names field, value and remedy.
        ClaimedError: another living process has the same task.
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: Any = None,
        *,
        min_workers: int | None = None,
        max_workers: int | None = None,
        membership: MembershipOptions | None = None,
        gradient_compression: Any = None,
        communication: str = "auto",
    ):
        check_versions()
        keras_internals.install()
        runtime.switch_off_coordination_service()
        connect, config = open_session(
            cluster_resolver, min_workers, max_workers, membership, gradient_compression, communication, os.environ
        )
        try:
            extended = ElasticExtended(self, resolver_of(config), communication_options or runtime.Options())
        except RuntimeError as error:  # TensorFlow: "Collective ops must be configured at program startup"
            raise ConfigError(
                "ElasticMultiWorkerMirroredStrategy",
                "created late",
                f"must come before anything that uses TensorFlow ({error})",
                "Create the strategy before the first dataset, tensor or model.",
            ) from error
        tf.distribute.Strategy.__init__(self, extended)
        devices = len(extended.worker_devices)
        self.group = ElasticGroup(
            None if connect is None else lambda: connect(devices), TensorFlowCollectives(extended), devices
        )
        self.group.evaluator = config is not None and config.is_evaluator
        self.keras_calls = KerasCalls(self.group, StepInputs(devices), Ending(self.group))
        self._loops = Loops(self.group, self.keras_calls)
        extended.attach(self.group, self.keras_calls, self._loops)

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the lowest living task: the one that writes files."""
        return self.group.is_chief

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        self._loops.enter()
        with tf.init_scope():
            self._loops.set_equal_parts()
        return super().run(self.extended.as_step(fn), args, kwargs, options)

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """As TensorFlow's, for structures, too (Keras 3 passes a whole batch), and for scalars with any `axis`."""
        if isinstance(value, (tuple, list, dict)):
            return tf.nest.map_structure(lambda v: self.experimental_local_results(v)[0], value)
        if self.extended.in_keras:
            return self.experimental_local_results(value)[0]
        if self.experimental_local_results(value)[0].shape.rank == 0:
            axis = None
        self._loops.enter()
        return super().reduce(reduce_op, value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        self._loops.enter()
        return super().gather(value, axis)

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
        self._loops.enter()
        return super().distribute_datasets_from_function(dataset_fn, options)

    def elastic_step(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Makes one step of a training loop of one's own survive lost workers.

        Args:
            fn: does one global step with this member's rows: `fn(*rows)`, usually a `tf.function` around `run`. Sums
                over replicas stay sums: divide the loss by the size of the *global* batch.

        Returns:
            A function of the global batch (tensors or nested structures of them, the same on all members), which
            gives each member its rows. After a loss the variables are put back and the step is done again by those
            who are left. It returns what `fn` does.
        """
        return self._loops.elastic_step(fn)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        self._loops.enter()
        feed = self.keras_calls.distribute(dataset)
        return super().experimental_distribute_dataset(dataset, options) if feed is None else feed
