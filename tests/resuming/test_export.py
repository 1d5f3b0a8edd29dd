"""A checkpoint outside of `fit`: restored into a model, and exported for Keras alone."""

import numpy as np

from tests.resuming import jobs


def test_a_checkpoint_becomes_a_model_of_keras(cluster_of, tmp_path):
    directory = str(tmp_path / "ckpt")
    trained = cluster_of(1).run(jobs.train, {"directory": directory, "sizes": [8]}, timeout=60).values[0]
    value = cluster_of(1).run(jobs.restore_and_export, directory, str(tmp_path / "model"), timeout=60).values[0]
    assert value["codes"] == [0, 0] and value["step"] == 30 and value["iterations"] == 30
    x, _ = jobs._data()
    kernel, bias, last, offset = trained["weights"].values() if len(trained["weights"]) == 4 else arrays_of(trained)
    expected = np.tanh(x @ kernel + bias) @ last + offset
    for outputs in value["outputs"]:
        np.testing.assert_allclose(outputs, expected, rtol=1e-12)
    assert "leaf sequential/dense/kernel has shape (4, 8)" in value["refused"] and "(4, 7)" in value["refused"]


def arrays_of(trained):
    """Kernels and biases, without the seed of Dropout."""
    return [value for name, value in trained["weights"].items() if name.endswith(("kernel", "bias"))]
