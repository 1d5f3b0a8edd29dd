"""Every kind of model gives on 2 local devices what it gives on one: gradients, metrics and variables are exact."""

import os
import traceback
from typing import Any

import numpy as np
import pytest

from tfdist.testing import LocalCluster

NAMES = [
    "AdamW, schedule, clipping, EMA",
    "accumulation, clipping of the whole",
    "several steps per execution, validation data",
    "run eagerly",
    "loss scaling, sample weights, validation split",
    "loss scaling, infinite gradient",
    "CNN, class weights",
    "two optimizers",
    "own train_step with its own mean",
    "variables assigned in call",
    "mask",
    "mean with sample weight",
    "several inputs and outputs",
    "embedding, regularizer",
    "activity regularizer",
]


def train_all_kinds():
    """In a process of its own, since the number of devices is fixed once: {name: [plain, with the strategy]}."""
    import keras
    import tensorflow as tf

    import tfdist

    del os.environ["TF_CONFIG"]
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras.config.set_floatx("float64")
    from tests.strategies import kinds

    table: dict[str, Any] = {}
    for name in kinds.KINDS:
        try:
            table[name] = [kinds.train(name, None), kinds.train(name, tfdist.ElasticMultiWorkerMirroredStrategy())]
        except Exception:  # noqa: BLE001 - it is the result of this row; the others are of interest, too
            table[name] = traceback.format_exc()
    return table


@pytest.fixture(scope="module")
def table(fork_server, tmp_path_factory):
    with LocalCluster(1, server=fork_server, dir=tmp_path_factory.mktemp("exactness")) as cluster:
        return cluster.run(train_all_kinds, timeout=170).values[0]


@pytest.mark.timeout(200)  # the first one trains all
def test_all_kinds_are_listed(table):
    assert list(table) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_two_devices_give_what_one_gives(table, name):
    assert isinstance(table[name], list), table[name]
    plain, divided = table[name]
    for number, (mine, expected) in enumerate(zip(divided["weights"], plain["weights"], strict=True)):
        largest = np.max(np.abs(expected), initial=1e-12)
        np.testing.assert_allclose(mine / largest, expected / largest, rtol=0, atol=1e-9, err_msg=f"weight {number}")
    assert divided["history"].keys() == plain["history"].keys()
    for key, values in plain["history"].items():
        np.testing.assert_allclose(divided["history"][key], values, rtol=1e-9, err_msg=key)
    np.testing.assert_allclose(divided.get("evaluate", []), plain.get("evaluate", []), rtol=1e-9)
