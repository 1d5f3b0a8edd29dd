"""A whole job is lost and started again, with another number of workers or another strategy."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.resuming import jobs
from tests.resuming.checks import assert_close
from tfdist.checkpoint.store import CheckpointStore
from tfdist.testing.faults import kill, terminate

# Dropout depends on how a batch is divided.
OPTIONS: dict[str, Any] = {"dropout": False, "checkpoint": {"if_busy": "wait"}}


def run_job(cluster_of, workers, directory, faults=(), check=False, **options):
    cluster = cluster_of(workers, faults=list(faults))
    given = {**OPTIONS, "directory": str(directory), **options}
    results = cluster.run(jobs.train, given, timeout=120, check=check)
    cluster.assert_all_fired()
    return results


def steps_of(directory):
    return [manifest.step for manifest in CheckpointStore(directory).list()]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_saved_with_three_workers_and_resumed_with_others(cluster_of, uninterrupted, tmp_path, workers):
    directory = tmp_path / "ckpt"
    all_at_once = [kill(task, step=14) for task in range(3)]
    run_job(cluster_of, 3, directory, all_at_once, strategy="elastic")
    assert steps_of(directory), "nothing was saved before the kill"
    (newest,) = [m for m in CheckpointStore(directory).list() if m.step == max(steps_of(directory))]
    assert newest.parts == 3
    results = run_job(cluster_of, workers, directory, strategy="elastic", check=True)
    assert sorted(results.values) == list(range(workers))
    for value in results.values.values():
        assert_close(value, uninterrupted(**OPTIONS))
    assert {event["numbers"]["step"] for event in results.events("resumed")} == {newest.step}


STRATEGIES = {
    "mirrored to elastic": ("mirrored", 1, "elastic", 2),
    "elastic to mirrored": ("elastic", 2, "mirrored", 1),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_saved_under_one_strategy_and_resumed_under_another(cluster_of, uninterrupted, tmp_path, name):
    before, many, after, few = STRATEGIES[name]
    directory = tmp_path / "ckpt"
    run_job(cluster_of, many, directory, [kill(task, step=14) for task in range(many)], strategy=before)
    assert steps_of(directory)
    results = run_job(cluster_of, few, directory, strategy=after, check=True)
    for value in results.values.values():
        assert_close(value, uninterrupted(**OPTIONS))
    assert results.events("resumed")


def test_a_lost_worker_is_survived_without_reading_the_checkpoint(cluster_of, uninterrupted, tmp_path):
    directory = tmp_path / "ckpt"
    results = run_job(cluster_of, 3, directory, [kill(1, step=14)], strategy="elastic", check=True)
    assert sorted(results.values) == [0, 2]
    for value in results.values.values():
        assert_close(value, uninterrupted(**OPTIONS))
    assert not results.events("resumed")
    assert max(steps_of(directory)) == 30


def test_a_script_of_two_fits_resumes_in_the_second(cluster_of, uninterrupted, tmp_path):
    directory, options = tmp_path / "ckpt", {"fits": 2, "epochs": 1}
    run_job(cluster_of, 2, directory, [kill(task, step=15) for task in range(2)], strategy="elastic", **options)
    results = run_job(cluster_of, 2, directory, strategy="elastic", check=True, **options)
    for value in results.values.values():
        assert_close(value, uninterrupted(**{**OPTIONS, **options}))
        assert all(step >= 2 for _, step in value["batches"])  # steps 12 to 19 are batches 2 to 9 of the second fit
    assert len(results.events("skipped")) == 2


def test_a_job_that_is_preempted_as_a_whole_loses_no_step(cluster_of, uninterrupted, tmp_path):
    directory = tmp_path / "ckpt"
    faults = [terminate(task, step=14) for task in range(3)]
    results = run_job(cluster_of, 3, directory, faults, strategy="elastic", save="epoch", preemptible=True)
    assert set(results.codes.values()) == {75}
    last = max(steps_of(directory))
    assert last >= 14, str(results)
    results = run_job(cluster_of, 2, directory, strategy="elastic", save="epoch", check=True)
    for value in results.values.values():
        assert_close(value, uninterrupted(**OPTIONS))
        assert value["batches"][0] == [last // 10, last % 10]


def test_one_that_is_preempted_in_validation_hands_over(cluster_of, uninterrupted, tmp_path):
    fault = terminate(1, point="validation_step", phase="validation", nth=4)
    results = run_job(cluster_of, 3, tmp_path / "ckpt", [fault], strategy="elastic", preemptible=True, validation=True)
    assert results.codes == {0: 0, 1: 75, 2: 0}
    for value in results.values.values():
        assert_close(value, uninterrupted(**OPTIONS, validation=True))


def test_a_job_that_is_preempted_in_validation_does_the_validation_again(cluster_of, uninterrupted, tmp_path):
    directory = tmp_path / "ckpt"
    faults = [terminate(task, point="validation_step", phase="validation", nth=4) for task in range(2)]
    options = {"strategy": "elastic", "validation": True, "save": "epoch"}
    results = run_job(cluster_of, 2, directory, faults, preemptible=True, **options)
    assert results.codes == {0: 75, 1: 75}
    assert max(steps_of(directory)) == 20
    results = run_job(cluster_of, 3, directory, check=True, **options)
    for value in results.values.values():
        assert_close(value, uninterrupted(**OPTIONS, validation=True))
        assert value["batches"][0] == [2, 0]


def test_the_same_run_goes_on_from_its_checkpoint_when_all_of_its_members_are_gone(cluster_of, uninterrupted, tmp_path):
    """The store of the run still knows them: it is not refused as lost."""
    directory, url = tmp_path / "ckpt", f"sqlite:///{tmp_path}/store.db"
    for number, faults in enumerate([[kill(0, step=14), kill(1, step=14)], []]):
        cluster = cluster_of(2, faults=faults, store=url, run_id="r1")
        given = {**OPTIONS, "directory": str(directory), "strategy": "elastic"}
        results = cluster.run(jobs.train, given, timeout=120, check=number == 1)
        cluster.assert_all_fired()
    for value in results.values.values():
        assert_close(value, uninterrupted(**OPTIONS))
    assert os.listdir(directory)
