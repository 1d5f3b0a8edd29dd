"""A training loop of the user's own, through `strategy.elastic_step`: exact, and it survives a loss."""

from typing import Any

import numpy as np
import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_bits
from tfdist.testing import LocalCluster
from tfdist.testing.faults import freeze, kill


@pytest.fixture(scope="module")
def plain(fork_server, tmp_path_factory):
    with LocalCluster(1, server=fork_server, dir=tmp_path_factory.mktemp("plain")) as cluster:
        return cluster.run(jobs.own_loop, True, timeout=60).values[0]


FAULTS: dict[str, Any] = {
    "nothing": ([], [0, 1, 2]),
    "a kill": ([kill(1, step=5)], [0, 2]),
    "the chief is killed": ([kill(0, step=7)], [1, 2]),
    "a freeze": ([freeze(2, step=9)], [0, 1]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_it_ends_as_in_one_process(cluster_of, plain, name):
    faults, left = FAULTS[name]
    cluster = cluster_of(3, faults=faults)
    for task in range(3):
        cluster.start_worker(task, jobs.own_loop, False)
    results = cluster.wait(60, tasks=left)
    cluster.assert_all_fired()
    assert sorted(results.values) == left
    assert_same_bits(results)
    for value in results.values.values():
        np.testing.assert_allclose(value["losses"], plain["losses"], rtol=1e-9)
        assert value["counted"] == 20
        assert value["gathered"] == 2 * len(left)
        for path, weight in plain["weights"].items():
            np.testing.assert_allclose(value["weights"][path], weight, rtol=1e-9, atol=1e-12, err_msg=path)


# 1 + ... + 12, and their squares. With two workers three steps use all; a function gives each worker its own 2 rows.
@pytest.mark.parametrize(
    ("kind", "workers", "expected"),
    [
        ("without TF_CONFIG", 1, [78.0, 650.0]),
        ("dataset", 1, [78.0, 650.0]),
        ("dataset", 2, [78.0, 650.0]),
        ("function", 2, [78.0, 650.0]),
    ],
)
def test_a_loop_over_distributed_data_sees_each_row_once(cluster_of, kind, workers, expected):
    results = cluster_of(workers).run(jobs.loop_over_distributed, kind, timeout=60)
    assert sorted(results.values) == list(range(workers))
    for value in results.values.values():
        np.testing.assert_allclose(value["found"], expected)
        assert value["total"] == expected[0]
