"""An error of the user's own stops the job everywhere; a wish to stop, too, at one step."""

import pytest

from tests.strategies import jobs
from tests.strategies.checks import assert_same_bits, assert_same_training, ends
from tests.strategies.models import STEPS
from tfdist.errors import EXIT_PEER_FAILED, EXIT_SCRIPT_FAILED
from tfdist.testing.faults import raise_in


@pytest.mark.parametrize("point", ["step_begin", "call_end"], ids=["in a step", "between calls"])
def test_all_stop_with_the_traceback_of_the_worker_that_failed(cluster_of, point):
    fault = raise_in(1, step=6, message="a bad shape") if point == "step_begin" else raise_in(1, point=point, nth=1)
    cluster = cluster_of(3, faults=[fault])
    results = cluster.run(jobs.train, {"script": point == "call_end"}, timeout=60, check=False)
    cluster.assert_all_fired()
    assert results.codes == {0: EXIT_PEER_FAILED, 1: EXIT_SCRIPT_FAILED, 2: EXIT_PEER_FAILED}
    for worker in (0, 2):
        output = results.last(worker).output
        assert "PeerFailedError: worker/1 failed" in output
        assert "InjectedError" in output and "in _act" in output  # down to the line that raised it


@pytest.mark.parametrize("batches", [11, 2 * STEPS], ids=["within an epoch", "after its last batch"])
def test_all_stop_at_the_step_at_which_one_worker_wants_to(cluster_of, plain, batches):
    results = cluster_of(3).run(jobs.train, {"stop": [1, batches]}, timeout=60)
    assert results.codes == {0: 0, 1: 0, 2: 0}
    assert {value["iterations"] for value in results.values.values()} == {batches}
    assert_same_bits(results)
    assert_same_training(results, plain(stop=[None, batches]))


@pytest.mark.parametrize("how", ["between", "in a callback"])
def test_a_worker_that_ends_its_own_script_early_ends_it_for_itself_only(cluster_of, how):
    """Its metric is an array, too: what History holds need not be numbers."""
    results = cluster_of(3).run(jobs.leave_early, how, timeout=60)
    assert results.codes == {0: 0, 1: 0, 2: 0}
    assert {worker: value["iterations"] for worker, value in ends(results).items()} == {0: 16, 2: 16}
