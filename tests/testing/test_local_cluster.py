"""LocalCluster itself, without TensorFlow: processes, faults, results."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tfdist.errors import ConfigError
from tfdist.observe import emit, reach
from tfdist.testing import ClusterError, LocalCluster, faults

HERE = Path(__file__).resolve()


@pytest.fixture
def cluster_of(light_fork_server, tmp_path):
    clusters = []

    def make(workers, **options):
        clusters.append(LocalCluster(workers, server=light_fork_server, dir=tmp_path, **options))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


def tell_task(factor):
    index = int(os.environ["TF_CONFIG"].split('"index": ')[1].split("}")[0])
    emit("told", f"task {index}", index=index)
    return {"index": index, "array": np.full((2, 3), index * factor), "pair": (1, 2.5)}


def ten_steps(seconds=0.0):
    for step in range(10):
        reach("step_begin", worker=0, step=step, epoch=0, phase="fit")
        time.sleep(seconds)
        emit("step", "a step", step=step)
    return os.environ["TFDIST_INCARNATION_NUMBER"]


def wait_for_ever():
    emit("waiting", "waits")
    while True:
        time.sleep(0.05)


def fail():
    print("about to fail", file=sys.stderr)
    raise ValueError("the reason")


def test_each_worker_has_its_own_task_and_returns_its_value(cluster_of):
    results = cluster_of(3).run(tell_task, 10, timeout=30)
    assert [results.values[task]["index"] for task in range(3)] == [0, 1, 2]
    np.testing.assert_array_equal(results.values[2]["array"], np.full((2, 3), 20))
    assert results.values[0]["pair"] == [1, 2.5]
    assert sorted(event["numbers"]["index"] for event in results.events("told")) == [0, 1, 2]
    assert {event["task"] for event in results.events("told")} == {"worker/0", "worker/1", "worker/2"}


def test_a_function_is_found_by_its_name_too(cluster_of):
    results = cluster_of(1).run("tfdist.launch.environment:free_ports", 2, timeout=30)
    assert len(results.values[0]) == 2


def test_a_killed_worker_is_replaced_and_its_fault_does_not_hit_the_replacement(cluster_of):
    cluster = cluster_of(2, faults=[faults.kill(1, step=4)], restart=True)
    results = cluster.run(ten_steps, timeout=30)
    cluster.assert_all_fired()
    assert [(p.task, p.incarnation, p.code) for p in results.processes if p.task == 1] == [(1, 0, -9), (1, 1, 0)]
    assert results.values == {0: "0", 1: "1"}
    assert [e["numbers"]["step"] for e in results.processes[1].events] == [0, 1, 2, 3]


def test_without_restart_a_killed_worker_stays_away_and_that_is_no_failure(cluster_of):
    results = cluster_of(2, faults=[faults.kill(0, step=0)]).run(ten_steps, timeout=30)
    assert results.codes == {0: -9, 1: 0}
    assert results.values == {1: "0"}


def test_a_fault_that_does_not_happen_is_named(cluster_of):
    cluster = cluster_of(1, faults=[faults.kill(0, step=99)])
    cluster.run(ten_steps, timeout=30)
    with pytest.raises(ClusterError, match=r"1 of 1 faults never happened:\n.*step=99"):
        cluster.assert_all_fired()


def test_a_frozen_worker_goes_on_when_its_time_is_over(cluster_of):
    cluster = cluster_of(1, faults=[faults.freeze(0, step=3, seconds=0.2)])
    results = cluster.run(ten_steps, timeout=30)
    cluster.assert_all_fired()
    assert results.values == {0: "0"}


def test_one_worker_can_thaw_another(cluster_of):
    cluster = cluster_of(2, faults=[faults.freeze(0, step=3), faults.thaw(0, when=1, step=8)])
    assert cluster.run(ten_steps, timeout=30).codes == {0: 0, 1: 0}


def test_an_injected_error_is_the_workers_own_failure(cluster_of):
    cluster = cluster_of(1, faults=[faults.raise_in(0, step=2, message="boom")])
    with pytest.raises(ClusterError, match="InjectedError: boom"):
        cluster.run(ten_steps, timeout=30)


def test_a_slow_and_a_gil_holding_worker_get_to_the_end(cluster_of):
    some = [faults.slow(0, seconds=0.01, point="step_begin"), faults.hold_gil(0, 5, "step_begin", seconds=0.1)]
    cluster = cluster_of(1, faults=some)
    cluster.run(ten_steps, timeout=30)
    cluster.assert_all_fired()


def test_a_failing_worker_is_an_error_with_everybodys_output(cluster_of):
    with pytest.raises(
        ClusterError, match=r"(?s)worker 0 .* ended with exit code 1 .*about to fail.*ValueError: the reason"
    ):
        cluster_of(1).run(fail, timeout=30)


def test_without_check_a_failure_is_a_result(cluster_of):
    results = cluster_of(1).run(fail, timeout=30, check=False)
    assert results.codes == {0: 1}
    assert "ValueError: the reason" in results.last(0).output


def test_a_wait_that_is_over_shows_where_the_workers_are(cluster_of):
    with pytest.raises(ClusterError, match=r"(?s)waited 1 s for the end of worker 0 .*in wait_for_ever"):
        cluster_of(1).run(wait_for_ever, timeout=1)


def test_workers_can_be_started_frozen_thawed_terminated_and_killed_by_hand(cluster_of):
    cluster = cluster_of(1)
    cluster.start_worker(0, wait_for_ever)
    cluster.start_worker(2)  # a joiner, with an index that TF_CONFIG did not list before
    cluster.wait_for_event("waiting", 30, count=2)
    cluster.freeze(0)
    pid = cluster.result(0).pid
    cluster.wait_until(lambda: " T " in Path(f"/proc/{pid}/stat").read_text(), "worker 0 is frozen", 10)
    cluster.thaw(0)
    cluster.kill(0)
    cluster.terminate(2)
    assert cluster.wait(30).codes == {0: -9, 2: -15}


def test_leaving_the_cluster_kills_what_still_runs(cluster_of):
    with cluster_of(1) as cluster:
        pid = cluster.start_worker(0, wait_for_ever).forked.pid
    assert not Path(f"/proc/{pid}").exists()


def test_a_script_runs_as_main_with_its_arguments(cluster_of, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, sys.argv[1:], sys.path[0])\nsys.exit(3)\n")
    results = cluster_of(1).run(script, "--epochs", 2, timeout=30, check=False)
    assert results.last(0).output == f"__main__ ['--epochs', '2'] {tmp_path}"
    assert results.codes == {0: 3}


def test_a_function_that_no_other_process_could_find_is_refused(cluster_of):
    with pytest.raises(ConfigError, match="must be a function at the top level of a file"):
        cluster_of(1).run(lambda: None)


def test_a_value_that_is_neither_json_nor_arrays_fails_in_the_worker(cluster_of):
    with pytest.raises(ClusterError, match="returned a set"):
        cluster_of(1).run(return_set, timeout=30)


def return_set():
    return {1, 2}
