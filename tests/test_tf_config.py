"""TF_CONFIG is read in one place, and each mistake in it is refused with its field, value and remedy."""

import json

import pytest

from tfdist.errors import ConfigError
from tfdist.tf_config import Task, parse_tf_config, require_worker_cluster, split_address, task_from_environ

TWO = {"worker": ["a:1", "b:2"]}


def parsed(**config):
    return parse_tf_config({"TF_CONFIG": json.dumps(config)})


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "  "}, {"TF_CONFIG": "{}"}])
def test_unset_or_empty_means_one_process(environ):
    assert parse_tf_config(environ) is None


def test_a_usual_config_is_understood():
    config = parsed(cluster={"chief": ["c:1"], "worker": ["a:1", "b:1"]}, task={"type": "worker", "index": 1})
    assert config.task == Task("worker", 1) and config.address == "b:1" and config.rpc_layer == "grpc"
    assert config.workers == (Task("chief", 0), Task("worker", 0), Task("worker", 1))
    assert not config.is_evaluator


def test_a_task_is_written_and_read_as_job_slash_index():
    assert str(Task("worker", 2)) == "worker/2" and Task.parse("worker/2") == Task("worker", 2)
    for wrong in ("worker", "worker/", "worker/x", "boss/1", "worker/-1", "worker/99999999", ""):
        with pytest.raises(ConfigError, match="task"):
            Task.parse(wrong)


REFUSED = [
    # (TF_CONFIG text, what the message must contain)
    ('{"cluster": {', ["TF_CONFIG", "not JSON", "line 1 column 14"]),
    ("[1]", ["JSON object"]),
    (json.dumps({"task": {"type": "worker", "index": 1}}), ["cluster", "missing", "unset TF_CONFIG"]),
    (json.dumps({"cluster": TWO}), ["task", "missing", '"index": 0']),
    (json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 2}}), ["task.index", "2", "0 to 1"]),
    (json.dumps({"cluster": TWO, "task": {"type": "worker"}}), ["task.index", "missing"]),
    (json.dumps({"cluster": TWO, "task": {"type": "boss", "index": 0}}), ["task.type", "boss", "chief"]),
    (json.dumps({"cluster": TWO, "task": {"type": "chief", "index": 0}}), ["task.type", "chief", "worker"]),
    (json.dumps({"cluster": {"boss": ["a:1"]}, "task": {"type": "worker", "index": 0}}), ["boss", "unknown job"]),
    (json.dumps({"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}),
     ["worker[1]", "a:1", "also the address of worker[0]"]),
    (json.dumps({"cluster": {"worker": ["http://a:1"]}, "task": {"type": "worker", "index": 0}}),
     ["worker[0]", "scheme", "Write 'a:1'"]),
    (json.dumps({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}), ["port", "a:2222"]),
    (json.dumps({"cluster": {"worker": ["a:0"]}, "task": {"type": "worker", "index": 0}}), ["1 to 65535"]),
    (json.dumps({"cluster": {"worker": ["a:70000"]}, "task": {"type": "worker", "index": 0}}), ["1 to 65535"]),
    (json.dumps({"cluster": {"worker": ["a:x"]}, "task": {"type": "worker", "index": 0}}), ["host:port"]),
    (json.dumps({"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}), ["cluster.worker", "list"]),
    (json.dumps({"cluster": TWO, "task": {"type": "worker", "index": True}}), ["task.index", "whole number"]),
    (json.dumps({"cluster": TWO, "task": "worker"}), ["task", "object"]),
]  # fmt: skip


@pytest.mark.parametrize("text, parts", REFUSED)
def test_a_mistake_is_refused_with_field_value_and_remedy(text, parts):
    with pytest.raises(ConfigError) as caught:
        parse_tf_config({"TF_CONFIG": text})
    for part in parts:
        assert part in str(caught.value)


def test_parameter_servers_are_refused_only_where_there_are_none():
    config = parsed(cluster={"ps": ["p:1"], **TWO}, task={"type": "worker", "index": 0})
    with pytest.raises(ConfigError, match="ElasticParameterServerStrategy"):
        require_worker_cluster(config)
    require_worker_cluster(parsed(cluster=TWO, task={"type": "worker", "index": 0}))


def test_an_evaluator_is_never_in_the_roster():
    config = parsed(cluster=TWO, task={"type": "evaluator", "index": 0})
    assert config.is_evaluator and config.task not in config.workers and config.address == ""


def test_a_sparse_cluster_of_a_tfjob_is_understood():
    config = parsed(sparseCluster={"worker": {"2": "w2:5"}, "ps": ["p:1"]}, task={"type": "worker", "index": 2})
    assert config.workers == (Task("worker", 2),) and config.address == "w2:5"


def test_an_indexed_job_gives_the_index():
    environ = {"TF_CONFIG": json.dumps({"cluster": TWO}), "JOB_COMPLETION_INDEX": "1"}
    config = parse_tf_config(environ)
    assert config is not None and config.task == Task("worker", 1)
    assert task_from_environ({}) is None
    with pytest.raises(ConfigError, match="JOB_COMPLETION_INDEX"):
        task_from_environ({"JOB_COMPLETION_INDEX": "one"})
    with pytest.raises(ConfigError, match="would each train alone"):
        parse_tf_config({"JOB_COMPLETION_INDEX": "1"})


def test_addresses_are_split():
    assert split_address("[::1]:80") == ("::1", 80) and split_address("h-1.svc:2222") == ("h-1.svc", 2222)
