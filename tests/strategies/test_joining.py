"""Replacements, returns, and what may go wrong while somebody joins."""

from typing import Any

import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_training
from tests.strategies.models import EPOCHS
from tests.strategies.test_loss import last_roster
from tfdist.errors import EXIT_PREEMPTED
from tfdist.testing.faults import kill, terminate

ALL_FROM_12 = {"wait": {"12": 3}}  # at step 12, wait until all three are there

JOINS: dict[str, Any] = {
    "a replacement, Adam": ([kill(1, step=5)], {"kind": "adam"}),
    "a replacement, several steps per execution": ([kill(1, step=5)], {"kind": "adam", "steps_per_execution": 4}),
    "a replacement, validation": ([kill(1, step=5)], {"validation": True}),
    "a replacement of the chief, tf.data": ([kill(0, step=5)], {"data": "tf.data", "shuffle": False}),
    "two replacements, accumulation": ([kill(1, step=5), kill(2, step=5)], {"kind": "accumulation"}),
    "a preempted worker is replaced": ([terminate(1, step=5)], {}),
    "the joiner dies in the transfer": ([kill(1, step=5), kill(1, point="transfer_chunk", incarnation=1)], {}),
    "the source dies in the transfer": ([kill(1, step=5), kill(0, point="transfer_serve")], {}),
    "join and kill in the same step": ([kill(1, step=5), kill(2, point="settle", facts={"why": "a worker joins"})], {}),
    "the joiner dies in its first step": ([kill(1, step=5), kill(1, point="step_begin", incarnation=1)], {}),
}


@pytest.mark.parametrize("name", JOINS)
def test_who_joins_takes_up_where_the_others_are(cluster_of, plain, name):
    faults, options = JOINS[name]
    cluster = cluster_of(3, faults=faults, restart=True)
    results = cluster.run(jobs.train, {**options, **ALL_FROM_12}, timeout=75)
    cluster.assert_all_fired()
    assert results.codes == {0: 0, 1: 0, 2: 0}
    assert_same_training(results, plain(**options), uses=None if "kind" in options else EPOCHS)
    assert last_roster(results) == [0, 1, 2]
    if name == "a preempted worker is replaced":
        assert [p.code for p in results.processes if p.task == 1] == [EXIT_PREEMPTED, 0]


def test_a_worker_beyond_the_first_ones_joins(cluster_of, plain):
    cluster = cluster_of(2)
    for task in (0, 1, 2):
        cluster.start_worker(task, jobs.train, ALL_FROM_12)
    results = cluster.wait(120)
    assert results.codes == {0: 0, 1: 0, 2: 0}
    assert_same_training(results, plain(), uses=EPOCHS)
    assert last_roster(results) == [0, 1, 2]


def test_two_that_join_together_hold_nobody_up(cluster_of, plain):
    """Neither takes the other for one that waits still, and asks for one more change that nobody else wants."""
    cluster = cluster_of(2)
    for task in range(4):
        cluster.start_worker(task, jobs.train, {"wait": {"12": 4}})
    results = cluster.wait(120)
    assert results.codes == dict.fromkeys(range(4), 0)
    assert_same_training(results, plain(), uses=EPOCHS)
    reasons = " ".join(event["message"] for event in results.events("formation"))
    assert "the same members again" not in reasons


@pytest.mark.parametrize("step", [3, 13], ids=["the first fit", "the second fit"])
def test_a_replacement_runs_a_script_of_several_calls_from_the_top(cluster_of, plain, step):
    """evaluate, fit (steps 0 to 7), evaluate, fit (8 to 31): what is over gives its recorded result."""
    options = {"script": True}
    cluster = cluster_of(3, faults=[kill(1, step=step)], restart=True)
    results = cluster.run(jobs.train, {**options, "wait": {"18": 3}}, timeout=75)
    cluster.assert_all_fired()
    assert results.codes == {0: 0, 1: 0, 2: 0}
    assert_same_training(results, plain(**options), uses=EPOCHS + 1)
    assert last_roster(results) == [0, 1, 2]


def test_a_process_that_comes_after_the_end_has_nothing_to_do(cluster_of):
    cluster = cluster_of(2)
    cluster.run(jobs.train, {"epochs": 1}, timeout=90)
    cluster.start_worker(1)
    assert cluster.wait(60).codes == {0: 0, 1: 0}
