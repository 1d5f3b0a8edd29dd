"""One member has committed a step when it fails for the others: whatever becomes of it, the step counts once."""

import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_training
from tests.strategies.models import EPOCHS
from tests.strategies.mutations import STEP
from tests.strategies.test_loss import last_roster
from tfdist.testing.faults import freeze, kill

ALONE = {"mutate": "only worker 1 commits"}


@pytest.mark.parametrize("options", [{}, {"kind": "accumulation"}], ids=["the witness", "accumulation"])
def test_the_others_receive_its_state(cluster_of, plain, options):
    results = cluster_of(3).run(jobs.train, {**options, **ALONE}, timeout=90)
    assert_same_training(results, plain(**options), uses=None if options else EPOCHS)
    received = {e["task"] for e in results.events("formation") if e["numbers"]["transferred"] > 0}
    assert received == {"worker/0", "worker/2"}


def test_it_dies_and_the_others_do_the_step_again(cluster_of, plain):
    cluster = cluster_of(3, faults=[kill(1, step=STEP, point="step_end")])
    results = cluster.run(jobs.train, ALONE, timeout=90)
    cluster.assert_all_fired()
    assert_same_training(results, plain(), uses=EPOCHS)
    assert last_roster(results) == [0, 2]


def test_it_freezes_and_gives_up_its_step_when_it_comes_back(cluster_of, plain):
    cluster = cluster_of(3, faults=[freeze(1, step=STEP, point="step_end", seconds=3.0)])
    results = cluster.run(jobs.train, {**ALONE, "wait": {"12": 3}}, timeout=90)
    cluster.assert_all_fired()
    assert_same_training(results, plain(), uses=EPOCHS)
    assert last_roster(results) == [0, 1, 2]
