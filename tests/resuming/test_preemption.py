"""A process without a tfdist strategy is told to go: it saves its last step, exits with 75, and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.resuming import jobs
from tests.resuming.checks import assert_same_bits
from tfdist.checkpoint.store import CheckpointStore
from tfdist.errors import EXIT_PREEMPTED
from tfdist.testing.faults import freeze, terminate

OPTIONS: dict[str, Any] = {"save": "epoch", "preemptible": True, "validation": True}
PLAIN: dict[str, Any] = {"save": "epoch", "validation": True}


@pytest.mark.parametrize("order", ["first", "last"])
def test_sigterm_in_training(cluster_of, uninterrupted, tmp_path, order):
    directory = tmp_path / "ckpt"
    cluster = cluster_of(1, faults=[terminate(0, step=14)], restart=True)
    results = cluster.run(jobs.train, {**OPTIONS, "order": order, "directory": str(directory)}, timeout=60)
    cluster.assert_all_fired()
    assert [process.code for process in results.processes] == [EXIT_PREEMPTED, 0]
    (event,) = results.events("resumed")
    assert event["numbers"]["step"] in (14, 15)
    assert_same_bits(results.values[0], uninterrupted(**PLAIN))
    assert len(results.values[0]["batches"]) == 30 - event["numbers"]["step"]


def test_sigterm_in_validation(cluster_of, uninterrupted, tmp_path):
    """The epoch's training is over, and its logs are not told yet: they are right after the resume, too."""
    fault = terminate(0, point="validation_step", nth=4)  # the second batch of the second epoch's validation
    cluster = cluster_of(1, faults=[fault], restart=True)
    results = cluster.run(jobs.train, {**OPTIONS, "directory": str(tmp_path / "ckpt")}, timeout=60)
    cluster.assert_all_fired()
    assert [process.code for process in results.processes] == [EXIT_PREEMPTED, 0]
    assert [event["numbers"]["step"] for event in results.events("resumed")] == [20]
    assert_same_bits(results.values[0], uninterrupted(**PLAIN))
    assert len(results.values[0]["batches"]) == 10


def test_a_notice_in_a_file(cluster_of, uninterrupted, tmp_path):
    notice = tmp_path / "notice"
    cluster = cluster_of(1, faults=[freeze(0, step=7)], env={"TFDIST_PREEMPTION": f"file:{notice}"})
    given = {**OPTIONS, "directory": str(tmp_path / "ckpt"), "pause": [7, str(notice)]}
    cluster.start_worker(0, jobs.train, given)
    cluster.wait_until(lambda: bool(cluster.fired()), "it is frozen")
    notice.write_text("the machine is needed")
    cluster.thaw(0)
    results = cluster.wait(60, check=False)
    assert results.codes == {0: EXIT_PREEMPTED}
    assert "the machine is needed" in results.last(0).output
    assert [manifest.step for manifest in CheckpointStore(tmp_path / "ckpt").list()] == [8]
    notice.unlink()
    after = cluster_of(1).run(jobs.train, {**OPTIONS, "directory": str(tmp_path / "ckpt")}, timeout=60)
    assert_same_bits(after.values[0], uninterrupted(**PLAIN))
