"""What a worker's end means, and when the whole run is over. Pure decisions: no clock, no processes.

A worker that was killed, or left with exit code 75 (preempted), is replaced; 0 is a worker that is done; any other code
is a failure, which ends the run.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from typing import Literal

from tfdist import errors

Phase = Literal["running", "waiting", "done", "gone", "failed"]


@dataclasses.dataclass(frozen=True)
class RestartPolicy:
    """How often and how fast workers are replaced.

    Args:
        restarts: How many times each task may be replaced.
        min_workers: With fewer tasks than this left (done ones count), the run fails.
        first_delay: Seconds before the second replacement in a row; the first comes at once.
        longest_delay: Seconds that a delay, which doubles each time, does not exceed.
        calm: A process that ran this many seconds starts the row anew.
    """

    restarts: int = 10
    min_workers: int = 1
    first_delay: float = 1.0
    longest_delay: float = 30.0
    calm: float = 60.0

    def __post_init__(self) -> None:
        if self.restarts < 0:
            raise errors.ConfigError("restarts", self.restarts, "must not be negative", "0 replaces nobody.")
        if self.min_workers < 1:
            raise errors.ConfigError("min_workers", self.min_workers, "must be at least 1")
        if not 0 < self.first_delay <= self.longest_delay:
            rule = f"must be above 0 s and at most longest_delay, which is {self.longest_delay} s"
            raise errors.ConfigError("first_delay", self.first_delay, rule)


@dataclasses.dataclass(frozen=True)
class TaskState:
    """One task of the run. Times are seconds of one monotonic clock."""

    index: int
    phase: Phase = "waiting"
    since: float = 0.0  # when it entered the phase
    start_at: float = 0.0  # when waiting: the time to start it
    restarts: int = 0
    row: int = 0  # short-lived processes in a row
    exit_code: int | None = None  # of its last process; minus the signal's number


def describe_exit(code: int) -> str:
    """Such as "was killed by SIGKILL" or "ended with exit code 79 (state lost: ...)"."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    meaning = errors.EXIT_CODES.get(code)
    return f"ended with exit code {code}" + (f" ({meaning})" if meaning else "")


def started(now: float, task: TaskState) -> TaskState:
    return dataclasses.replace(task, phase="running", since=now)


def after_exit(now: float, task: TaskState, code: int, policy: RestartPolicy) -> tuple[TaskState, str]:
    """Decides what becomes of a task whose process has ended.

    Returns:
        Its new state (done, failed, gone for good, or waiting to be started again), and the reason in words.
    """
    told = f"worker {task.index} {describe_exit(code)}"
    ended = dataclasses.replace(task, since=now, exit_code=code)
    if code == 0:
        return dataclasses.replace(ended, phase="done"), f"worker {task.index} is done"
    if code > 0 and code != errors.EXIT_PREEMPTED:
        return dataclasses.replace(ended, phase="failed"), f"{told}, which is a failure"
    if task.restarts >= policy.restarts:
        return dataclasses.replace(
            ended, phase="gone"
        ), f"{told} and was replaced {policy.restarts} times already: it stays away"
    row = 0 if now - task.since >= policy.calm else task.row
    delay = 0.0 if row == 0 else min(policy.longest_delay, policy.first_delay * 2.0 ** (row - 1))
    waiting = dataclasses.replace(ended, phase="waiting", start_at=now + delay, restarts=task.restarts + 1, row=row + 1)
    when = "now" if delay == 0 else f"in {delay:g} s"
    return waiting, f"{told}; it is replaced {when} (replacement {waiting.restarts} of {policy.restarts})"


def run_end(tasks: Sequence[TaskState], policy: RestartPolicy) -> tuple[int | None, str]:
    """Decides whether the run is over.

    Returns:
        Its exit code, or None while it goes on, and the reason. Zero only if every task that did not stay away for good
        is done. Of several failures the first counts that is not "another worker failed".
    """
    failed = sorted((t for t in tasks if t.phase == "failed"), key=lambda t: (_is_echo(t), t.since))
    if failed:
        code = failed[0].exit_code or 1
        return code, f"worker {failed[0].index} {describe_exit(code)}: the run ends"
    gone = [t for t in tasks if t.phase == "gone"]
    left = len(tasks) - len(gone)
    if left < policy.min_workers or left == 0:
        return (
            errors.EXIT_TOO_FEW_WORKERS,
            f"{left} of {len(tasks)} workers are left, fewer than {max(1, policy.min_workers)}",
        )
    if all(t.phase in ("done", "gone") for t in tasks):
        return 0, f"all {left} workers are done" + (f", {len(gone)} stayed away" if gone else "")
    return None, f"{left} of {len(tasks)} workers are left"


def _is_echo(task: TaskState) -> bool:
    return task.exit_code == errors.EXIT_PEER_FAILED


def stopped_code(number: int, codes: Sequence[int]) -> int:
    """The exit code of a run that was stopped by a signal.

    Args:
        number: SIGINT or SIGTERM.
        codes: The exit codes of all tasks' last processes.

    Returns:
        "Preempted" if all workers left in order after SIGTERM (done, or with their state saved), else 128 + the signal.
    """
    if number == signal.SIGTERM and all(code in (0, errors.EXIT_PREEMPTED) for code in codes):
        return errors.EXIT_PREEMPTED
    return 128 + number
