"""A worker that is asked to leave for good hands over and exits with 0."""

from tests.strategies import jobs
from tests.strategies.checks import assert_same_training, ends
from tests.strategies.models import EPOCHS
from tests.strategies.test_loss import last_roster
from tfdist.launch.cli import main
from tfdist.testing.faults import slow


def test_a_drained_worker_ends_with_0_and_the_others_go_on(cluster_of, plain, capsys):
    cluster = cluster_of(3, faults=[slow(0, point="step_begin", seconds=0.2)])
    for task in range(3):
        cluster.start_worker(task, jobs.train, {})
    cluster.wait_for_event("formation", count=3)
    where = ["--store", cluster.store, "--run-id", cluster.run_id]
    assert main(["drain", *where, "worker/1"]) == 0
    assert "worker/1 is asked to leave" in capsys.readouterr().out
    results = cluster.wait(60)
    assert results.codes == {0: 0, 1: 0, 2: 0}
    assert [event["task"] for event in results.events("left")] == ["worker/1"]
    assert sorted(ends(results)) == [0, 2]
    assert_same_training(results, plain(), uses=EPOCHS)
    assert last_roster(results) == [0, 2]
