"""Calls within calls, on some workers only, and one after the other."""

from typing import Any

import numpy as np
import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_bits, ends
from tfdist.errors import EXIT_PEER_FAILED
from tfdist.testing import LocalCluster
from tfdist.testing.faults import kill

GIVEN: dict[str, Any] = {"plain": False, "evaluate": False, "fits": 1, "epochs": 3, "wait": {}}


@pytest.fixture
def plain(fork_server, tmp_path):
    def training(**options):
        with LocalCluster(1, server=fork_server, dir=tmp_path) as cluster:
            return cluster.run(jobs.in_callbacks, {**GIVEN, **options, "plain": True}, timeout=60).values[0]

    return training


def assert_weights(value, expected):
    for path, weight in expected["weights"].items():
        np.testing.assert_allclose(value["weights"][path], weight, rtol=1e-9, atol=1e-12, err_msg=path)


def test_evaluate_in_a_callback_of_all_workers_survives_a_loss_and_a_join(cluster_of, plain):
    cluster = cluster_of(3, faults=[kill(1, step=5), kill(2, point="validation_step", nth=7)], restart=True)
    results = cluster.run(jobs.in_callbacks, {**GIVEN, "evaluate": True, "wait": {"18": 3}}, timeout=90)
    cluster.assert_all_fired()
    assert results.codes == {0: 0, 1: 0, 2: 0}
    expected = plain(evaluate=True)
    assert_same_bits(results)
    for value in results.values.values():
        assert_weights(value, expected)
        np.testing.assert_allclose(value["found"], expected["found"][-len(value["found"]) :], rtol=1e-9)
    assert len(results.values[0]["found"]) == 3


def test_a_replacement_skips_several_fits_of_which_only_the_last_end_state_is_kept(cluster_of, plain):
    cluster = cluster_of(2, faults=[kill(1, step=18)], restart=True)
    results = cluster.run(jobs.in_callbacks, {**GIVEN, "fits": 4, "epochs": 1, "wait": {"21": 2}}, timeout=90)
    cluster.assert_all_fired()
    assert results.codes == {0: 0, 1: 0}
    expected = plain(fits=4, epochs=1)
    for value in results.values.values():
        assert value["iterations"] == 32
        assert_weights(value, expected)


def test_the_chief_may_evaluate_alone_when_the_others_are_done(cluster_of):
    results = cluster_of(2).run(jobs.chief_evaluates, "after", timeout=60)
    assert results.codes == {0: 0, 1: 0}
    assert results.values[0] is not None and results.values[1] is None


def test_evaluate_on_one_worker_between_two_fits_is_found_and_named(cluster_of):
    results = cluster_of(2).run(jobs.chief_evaluates, "between", timeout=60, check=False)
    assert EXIT_PEER_FAILED in results.codes.values()
    text = str(results)
    assert "call 2, evaluate," in text and "call 2, fit," in text and "must be made on all workers" in text


def test_a_worker_that_comes_back_to_a_loop_of_ones_own_has_nothing_to_do(cluster_of):
    cluster = cluster_of(2, faults=[kill(1, step=5)], restart=True)
    results = cluster.run(jobs.own_loop, False, timeout=60)
    cluster.assert_all_fired()
    assert results.codes == {0: 0, 1: 0}
    assert list(ends(results)) == [0]
    assert "can't be joined while it runs" in results.last(1).output


def test_evaluate_in_a_callback_of_one_worker_names_the_worker_and_the_callback(cluster_of):
    results = cluster_of(2).run(jobs.evaluate_in_one_callback, timeout=60, check=False)
    text = str(results)
    assert EXIT_PEER_FAILED in results.codes.values()
    assert "evaluate in Curious" in text and "worker/1" in text and "must be made on all workers" in text
