"""The decisions about workers that end, as tables."""

import signal

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.supervise import RestartPolicy, TaskState, after_exit, describe_exit, run_end, stopped_code

POLICY = RestartPolicy(restarts=3, min_workers=2, first_delay=1.0, longest_delay=3.0, calm=60.0)


def running(index=0, since=0.0, **fields):
    return TaskState(index, phase="running", since=since, **fields)


@pytest.mark.parametrize(
    ("code", "phase", "said"),
    [
        (0, "done", "worker 0 is done"),
        (-9, "waiting", "was killed by SIGKILL; it is replaced now (replacement 1 of 3)"),
        (-11, "waiting", "was killed by SIGSEGV"),
        (75, "waiting", "ended with exit code 75 (preempted"),
        (1, "failed", "ended with exit code 1"),
        (3, "failed", "ended with exit code 3, which is a failure"),
        (76, "failed", "too few workers"),
        (77, "failed", "another worker failed"),
        (78, "failed", "refused configuration"),
        (79, "failed", "state lost"),
    ],
)
def test_the_exit_code_decides_what_becomes_of_a_task(code, phase, said):
    task, reason = after_exit(10.0, running(), code, POLICY)
    assert (task.phase, task.exit_code) == (phase, code)
    assert said in reason


def test_replacements_in_a_row_come_later_and_later_until_they_are_used_up():
    task, delays = running(), []
    for _ in range(3):
        task, reason = after_exit(100.0, task, -9, POLICY)
        delays.append(task.start_at - 100.0)
        task = running(since=99.0, restarts=task.restarts, row=task.row)
    assert delays == [0.0, 1.0, 2.0]
    task, reason = after_exit(100.0, task, -9, POLICY)
    assert task.phase == "gone"
    assert "was replaced 3 times already: it stays away" in reason


def test_no_delay_is_longer_than_the_longest():
    task, _ = after_exit(100.0, running(since=99.0, row=30), -9, POLICY)
    assert task.start_at == 103.0


def test_a_process_that_ran_calmly_starts_the_row_anew():
    task, _ = after_exit(160.0, running(since=100.0, restarts=1, row=2), -9, POLICY)
    assert (task.start_at, task.row) == (160.0, 1)


def done(index):
    return TaskState(index, phase="done", exit_code=0)


def gone(index):
    return TaskState(index, phase="gone", exit_code=-9)


def failed(index, code, since=0.0):
    return TaskState(index, phase="failed", exit_code=code, since=since)


@pytest.mark.parametrize(
    ("tasks", "code"),
    [
        ([done(0), done(1)], 0),
        ([done(0), running(1)], None),
        ([done(0), TaskState(1)], None),  # waiting to be replaced
        ([done(0), done(1), gone(2)], 0),
        ([running(0), running(1), gone(2)], None),
        ([running(0), gone(1), gone(2)], 76),  # one left, two needed
        ([gone(0), gone(1), gone(2)], 76),
        ([running(0), failed(1, 1)], 1),
        ([failed(0, 77, since=1.0), failed(1, 3, since=2.0)], 3),  # the first only echoed the second
        ([failed(0, 77), running(1)], 77),
        ([failed(0, 79, since=2.0), failed(1, 1, since=1.0)], 1),  # the first in time
    ],
)
def test_when_the_run_is_over_and_how(tasks, code):
    assert run_end(tasks, POLICY)[0] == code


@pytest.mark.parametrize(
    ("number", "codes", "expected"),
    [
        (signal.SIGINT, [0, 75], 130),
        (signal.SIGTERM, [75, 75], 75),  # all saved their state: start again
        (signal.SIGTERM, [0, 75], 75),
        (signal.SIGTERM, [75, -9], 143),
        (signal.SIGTERM, [-15, -15], 143),
    ],
)
def test_the_code_of_a_stopped_run(number, codes, expected):
    assert stopped_code(number, codes) == expected


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"restarts": -1}, "restarts = -1"),
        ({"min_workers": 0}, "min_workers = 0"),
        ({"first_delay": 9.0, "longest_delay": 3.0}, "first_delay = 9.0"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(fields, said):
    with pytest.raises(ConfigError, match=said):
        RestartPolicy(**fields)


def test_exits_are_described_in_words():
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-63) == "was killed by signal 63"
    assert describe_exit(5) == "ended with exit code 5"
