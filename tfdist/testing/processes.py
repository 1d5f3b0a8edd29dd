"""The processes of a LocalCluster: started, watched, replaced and thawed, by one thread of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist import errors
from tfdist.launch.environment import free_ports, task_environment
from tfdist.launch.fork_server import ForkedProcess, ForkServer, ForkServerError
from tfdist.launch.output import OutputPipe
from tfdist.observe.events import read_events
from tfdist.testing.faults import Fault
from tfdist.testing.results import ProcessResult, load_value

MAX_REPLACEMENTS = 10  # of one task, unless a number is given
_TICK_SECONDS = 0.02  # how soon a thaw that is due, or asked for by a fault, is done

_ENDING_ACTIONS = ("kill", "terminate", "freeze", "slow", "hold_gil")  # the others may remove a worker that is silent


@dataclasses.dataclass(frozen=True)
class Work:
    """What a worker runs: a script (target), or a function through tfdist.testing.call_worker.

    Args:
        target: As of ForkServer.spawn.
        argv: sys.argv, without the result's file.
        result_at: Where in argv the path of the result's file belongs; None for a script, which has no result.
    """

    target: Mapping[str, str]
    argv: Sequence[str]
    result_at: int | None = None


@dataclasses.dataclass(eq=False)
class WorkerProcess:
    """One process of a task."""

    task: int
    incarnation: int
    work: Work
    forked: ForkedProcess
    pipe: OutputPipe
    lines: list[str]
    result: Path
    hit: bool = False  # the test itself did something to it that may end it

    def __str__(self) -> str:
        return f"worker {self.task} (process {self.incarnation}, pid {self.forked.pid})"


class WorkerProcesses:
    """All processes of a cluster. Its methods may be called from any thread.

    Args:
        server: Forks them.
        directory: For their results; must exist.
        shared: The environment that they have in common.
        workers: How many tasks TF_CONFIG lists at first.
        faults: As in LocalCluster; tells which task a fault thaws, and when.
        fired: The file in which faults tell that they happened.
        restart: Whether a process that was killed, or left as preempted, is replaced; a number: how often per task.
    """

    def __init__(
        self,
        server: ForkServer,
        directory: Path,
        shared: Mapping[str, str],
        workers: int,
        faults: Sequence[Fault],
        fired: Path,
        restart: bool | int,
    ) -> None:
        self._server, self._directory, self._shared = server, directory, dict(shared)
        self._faults, self._fired_path = tuple(faults), fired
        self._replacements = MAX_REPLACEMENTS if restart is True else int(restart)
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
        self._all: list[WorkerProcess] = []
        self._exits: queue.SimpleQueue[ForkedProcess] = queue.SimpleQueue()
        self._thaws: list[tuple[float, int]] = []  # (monotonic time, task)
        self._fired_offset = 0
        self._changed = threading.Condition(threading.RLock())
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="tfdist-cluster-watcher", daemon=True)
        self._watcher.start()

    def start(self, task: int, work: Work) -> WorkerProcess:
        """Starts the next process of a task, on a port of its own."""
        with self._changed:
            missing = task + 1 - len(self._addresses)
            if missing > 0:
                self._addresses += [f"127.0.0.1:{port}" for port in free_ports(missing)]
            incarnation = sum(process.task == task for process in self._all)
            if incarnation:
                self._addresses[task] = f"127.0.0.1:{free_ports(1)[0]}"
            result = self._directory / f"result-{task}-{incarnation}.npz"
            argv = list(work.argv)
            if work.result_at is not None:
                argv.insert(work.result_at, str(result))
            lines: list[str] = []
            pipe = OutputPipe([lines.append])
            try:
                forked = self._server.spawn(
                    work.target,
                    argv,
                    env=task_environment(self._shared, self._addresses, task, incarnation),
                    stdout=pipe.write_end,
                    stderr=pipe.write_end,
                    on_exit=self._exits.put,
                )
            finally:
                pipe.started()
            process = WorkerProcess(task, incarnation, work, forked, pipe, lines, result)
            self._all.append(process)
            return process

    def current(self, task: int) -> WorkerProcess:
        """The newest process of a task. Raises KeyError if none was started."""
        with self._changed:
            for process in reversed(self._all):
                if process.task == task:
                    return process
        raise KeyError(f"no process of worker {task} was started")

    def signal(self, task: int, number: int, *, may_end: bool) -> None:
        """Sends the newest process of a task a signal; `may_end` says that its end is no failure then."""
        process = self.current(task)
        process.hit = process.hit or may_end
        process.forked.signal(number)

    def running(self) -> list[WorkerProcess]:
        """Those that have not ended, or have ended and are about to be replaced."""
        with self._changed:
            return [p for p in self._all if p.forked.returncode is None or self._to_replace(p)]

    def unexpected(self) -> list[WorkerProcess]:
        """Those that ended neither well nor by a signal or preemption that the test itself asked for."""
        with self._changed:
            return [p for p in self._all if p.forked.returncode not in (None, 0) and not self._asked_for(p)]

    def wait_until(self, true: Callable[[], bool], what: str, timeout: float) -> bool:
        """Waits until something is true, at most `timeout` seconds; looks when a process ends and every 50 ms."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not true():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.05))
        return True

    def end_all(self, timeout: float = 10.0) -> None:
        """Kills what still runs, and waits for it."""
        self._closed.set()
        self._watcher.join(timeout)
        with self._changed:
            left = [process for process in self._all if process.forked.returncode is None]
        for process in left:
            process.hit = True
            process.forked.signal(signal.SIGKILL, group=True)
        for process in left:
            process.forked.wait(timeout)
        for process in self._all:
            process.pipe.finish()

    def dump_stacks(self, timeout: float = 5.0) -> None:
        """Has every process that still runs print the stacks of all its threads (SIGABRT, so it ends)."""
        left = [process for process in self.running() if process.forked.returncode is None]
        for process in left:
            process.hit = True
            process.forked.signal(signal.SIGCONT)
            process.forked.signal(signal.SIGABRT)
        self.wait_until(lambda: all(p.forked.returncode is not None for p in left), "stacks", timeout)

    def fired(self) -> list[dict[str, Any]]:
        """What the faults that happened told: fault (their number), action, worker, incarnation, facts."""
        try:
            text = self._fired_path.read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def results(self, events: Path) -> list[ProcessResult]:
        """What all processes left so far."""
        happened, _ = read_events(events)
        with self._changed:
            processes = list(self._all)
        found = []
        for process in processes:
            if process.forked.returncode is not None:
                process.pipe.finish()
            value = load_value(process.result) if process.result.exists() else None
            own = [event for event in happened if event["pid"] == process.forked.pid]
            output = "\n".join(process.lines)
            code = process.forked.returncode
            found.append(ProcessResult(process.task, process.incarnation, process.forked.pid, code, value, output, own))
        return found

    def _asked_for(self, process: WorkerProcess) -> bool:
        code = process.forked.returncode
        mine = (process.task, process.incarnation)
        hit = process.hit or any(
            (line["worker"], line["incarnation"]) == mine and line["action"] in _ENDING_ACTIONS for line in self.fired()
        )
        return hit and code in (-signal.SIGKILL, -signal.SIGTERM, errors.EXIT_PREEMPTED)

    def _to_replace(self, process: WorkerProcess) -> bool:
        code = process.forked.returncode
        return (
            not self._closed.is_set()
            and code is not None
            and (code < 0 or code == errors.EXIT_PREEMPTED)
            and process.incarnation < self._replacements
            and self.current(process.task) is process
        )

    def _watch(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                self._exits.get(timeout=_TICK_SECONDS)
            with self._changed:
                try:
                    for process in [p for p in self._all if self._to_replace(p)]:
                        self.start(process.task, process.work)
                except ForkServerError:
                    self._replacements = 0  # all processes went with the server, which whoever waits will see
                self._changed.notify_all()
            self._thaw()

    def _thaw(self) -> None:
        now = time.monotonic()
        told = self.fired()
        for line in told[self._fired_offset :]:
            fault = self._faults[line["fault"]]
            if fault.action == "freeze" and fault.seconds is not None:
                self._thaws.append((now + fault.seconds, fault.worker))
            elif fault.action == "thaw" and fault.target is not None:
                self._thaws.append((now, fault.target))
        self._fired_offset = len(told)
        for due in [thaw for thaw in self._thaws if thaw[0] <= now]:
            forked = self.current(due[1]).forked
            if forked.returncode is None and not _is_stopped(forked.pid):
                continue  # it tells that it freezes before it does: a thaw that came first would be lost
            self._thaws.remove(due)
            forked.signal(signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True  # gone, or no such file on this system: then it is taken for stopped
    return state == "T"
