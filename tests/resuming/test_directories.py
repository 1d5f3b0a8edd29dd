"""What a directory may hold, and what may happen to it, seen from `fit`."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.resuming import jobs
from tests.resuming.checks import assert_same_bits
from tfdist.checkpoint.layout import step_name
from tfdist.checkpoint.store import CheckpointStore
from tfdist.errors import EXIT_CONFIG, EXIT_SCRIPT_FAILED, EXIT_STATE_LOST
from tfdist.testing.faults import freeze, kill

WAIT: dict[str, Any] = {"checkpoint": {"if_busy": "wait"}}


@pytest.fixture
def job(cluster_of, tmp_path):
    """job(**options): the results of a process that trains with checkpoints in one directory."""

    def run(faults=(), **options):
        cluster = cluster_of(1, faults=list(faults))
        given = {**WAIT, "directory": str(tmp_path / "ckpt"), **options}
        results = cluster.run(jobs.train, given, timeout=60, check=False)
        cluster.assert_all_fired()
        return results

    return run


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "ckpt")


def steps_of(store):
    return [manifest.step for manifest in store.list()]


def test_a_checkpoint_of_another_model_is_refused_with_the_first_leaf_and_both_shapes(job):
    job([kill(0, step=14)])
    results = job(sizes=[9])
    assert results.codes == {0: EXIT_CONFIG}
    assert "leaf sequential/dense/kernel has shape (4, 8) (float64) there" in results.last(0).output
    assert "with shape (4, 9)" in results.last(0).output


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(job, store, tmp_path, uninterrupted):
    job([kill(0, step=14)])
    newest = max(steps_of(store))
    chunk = max((tmp_path / "ckpt" / step_name(newest)).rglob("0.0"), key=lambda path: path.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.write_bytes(data)
    results = job()
    assert results.codes == {0: 0}
    assert_same_bits(results.values[0], uninterrupted(**WAIT))
    (event,) = results.events("resumed")
    assert event["numbers"]["step"] < newest
    assert f"{step_name(newest)} is not used" in results.last(0).output
    assert any(step_name(newest) in path.name for path in (tmp_path / "ckpt" / "quarantine").iterdir())


def test_with_nothing_but_damaged_ones_nobody_starts_from_scratch(job, tmp_path):
    job([kill(0, step=14)])
    for path in (tmp_path / "ckpt").rglob("manifest.json"):
        path.write_bytes(path.read_bytes()[:-40])
    assert job().codes == {0: EXIT_STATE_LOST}


def test_more_epochs_go_on_from_the_end(job, uninterrupted):
    job()
    results = job(epochs=5)
    assert results.codes == {0: 0}
    expected = uninterrupted(**WAIT, epochs=5)
    assert_same_bits(results.values[0], expected)
    assert len(results.values[0]["batches"]) == 20


def test_a_training_that_is_complete_is_not_done_again(job, uninterrupted):
    job()
    results = job()
    assert results.codes == {0: 0}
    assert results.values[0]["calls"] == uninterrupted(**WAIT)["calls"]
    assert results.values[0]["batches"] == []


def test_resume_false_starts_from_scratch_and_keeps_what_was_there(job, store, tmp_path, uninterrupted):
    job([kill(0, step=14)])
    results = job(checkpoint={"resume": False, "if_busy": "wait"})
    assert results.codes == {0: 0}, str(results)
    assert not results.events("resumed")
    assert_same_bits(results.values[0], uninterrupted(**WAIT))
    assert len(results.values[0]["batches"]) == 30
    assert len(list((tmp_path / "ckpt" / "quarantine").iterdir())) == 3


def test_resume_from_a_step_of_ones_choice(job, store, uninterrupted):
    job([kill(0, step=14)])
    first = min(steps_of(store))
    results = job(checkpoint={"resume": first, "if_busy": "wait"})
    assert [event["numbers"]["step"] for event in results.events("resumed")] == [first]
    assert_same_bits(results.values[0], uninterrupted(**WAIT))


def test_a_second_job_is_refused_naming_the_first(cluster_of, job, tmp_path):
    """The first one is frozen: it lives, and holds its claim."""
    first = cluster_of(1, faults=[freeze(0, step=14)])
    process = first.start_worker(0, jobs.train, {**WAIT, "directory": str(tmp_path / "ckpt")})
    first.wait_until(lambda: bool(first.fired()), "the first one is frozen")
    results = job()
    assert results.codes == {0: EXIT_CONFIG}
    assert (
        f"pid {process.forked.pid}" in results.last(0).output
        and "is written to by another job" in results.last(0).output
    )
    first.kill(0)
    assert job().codes == {0: 0}  # and takes over at once when the first one is gone


def test_saves_that_fail_do_not_stop_the_training_and_are_an_error_at_its_end(cluster_of, tmp_path):
    directory = tmp_path / "ckpt"
    cluster = cluster_of(1, faults=[freeze(0, step=2)])
    cluster.start_worker(0, jobs.train, {**WAIT, "directory": str(directory)})
    cluster.wait_until(lambda: bool(cluster.fired()), "it is frozen")
    shutil.rmtree(directory)
    cluster.thaw(0)
    results = cluster.wait(60, check=False)
    assert results.codes == {0: EXIT_SCRIPT_FAILED}
    output = results.last(0).output
    assert "the checkpoint of step 3 was not written" in output and "training goes on" in output
    assert "saves to" in output and "failed" in output and "The training itself is complete" in output
    assert not directory.exists()


def test_one_save_that_fails_leaves_the_ones_before_and_after(cluster_of, store, tmp_path, uninterrupted):
    """A file lies where the folder of a step is to be."""
    cluster = cluster_of(1, faults=[freeze(0, step=2)])
    keep_all = {"checkpoint": {"if_busy": "wait", "max_to_keep": None}}
    cluster.start_worker(0, jobs.train, {**keep_all, "directory": str(tmp_path / "ckpt")})
    cluster.wait_until(lambda: bool(cluster.fired()), "it is frozen")
    (tmp_path / "ckpt" / step_name(6)).write_text("in the way")
    cluster.thaw(0)
    results = cluster.wait(60)
    assert_same_bits(results.values[0], uninterrupted(**WAIT))
    assert "step 6 was not written" in results.last(0).output
    assert {3, 9, 30} <= set(steps_of(store))


def test_after_resume_false_the_next_start_goes_on_from_what_that_one_saved(job, store, uninterrupted):
    job([kill(0, step=14)])
    job([kill(0, step=2)], checkpoint={"resume": False, "if_busy": "wait"})
    assert steps_of(store) == []
    results = job()
    assert results.codes == {0: 0}
    assert not results.events("resumed")
    assert_same_bits(results.values[0], uninterrupted(**WAIT))


def test_a_training_that_stops_at_a_saved_step_is_complete_all_the_same(job, store):
    """Step 6 is saved, and the end of the call in its middle of an epoch finds it there."""
    results = job(stop=6, fits=2)
    assert results.codes == {0: 0}
    assert "was not written" not in results.last(0).output
    assert [manifest.step for manifest in store.list() if manifest.facts.get("ended") == 1] == [6]
    again = job(stop=100, fits=2)
    assert again.values[0]["calls"][0] == results.values[0]["calls"][0]


def test_two_of_them_in_one_fit_are_refused(job):
    results = job(twice=True)
    assert results.codes == {0: EXIT_CONFIG}
    assert "2 x AsyncCheckpoint" in results.last(0).output
