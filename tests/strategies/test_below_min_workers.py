"""Fewer members than `min_workers`: what is under way is finished, then the survivors wait for a replacement."""

from typing import Any

import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_training
from tests.strategies.models import EPOCHS, STEPS
from tests.strategies.test_loss import last_roster
from tfdist.errors import EXIT_TOO_FEW_WORKERS
from tfdist.testing.faults import kill

LOSSES: dict[str, Any] = {
    "in a step": ([kill(1, step=5)], {}),
    "in the middle of an execution": ([kill(1, step=5)], {"kind": "momentum", "steps_per_execution": 4}),
    # The other one finds out in the meeting that ends the epoch, where nobody could join.
    "after the last step of an epoch": ([kill(1, step=STEPS - 1, point="step_end")], {}),
    "in validation": ([kill(1, point="validation_step", phase="validation", nth=2)], {"validation": True}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_one_left_waits_for_a_replacement_before_its_next_step(cluster_of, plain, name):
    faults, options = LOSSES[name]
    cluster = cluster_of(2, faults=faults, restart=True, min_workers=2)
    results = cluster.run(jobs.train, options, timeout=90)
    cluster.assert_all_fired()
    assert results.codes == {0: 0, 1: 0}
    assert_same_training(results, plain(**options), uses=None if "kind" in options else EPOCHS)
    assert last_roster(results) == [0, 1]


def test_without_a_replacement_it_gives_up_after_join_timeout(cluster_of):
    cluster = cluster_of(2, faults=[kill(1, step=5)], min_workers=2)
    results = cluster.run(jobs.train, {"membership": {"join_timeout": 1.0}}, timeout=90, check=False)
    cluster.assert_all_fired()
    assert results.codes[0] == EXIT_TOO_FEW_WORKERS
    assert "below min_workers = 2, for join_timeout = 1.0 s" in results.last(0).output
