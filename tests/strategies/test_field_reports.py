"""The small harness of the field reports gives its values with 1 to 4 workers and every kind of data."""

from typing import Any

import numpy as np
import pytest

from tests.strategies import jobs

RIGHT: dict[int, Any] = {
    160: {
        "loss": [2.016555, 0.209355],
        "mae": 0.343566,
        "kernels": [
            [0.528438, 0.901275, 1.135660, 0.553147, 0.020641],
            [0.842756, 0.952276, 1.100752, 0.846187, 0.019622],
        ],
        "after": 0.054099,
        "before": [4.529869, 1.715871],
    },
    150: {
        "loss": [2.122529, 0.239912],
        "kernels": [None, [0.83936, 0.96661, 1.10512, 0.81799]],
        "after": 0.064920,
    },
}


@pytest.mark.parametrize(
    ("workers", "rows", "data"),
    [
        (1, 160, "arrays"),
        (1, 150, "tf.data"),
        (2, 150, "elastic"),
        (3, 160, "elastic"),  # 16 is not divisible by 3
        (3, 150, "tf.data"),
        (4, 160, "arrays"),
    ],
)
def test_any_number_of_workers_gives_the_values_of_one_process(cluster_of, workers, rows, data):
    results = cluster_of(workers).run(jobs.h, rows, data, timeout=90)
    assert sorted(results.values) == list(range(workers))
    for value in results.values.values():
        assert_right(value, rows)


def assert_right(value, rows):
    right = RIGHT[rows]
    np.testing.assert_allclose(value["initial"], [-0.528005, 0.794081, 0.960488, -0.343448], atol=1e-5)
    np.testing.assert_allclose(value["loss"], right["loss"], atol=1e-5)
    np.testing.assert_allclose(value["after"], right["after"], atol=1e-5)
    assert value["iterations"] == 20
    for kernel, expected in zip(value["kernels"], right["kernels"], strict=True):
        if expected is not None:
            np.testing.assert_allclose(kernel[: len(expected)], expected, atol=1e-5)
    if "before" in right:
        np.testing.assert_allclose(value["before"], right["before"], atol=1e-5)
        np.testing.assert_allclose(value["mae"][1], right["mae"], atol=1e-5)
