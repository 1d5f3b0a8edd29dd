"""Calls for one batch, and `predict`, give what one process does, on every worker."""

import numpy as np

from tests.strategies import jobs
from tests.strategies.checks import assert_same_bits
from tfdist.testing import LocalCluster


def test_each_worker_gets_what_one_process_does(cluster_of, fork_server, tmp_path):
    with LocalCluster(1, server=fork_server, dir=tmp_path) as alone:
        expected = alone.run(jobs.by_hand, True, timeout=60).values[0]
    results = cluster_of(3).run(jobs.by_hand, False, timeout=60)
    assert sorted(results.values) == [0, 1, 2]
    assert_same_bits(results)
    for value in results.values.values():
        for name in ("tested", "predicted", "on_batch"):
            np.testing.assert_allclose(value[name], expected[name], rtol=1e-9, err_msg=name)
        for mine, wanted in zip(value["trained"], expected["trained"], strict=True):
            np.testing.assert_allclose([mine[n] for n in wanted], list(wanted.values()), rtol=1e-9)
        for path, weight in expected["weights"].items():
            np.testing.assert_allclose(value["weights"][path], weight, rtol=1e-9, atol=1e-12, err_msg=path)
