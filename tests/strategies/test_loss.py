"""Workers are killed or freeze: the others go on in their processes and end as one process would have."""

from typing import Any

import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_training
from tests.strategies.models import EPOCHS, STEPS
from tfdist.errors import EXIT_PREEMPTED
from tfdist.testing.faults import freeze, hold_gil, kill, terminate

LAST = EPOCHS * STEPS - 1

# What happens; with which model; which members the last roster has.
LOSSES: dict[str, Any] = {
    "nothing, momentum": ([], {"kind": "momentum"}, [0, 1, 2]),
    "one after the other, Adam": ([kill(1, step=3), kill(0, step=13)], {"kind": "adam"}, [2]),
    "a kill, AdamW with clipping": ([kill(2, step=12)], {"kind": "adamw"}, [0, 1]),
    # The 3 micro-steps of an update are on both sides of the kill.
    "a kill, gradient accumulation": ([kill(2, step=7)], {"kind": "accumulation"}, [0, 1]),
    "a kill, CNN": ([kill(0, step=5)], {"kind": "cnn", "data": "arrays", "shuffle": False}, [1, 2]),
    "the chief is killed": ([kill(0, step=9)], {}, [1, 2]),
    "two are killed at once": ([kill(0, step=11), kill(2, step=11)], {}, [1]),
    "the last step of an epoch": ([kill(1, step=STEPS - 1)], {}, [0, 2]),
    "the last step of all": ([kill(1, step=LAST)], {}, [0, 2]),
    "validation": ([kill(1, point="validation_step", phase="validation", nth=2)], {"validation": True}, [0, 2]),
    "several steps per execution": ([kill(1, step=6)], {"kind": "momentum", "steps_per_execution": 4}, [0, 2]),
    "plain tf.data": ([kill(1, step=10)], {"data": "tf.data", "shuffle": False}, [0, 2]),
    # The second loss comes when the survivors are about to agree, and when they have just formed their group.
    "a second loss while agreeing": ([kill(1, step=7), kill(2, point="settle", nth=2)], {}, [0]),
    "a second loss while forming": ([kill(1, step=7), kill(2, point="formed", nth=2)], {}, [0]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_survivors_end_as_plain_training_does(cluster_of, plain, name):
    faults, options, left = LOSSES[name]
    cluster = cluster_of(3, faults=faults)
    results = cluster.run(jobs.train, options, timeout=90)
    cluster.assert_all_fired()
    assert sorted(results.values) == left
    assert_same_training(results, plain(**options), uses=None if "kind" in options else EPOCHS)
    assert last_roster(results) == left
    for value in results.values.values():
        assert len(value["batches"]) == len(plain(**options)["batches"])


def last_roster(results):
    """The tasks of the newest roster that somebody formed."""
    newest = max(results.events("formation"), key=lambda event: event["numbers"]["generation"])
    return [int(task.rpartition("/")[2]) for task in newest["numbers"]["members"]]


def test_a_frozen_worker_is_found_by_its_silence_and_returns_when_it_thaws(cluster_of, plain):
    cluster = cluster_of(3, faults=[freeze(1, step=7, seconds=3.0)])
    results = cluster.run(jobs.train, {"wait": {"12": 3}}, timeout=120)
    cluster.assert_all_fired()
    assert results.codes == {0: 0, 1: 0, 2: 0}
    assert_same_training(results, plain(), uses=EPOCHS)
    assert last_roster(results) == [0, 1, 2]
    assert any(event["numbers"]["members"] == ["worker/0", "worker/2"] for event in results.events("formation"))


def test_a_freeze_that_is_shorter_than_the_timeout_changes_nothing(cluster_of, plain):
    cluster = cluster_of(3, faults=[freeze(2, step=7, seconds=0.5)])
    results = cluster.run(jobs.train, {"membership": {"heartbeat_timeout": 4.0}}, timeout=90)
    cluster.assert_all_fired()
    assert_same_training(results, plain(), uses=EPOCHS)
    assert {event["numbers"]["generation"] for event in results.events("formation")} == {1}


def test_a_worker_whose_python_stands_still_is_not_dead(cluster_of, plain):
    cluster = cluster_of(2, faults=[hold_gil(1, step=7, point="step_begin", seconds=2.0)])
    results = cluster.run(jobs.train, {}, timeout=90)
    cluster.assert_all_fired()
    assert_same_training(results, plain(), uses=EPOCHS)
    assert {event["numbers"]["generation"] for event in results.events("formation")} == {1}


def test_without_the_callback_a_loss_is_an_error(cluster_of):
    cluster = cluster_of(3, faults=[kill(1, step=7)])
    results = cluster.run(jobs.train, {"elastic": False}, timeout=90, check=False)
    cluster.assert_all_fired()
    assert results.codes[0] != 0 and results.codes[2] != 0
    outputs = [results.last(worker).output for worker in (0, 2)]
    assert any("MemberLostError: generation 1 cannot go on" in output for output in outputs)


def test_a_worker_that_gets_sigterm_hands_over_and_leaves(cluster_of, plain):
    cluster = cluster_of(3, faults=[terminate(1, step=7)])
    results = cluster.run(jobs.train, {}, timeout=90)
    cluster.assert_all_fired()
    assert results.codes == {0: 0, 1: EXIT_PREEMPTED, 2: 0}
    assert_same_training(results, plain(), uses=EPOCHS)
    (left,) = results.events("left")
    assert left["task"] == "worker/1"
    assert last_roster(results) == [0, 2]
