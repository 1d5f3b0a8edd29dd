"""Each worker has data of its own: epochs end for all together, when nobody has any more, and each row counts once."""

import numpy as np
import pytest

from tests.strategies import jobs


@pytest.mark.parametrize("rows", [[80, 80], [100, 60], [40, 8, 25]], ids=["even", "uneven", "three"])
def test_all_rows_of_all_workers_are_used(cluster_of, rows):
    results = cluster_of(len(rows)).run(jobs.own_data, rows, timeout=60)
    assert sorted(results.values) == list(range(len(rows)))
    for value in results.values.values():
        np.testing.assert_array_equal(value["uses"], np.full(sum(rows), 2.0))
    assert len({value["evaluated"] for value in results.values.values()}) == 1
