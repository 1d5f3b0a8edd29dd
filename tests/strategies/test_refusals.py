"""What can't work is refused at once, with the first thing that is wrong and the remedy."""

import pytest

from tests.strategies import jobs
from tfdist.errors import EXIT_CONFIG
from tfdist.membership import keys
from tfdist.membership.status import read_statuses
from tfdist.membership.stores import open_store
from tfdist.membership.stores.base import ScopedStore

PEERS = {
    1: ({"kind": "momentum"}, "model variables"),
    2: ({"epochs": 4}, "epochs"),
    3: ({"batch": 10}, "global batch size"),
    4: ({"samples": 80}, "number of samples"),
    5: ({"seed": 6}, "data seed"),
    6: ({"steps_per_execution": 2}, "steps_per_execution"),
    7: ({"compile": {"optimizer": "adam"}}, "optimizer"),
    8: ({"compile": {"loss": "mse"}}, "loss"),
}


def test_a_peer_that_differs_is_refused_naming_the_first_difference(cluster_of):
    cluster = cluster_of(1 + len(PEERS))
    cluster.start_worker(0, jobs.train, {})
    cluster.wait_until(lambda: phase_of(cluster, "worker/0") == "waiting to join", "worker 0 has said what it does", 30)
    for task, (options, _) in PEERS.items():
        cluster.start_worker(task, jobs.train, options)
    results = cluster.wait(60, tasks=list(PEERS), check=False)
    for task, (_, name) in PEERS.items():
        assert f"IncompatibleError: {name} differs:" in results.last(task).output
        assert results.codes[task] == EXIT_CONFIG
    assert results.codes[0] is None  # it goes on waiting for a worker that fits


def phase_of(cluster, task):
    store = ScopedStore(open_store(cluster.store), keys.run_prefix(cluster.run_id))
    return read_statuses(store).get(task, {}).get("phase")


@pytest.mark.parametrize(
    ("options", "env", "workers", "text"),
    [
        ({"compile": {"jit_compile": True}}, {}, 1, "set jit_compile='auto'"),
        ({}, {"TFDIST_STORE": ""}, 2, "TF_CONFIG names 1 other worker"),
        ({}, {"TFDIST_STORE": "zookeeper://here"}, 1, "zookeeper"),
        ({}, {"TFDIST_STORE": "sqlite:////proc/nowhere/store.db"}, 1, "/proc/nowhere"),
        ({}, {"TFDIST_MIN_WORKERS": "3", "TFDIST_MAX_WORKERS": "2"}, 1, "max_workers"),
    ],
    ids=["jit_compile", "no store", "unknown store", "unwritable store", "min above max"],
)
def test_a_bad_option_is_refused_with_the_remedy(cluster_of, options, env, workers, text):
    results = cluster_of(workers, env=env).run(jobs.train, options, timeout=60, check=False)
    for worker in range(workers):
        assert text in results.last(worker).output
        assert results.codes[worker] == EXIT_CONFIG


@pytest.mark.parametrize("kind", ["dataset", "function"])
def test_a_distributed_dataset_is_not_for_fit(cluster_of, kind):
    results = cluster_of(2).run(jobs.distributed, kind, timeout=60, check=False)
    for worker in range(2):
        assert results.codes[worker] == EXIT_CONFIG, str(results)
        assert "Pass the tf.data.Dataset" in results.last(worker).output


def test_an_evaluator_is_neither_refused_nor_chief(cluster_of):
    (value,) = cluster_of(1).run(jobs.evaluator, timeout=60).values.values()
    assert value == {"chief": False, "replicas": 1}
