"""Stock callbacks that write files: one writer at a time, and the next one goes on where the last one was."""

import csv

from tests.strategies import jobs
from tests.strategies.checks import assert_same_bits
from tests.strategies.models import EPOCHS, STEPS
from tfdist.testing.faults import freeze, kill


def epochs_of(path):
    with open(path) as file:
        return [int(row["epoch"]) for row in csv.DictReader(file)]


def test_the_log_is_whole_when_the_chief_dies(cluster_of, tmp_path):
    path = tmp_path / "log.csv"
    cluster = cluster_of(3, faults=[kill(0, step=2 * STEPS + 3)])
    cluster.run(jobs.log_to_csv, str(path), {}, timeout=60)
    cluster.assert_all_fired()
    assert epochs_of(path) == [0, 1, 2, 3, 4, 5]


def test_the_log_is_whole_when_the_chief_freezes_and_comes_back(cluster_of, tmp_path):
    path = tmp_path / "log.csv"
    cluster = cluster_of(2, faults=[freeze(0, step=STEPS + 3, seconds=3.0)])
    results = cluster.run(jobs.log_to_csv, str(path), {str(4 * STEPS + 2): 2}, timeout=60)
    cluster.assert_all_fired()
    assert results.codes == {0: 0, 1: 0}
    assert epochs_of(path) == [0, 1, 2, 3, 4, 5]


def test_all_go_on_from_what_backup_and_restore_finds_on_the_chief(cluster_of, tmp_path):
    directory = str(tmp_path / "backup")
    cluster_of(2).run(jobs.back_up, directory, EPOCHS - 1, timeout=60)
    results = cluster_of(2).run(jobs.back_up, directory, EPOCHS, timeout=60)
    assert sorted(results.values) == [0, 1]
    assert_same_bits(results)
    for value in results.values.values():
        assert value["epoch"] == [EPOCHS - 1]
        assert value["iterations"] == EPOCHS * STEPS


def test_only_the_chief_of_the_moment_writes_for_tensorboard(cluster_of, tmp_path):
    cluster = cluster_of(3, faults=[kill(0, step=STEPS + 3)])
    results = cluster.run(jobs.log_to_tensorboard, str(tmp_path / "board"), timeout=60)
    cluster.assert_all_fired()
    assert {worker: value["chief"] for worker, value in results.values.items()} == {1: True, 2: False}
    written = {path.relative_to(tmp_path / "board").parts[0] for path in (tmp_path / "board").rglob("*tfevents*")}
    assert written == {"worker-0", "worker-1"}
