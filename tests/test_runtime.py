"""Private TensorFlow API: each test names what tfdist/runtime.py relies on, and fails where that changed."""

from __future__ import annotations

import inspect

import pytest
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy, cross_device_ops, cross_device_utils
from tensorflow.python.eager import context

from tfdist import runtime


def test_a_running_server_can_be_given_another_cluster() -> None:
    assert "server_def" in inspect.signature(context.Context.enable_collective_ops).parameters
    assert {"code", "message"} <= set(inspect.signature(context.Context.abort_collective_ops).parameters)


def test_the_coordination_service_is_off_where_its_configuration_is_not_none() -> None:
    source = inspect.getsource(context.Context.coordination_service.fget)
    assert "_coordination_service_config" in source
    before = context.context()._coordination_service_config
    try:
        runtime.switch_off_coordination_service()
        assert context.context()._coordination_service_config is not None
    finally:
        context.context()._coordination_service_config = before


@pytest.mark.parametrize("name", ["_group_size", "_group_key", "_next_instance_key", "_all_gather"])
def test_the_launcher_reads_its_group_at_each_launch(name: str) -> None:
    source = inspect.getsource(cross_device_utils.CollectiveReplicaLauncher)
    assert f"self.{name}" in source


def test_reductions_go_through_the_cross_device_operations() -> None:
    source = inspect.getsource(collective_all_reduce_strategy.CollectiveAllReduceExtended)
    for name in ("_cross_device_ops", "_host_cross_device_ops", "_initialize_strategy", "_use_merge_call"):
        assert name in source, name
    assert "_launchers" in inspect.getsource(cross_device_ops.CollectiveAllReduce)


def test_a_group_changes_under_a_compiled_function_without_retracing() -> None:
    group = runtime.Group(1)
    traces = []

    @tf.function
    def size_and_key() -> tuple[tf.Tensor, tf.Tensor]:
        traces.append(1)
        return group.tensors()

    size_and_key()
    group.become(3, 4096)
    assert [int(t) for t in size_and_key()] == [3, 4096]
    assert len(traces) == 1


def test_no_two_groups_of_a_process_share_a_key() -> None:
    assert runtime.Group(1).key != runtime.Group(1).key


def test_instances_are_counted_per_device_and_anew_in_each_generation() -> None:
    group = runtime.Group(2)
    assert [group.next_instance("a"), group.next_instance("a"), group.next_instance("b")] == [1, 2, 1]
    group.become(2, 4096)
    assert group.next_instance("a") == 1


def test_a_variable_that_is_read_after_an_operation_is_found() -> None:
    variable, other = tf.Variable(1.0), tf.Variable(2.0)
    found = {}

    @tf.function
    def step() -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        first = variable + other
        count = len(graph.get_operations())
        second = first * 2 + other
        found["variable"] = runtime.reads_after(graph, count, {id(variable.handle)})
        found["other"] = runtime.reads_after(graph, count, {id(other.handle)})
        return second

    step()
    assert found == {"variable": False, "other": True}


def test_shards_of_a_dataset_are_smaller_batches() -> None:
    dataset = tf.data.Dataset.range(32).batch(8)
    sizes = [[len(b) for b in runtime.shard(dataset, 2, index).as_numpy_iterator()] for index in range(2)]
    assert sum(map(sum, sizes)) == 32
    assert all(size <= 8 for part in sizes for size in part)
