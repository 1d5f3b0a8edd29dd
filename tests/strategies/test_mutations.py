"""The checks see what they are for: a dropped or repeated sample, a step applied twice."""

import copy

import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_training, assert_used
from tests.strategies.models import EPOCHS


@pytest.mark.parametrize("mutation", ["drop a sample", "repeat a sample", "apply a step twice"])
def test_broken_code_is_seen_by_equality_and_witness(cluster_of, plain, mutation):
    results = cluster_of(2).run(jobs.train, {"mutate": mutation}, timeout=60)
    expected = plain()
    assert_same_training(_with_values(results, expected), expected, uses=EPOCHS)  # the check itself is sound
    with pytest.raises(AssertionError, match="samples that were not used 3 times"):
        assert_used(results.values[0], EPOCHS)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_training(results, expected)


def _with_values(results, value):
    processes = [copy.copy(process) for process in results.processes]
    for process in processes:
        object.__setattr__(process, "value", value)
    return type(results)(processes)
