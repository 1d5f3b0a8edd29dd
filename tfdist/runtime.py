"""The only file that touches private TensorFlow API (`tensorflow.python.*`).

Every function says what it relies on; `tests/test_runtime.py` fails clearly on a TensorFlow where that changed.
Measured on TensorFlow 2.21.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import cluster_pb2, config_pb2, tensorflow_server_pb2
from tensorflow.python.autograph.core import ag_ctx as autograph_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.data.experimental.ops import distribute as data_distribute
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    collective_util,
    cross_device_ops,
    cross_device_utils,
    distribute_utils,
    mirrored_strategy,
    values_util,
)
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import collective_ops

Options: Any = collective_util.Options
StrategyBase = collective_all_reduce_strategy.CollectiveAllReduceStrategy
FIRST_GENERATION_KEY = 1 << 10  # group keys below are those of local groups
FIRST_LAYOUT_KEY = 1 << 30  # instance keys below are counted per generation, those above name a layout


class Group:
    """The collective group of this process: size and key, read by compiled steps when they run.

    Collective kernels take group size and key as tensors. Held in one int32 variable on the host, they may change
    between two executions of a compiled step without retracing it.
    """

    _local_keys = itertools.count(1)  # until a group is formed: no two groups of a process share a key

    def __init__(self, size: int):
        self.size, self.key = size, next(Group._local_keys)
        with tf.init_scope(), tf.device("CPU:0"):
            self._variable = tf.Variable([self.size, self.key], dtype=tf.int32, trainable=False, name="tfdist_group")
        self._instances: dict[str, int] = {}

    def become(self, size: int, key: int) -> None:
        self.size, self.key = size, key
        self._variable.assign([size, key])
        self._instances.clear()

    def next_instance(self, device: str) -> int:
        """Counted per device, so that the n-th operation of each is one collective."""
        self._instances[device] = self._instances.get(device, 0) + 1
        return self._instances[device]

    def tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
        """(group size, group key) as int32 scalars on the host."""
        with tf.device("CPU:0"):
            size, key = tf.unstack(self._variable.read_value())
        return size, key


class Launcher(cross_device_utils.CollectiveReplicaLauncher):
    """TensorFlow's launcher of collectives on one device, for a group that changes while compiled steps live.

    Relies on `CollectiveReplicaLauncher` reading `_group_key` and `_group_size` at each launch.
    """

    def __init__(self, group: Group, device: str, options: Any):
        self.group = group
        super().__init__(0, 0, None, device, options)

    @property
    def _group_size(self) -> tf.Tensor:
        return self.group.tensors()[0]

    @_group_size.setter
    def _group_size(self, _: int) -> None:
        """The base class's constructor sets it; ours comes from the group."""

    @property
    def _group_key(self) -> tf.Tensor:
        return self.group.tensors()[1]

    @_group_key.setter
    def _group_key(self, _: int) -> None:
        """As for `_group_size`."""

    def _next_instance_key(self) -> tf.Tensor:
        """As TensorFlow's, but counted per generation (its own counts per static group key)."""
        graph = ops.get_default_graph()
        while getattr(graph, "is_control_flow_graph", False):
            graph = graph.outer_graph
        if not context.executing_eagerly() and graph.building_function:
            with graph.as_default():
                return graph.capture_call_time_value(self._next_instance_key, tf.TensorSpec([], tf.int32))
        with ops.device("CPU:0"):
            return tf.constant(self.group.next_instance(self._device), tf.int32)

    def all_reduce_layout(self, value: tf.Tensor, instance_key: int) -> tf.Tensor:
        """All-reduce (sum) under a fixed instance key: no resolution round trip after the first execution.

        A fixed key is safe since the executions of one step follow each other on every member, and each ring buffer
        has one producer and one consumer, which alternate. NCCL matches by key as well, so it gets a new one each time.
        """
        nccl = self._options.implementation == collective_util.CommunicationImplementation.NCCL
        with ops.device(self._device):
            return collective_ops.all_reduce_v2(
                value,
                self._group_size,
                self._group_key,
                self._next_instance_key() if nccl else instance_key,
                communication_hint=self._options.implementation.value,
                timeout=self._options.timeout_seconds,
                ordering_token=self._get_ordering_token(),
            )

    def broadcast(self, value: tf.Tensor, is_source: bool) -> tf.Tensor:
        """`value` of the one member that calls with `is_source`; shape and dtype must agree."""
        key = self._next_instance_key()
        hint = self._options.implementation.value
        with ops.device(self._device):
            if is_source:
                return collective_ops.broadcast_send_v2(
                    value, self._group_size, self._group_key, key, communication_hint=hint
                )
            return collective_ops.broadcast_recv_v2(
                value.shape, value.dtype, self._group_size, self._group_key, key, communication_hint=hint
            )

    def all_gather(self, input_tensor: tf.Tensor, axis: Any, options: Any = None) -> tf.Tensor:
        """As TensorFlow's, without a Python loop over a group size that may change."""
        if context.executing_eagerly():
            raise RuntimeError("all_gather is not supported in eager mode.")
        with ops.device(self._device):
            if isinstance(axis, int) and axis == 0:
                return self._gather_rows(input_tensor, options)
            rank = tf.rank(input_tensor)
            order = tf.concat([[axis], tf.range(axis), tf.range(axis + 1, rank)], 0)
            gathered = self._gather_rows(tf.transpose(input_tensor, order), options)
            return tf.transpose(gathered, tf.concat([tf.range(1, axis + 1), [0], tf.range(axis + 1, rank)], 0))

    def _gather_rows(self, value: tf.Tensor, options: Any) -> tf.Tensor:
        lengths = self._all_gather(tf.shape(value)[:1], options)
        longest = tf.reduce_max(lengths)
        padding = tf.concat([[[0, longest - tf.shape(value)[0]]], tf.zeros([tf.rank(value) - 1, 2], tf.int32)], 0)
        with ops.control_dependencies([lengths]):
            rows = self._all_gather(tf.pad(value, padding), options)
        keep = tf.reshape(tf.sequence_mask(lengths, longest), [-1])
        return tf.gather(rows, tf.where(keep)[:, 0])

    def all_reduce_indexed_slices(self, input_slices: tf.IndexedSlices, options: Any = None) -> Any:
        with ops.device(self._device):
            values = self._gather_rows(input_slices.values, options)
            with ops.control_dependencies([values]):
                indices = self._gather_rows(input_slices.indices, options)
        return tf.IndexedSlices(values, indices, input_slices.dense_shape)


class CrossDeviceOps(cross_device_ops.CollectiveAllReduce):
    """TensorFlow's cross-device operations over our launchers.

    Relies on `_launchers`, one per local device, on `_all_reduce` dividing by a static size for MEAN only, and on
    `_num_between_graph_workers` being asked before a reduction is left out.
    """

    def __init__(self, group: Group, devices: Sequence[str], options: Any, alone: bool):
        self._group, self._alone = group, alone
        super().__init__(devices, len(devices), options)
        self._launchers = [Launcher(group, device, options) for device in self._devices]

    @property
    def _num_between_graph_workers(self) -> int:
        """TensorFlow leaves a reduction out where it is 1; the group may grow at any time."""
        return 1 if self._alone else 2

    def _all_reduce(self, reduce_op: Any, value: Any, replica_id: int, options: Any) -> Any:
        total = super()._all_reduce(tf.distribute.ReduceOp.SUM, value, replica_id, options)
        if reduce_op != tf.distribute.ReduceOp.MEAN:
            return total
        return tf.nest.map_structure(lambda t: t / tf.cast(self._group.tensors()[0], t.dtype), total)


class Extended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
    """`MultiWorkerMirroredStrategy`'s extended object with a group that can be formed anew, and no health check.

    Relies on: the constructor calling `_initialize_strategy`; `_cross_device_ops`, `_host_cross_device_ops` carrying
    all
    cross-device traffic; `_get_variable_creator_initial_value` doing the broadcast of initial values, which a
    process that joins later could not take part in.
    """

    _enable_check_health = False

    def __init__(self, strategy: tf.distribute.Strategy, resolver: Any, options: Any):
        self.base_config: config_pb2.ConfigProto | None = None
        super().__init__(strategy, resolver, options)
        self.group = Group(len(self.worker_devices))
        self.launchers = [Launcher(self.group, device, options) for device in self.worker_devices]
        self.host_group = Group(1)
        alone = self.base_config is None
        self._cross_device_ops = CrossDeviceOps(self.group, self.worker_devices, options, alone)
        self._host_cross_device_ops = CrossDeviceOps(self.host_group, [self._worker_device], options, alone)

    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        """GPUs where there are any, else the logical CPUs that the user configured (TensorFlow takes one only)."""
        kind = "GPU" if context.num_gpus() else "CPU"
        mine = context.context().list_logical_devices(kind)
        if worker_device and any("/job:" in d.name for d in mine):
            mine = [
                d
                for d in mine
                if f"{worker_device.split('/task')[0]}/" in d.name and f"/task:{self._task_id}/" in d.name
            ]
        return tuple(f"{worker_device}/device:{kind}:{i}" for i in range(max(1, len(mine)))), kind

    def _update_config_proto(self, config_proto: config_pb2.ConfigProto) -> config_pb2.ConfigProto:
        updated = super()._update_config_proto(config_proto)
        if self._cluster_spec:
            updated.experimental.collective_group_leader = _device_prefix(self._task_type, self._task_id)
            self.base_config = copy.deepcopy(updated)
        return updated

    @property
    def on_cpu(self) -> bool:
        return self._local_device_type == "CPU"

    def _use_merge_call(self) -> bool:
        """Replicas run to their end one after the other; every reduction is launched per replica."""
        return False

    def _get_variable_creator_initial_value(self, **kwargs: Any) -> Any:
        return mirrored_strategy.MirroredExtended._get_variable_creator_initial_value(self, **kwargs)

    def form_group(self, addresses: Mapping[tuple[str, int], str], generation: int) -> None:
        """Makes `addresses` ((job, index) -> host:port, this process among them) the collective group.

        Relies on `enable_collective_ops` updating a running server (GrpcServer::UpdateServerDef), and on a sparse
        ClusterDef being accepted; compiled functions are re-instantiated at their next call, not retraced.
        """
        if self.base_config is None:  # no cluster: the local devices are the group
            return
        config = copy.deepcopy(self.base_config)
        config.experimental.collective_group_leader = _device_prefix(*min(addresses))
        cluster = cluster_pb2.ClusterDef()
        for job in sorted({job for job, _ in addresses}):
            tasks = cluster.job.add(name=job).tasks
            for (other, index), address in sorted(addresses.items()):
                if other == job:
                    tasks[index] = address
        with _quiet():
            self._update_server(cluster, config)
        first = FIRST_GENERATION_KEY + 2 * generation
        self.group.become(len(addresses) * len(self.worker_devices), first)
        self.host_group.become(len(addresses), first + 1)

    def _update_server(self, cluster: cluster_pb2.ClusterDef, config: config_pb2.ConfigProto) -> None:
        context.context().enable_collective_ops(
            tensorflow_server_pb2.ServerDef(
                cluster=cluster,
                default_session_config=config,
                job_name=self._task_type,
                task_index=self._task_id,
                protocol="grpc",
            )
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """TensorFlow warns each time that collectives are enabled after start-up; here that is what is meant to happen."""
    logger = logging.getLogger("absl")

    def other(record: logging.LogRecord) -> bool:
        return "Enabling collective ops after program startup" not in record.getMessage()

    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


def _device_prefix(job: str, index: int) -> str:
    return f"/job:{job}/replica:0/task:{index}"


_QUICK: dict[bytes, Any] = {}


@contextlib.contextmanager
def instantiated_quickly() -> Iterator[None]:
    """Functions called inside are not rewritten by Grappler, whose work would be lost with each group that is formed.

    Relies on `FunctionCallOptions.config_proto_serialized` being part of a call's attributes, and so of the
    instantiation that it uses.
    """
    ctx = context.context()
    before = ctx.function_call_options
    given = before.config_proto_serialized
    if given not in _QUICK:
        config = config_pb2.ConfigProto.FromString(given)
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        _QUICK[given] = context.FunctionCallOptions(before.executor_type, config)
    ctx.function_call_options = _QUICK[given]
    try:
        yield
    finally:
        ctx.function_call_options = before


def switch_off_coordination_service() -> None:
    """Keeps MultiWorkerMirroredStrategy from starting TensorFlow's coordination service, to which a lost task is fatal.

    Relies on `Context._coordination_service_config` being looked at before it is configured: a non-None, empty
    configuration counts as configured.
    """
    ctx = context.context()
    if ctx._coordination_service_config is None:
        ctx._coordination_service_config = type(config_pb2.ConfigProto().experimental.coordination_config)()


def abort_collectives(reason: str) -> None:
    """Makes collectives that hang in this process raise UnavailableError, until a group is formed anew."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)


def all_reduce_eagerly(extended: Extended, pieces: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Outside of a graph the local replicas run one after the other, so they meet before they reduce."""

    def merged(strategy: tf.distribute.Strategy, *values: Any) -> Any:
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(v, v) for v in values])

    return list(tf.distribute.get_replica_context().merge_call(merged, args=tuple(pieces)))


def local_replica() -> int:
    """Number of the local device whose replica runs in this thread, as a Python integer."""
    return int(values_util.get_current_replica_id_as_int())


def regroup(values: Sequence[Any]) -> Any:
    """One structure of PerReplica values from one structure per local replica (the structure itself for one)."""
    return values[0] if len(values) == 1 else distribute_utils.regroup(tuple(values))


def reads_after(graph: Any, first_operation: int, handles: set[int]) -> bool:
    """Whether an operation added to `graph` from number `first_operation` on takes one of the variables.

    `handles`: ids of resource tensors as seen from outside the graph. Relies on `FuncGraph.captures`.
    """
    inner = {id(inside) for outside, inside in getattr(graph, "captures", ()) if id(outside) in handles} | handles
    return any(id(t) in inner for op in graph.get_operations()[first_operation:] for t in op.inputs)


def shard(dataset: tf.data.Dataset, count: int, index: int) -> tf.data.Dataset:
    """What `experimental_distribute_dataset` gives worker `index` of `count`: smaller batches of its part."""
    size = int(data_distribute.compute_batch_size(dataset))
    part = data_distribute._AutoShardDataset(dataset, count, index)
    return part.rebatch(data_distribute.batch_sizes_for_worker(size, count, 1, index)) if size > 0 else part


def convert(fn: Any) -> Any:
    """`fn` as AutoGraph would have it in the calling context (what `Strategy.run` does to the function it gets)."""
    return autograph.tf_convert(fn, autograph_ctx.control_status_ctx(), convert_by_default=False)
