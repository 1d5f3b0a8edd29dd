"""mixed_float16: a gradient that is infinite on one worker makes all of them skip that update, and halve the scale."""

import numpy as np
import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_bits
from tfdist.testing import LocalCluster
from tfdist.testing.faults import kill


@pytest.fixture(scope="module")
def plain(fork_server, tmp_path_factory):
    with LocalCluster(1, server=fork_server, dir=tmp_path_factory.mktemp("plain")) as cluster:
        return cluster.run(jobs.half, {"plain": True}, timeout=60).values[0]


# The infinite one is in the third of the eight steps of an epoch.
@pytest.mark.parametrize("faults", [[], [kill(1, step=2)], [kill(2, step=3)]], ids=["nothing", "in it", "after it"])
def test_all_skip_the_same_update(cluster_of, plain, faults):
    assert (plain["optimizer"], plain["updates"], plain["scale"]) == ("LossScaleOptimizer", 14, 2.0**13)
    cluster = cluster_of(3, faults=faults)
    results = cluster.run(jobs.half, {"plain": False}, timeout=60)
    cluster.assert_all_fired()
    assert len(results.values) == 3 - len(faults)
    assert_same_bits(results)
    for value in results.values.values():
        assert (value["updates"], value["scale"]) == (plain["updates"], plain["scale"])
        for path, weight in plain["weights"].items():
            np.testing.assert_allclose(value["weights"][path], weight, atol=5e-3, err_msg=path)  # half precision
