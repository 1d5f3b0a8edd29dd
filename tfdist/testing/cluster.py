"""LocalCluster: a cluster of worker processes on this machine, for tests.

def train(epochs):                       # a function at the top level of the test's file
    ...
    return {"weights": model.get_weights()}

def test_a_killed_worker_changes_nothing(tmp_path):
    with LocalCluster(3, dir=tmp_path, faults=[faults.kill(1, step=7)], restart=True) as cluster:
        results = cluster.run(train, 2, timeout=60)
        cluster.assert_all_fired()
    assert results.values[0]["weights"] ...
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist import errors
from tfdist.launch.environment import shared_environment
from tfdist.launch.fork_server import ForkServer
from tfdist.membership.stores import open_store
from tfdist.observe.events import read_events
from tfdist.testing.faults import FAULTS_VARIABLE, FIRED_VARIABLE, Fault, to_json
from tfdist.testing.processes import Work, WorkerProcess, WorkerProcesses
from tfdist.testing.results import ProcessResult, Results

Target = Callable[..., Any] | str | os.PathLike[str]

_shared_server: ForkServer | None = None
_shared_lock = threading.Lock()


def shared_fork_server() -> ForkServer:
    """The fork server that all clusters of this process share; started by the first call, ended with the process."""
    global _shared_server
    with _shared_lock:
        if _shared_server is None:
            _shared_server = ForkServer()
            atexit.register(_shared_server.close)
        return _shared_server


class ClusterError(AssertionError):
    """A worker failed, or something did not happen in time. The text has the output of all workers."""


class LocalCluster:
    """A context manager; leaving it kills what still runs.

    Args:
        workers: How many workers `run` starts, with the task indices 0 to workers - 1.
        faults: What happens to them (tfdist.testing.faults).
        min_workers: Told to the workers.
        max_workers: Told to the workers; None sets no limit.
        env: Added to the environment of the workers.
        dir: For the store, events and results; None makes one, which goes at the end.
        server: The fork server; None is the one that all clusters of this process share.
        restart: Whether a worker that was killed, or left as preempted, is replaced: at most 10 times per task, or as
            often as a number says.
        store: URL; None is a SQLite file in `dir`.
        run_id: Scope of the store's entries; None draws one.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        faults: Sequence[Fault] = (),
        min_workers: int = 1,
        max_workers: int | None = None,
        env: Mapping[str, str] | None = None,
        dir: str | os.PathLike[str] | None = None,
        server: ForkServer | None = None,
        restart: bool | int = False,
        store: str | None = None,
        run_id: str | None = None,
    ) -> None:
        if workers < 1:
            raise errors.ConfigError("workers", workers, "must be at least 1")
        self._workers, self._faults = workers, tuple(faults)
        self._own_directory = dir is None
        # One directory per cluster: two clusters of one test must not read each other's events.
        self.directory = Path(tempfile.mkdtemp(prefix="cluster-", dir=dir))
        shared = shared_environment(
            self.directory, store=store, run_id=run_id, min_workers=min_workers, max_workers=max_workers
        )
        fired = self.directory / "fired.jsonl"
        if self._faults:
            shared |= {FAULTS_VARIABLE: to_json(self._faults), FIRED_VARIABLE: str(fired)}
        shared |= env or {}
        self.store, self.run_id = shared["TFDIST_STORE"], shared["TFDIST_RUN_ID"]
        with contextlib.suppress(errors.TfdistError):
            open_store(self.store)  # a replacement does not make it anew, but may come before the first process has
        self._events = Path(shared["TFDIST_EVENTS"])
        self._processes = WorkerProcesses(
            server or shared_fork_server(), self.directory, shared, workers, self._faults, fired, restart
        )
        self._work: Work | None = None

    def run(self, target: Target, *arguments: Any, timeout: float = 120.0, check: bool = True) -> Results:
        """Starts all workers and waits for them.

        Args:
            target: A function at the top level of a module, its name as "module:function", or the path of a script.
            *arguments: The function's, as JSON can hold them; a script's are text.
            timeout: Seconds for everything.
            check: Whether a worker that fails is an error; one that a fault or the test itself ended is none.

        Raises:
            ClusterError: A worker failed, or they did not end in time.
        """
        for task in range(self._workers):
            self.start_worker(task, target, *arguments)
        return self.wait(timeout, check=check)

    def start_worker(self, task: int, target: Target | None = None, *arguments: Any) -> WorkerProcess:
        """Starts a process of a task; one after `workers` - 1 joins. Without a target it runs what was started last."""
        if target is not None:
            self._work = _work(target, arguments)
        if self._work is None:
            raise errors.ConfigError("target", target, "must be given to the first worker that is started")
        return self._processes.start(task, self._work)

    def kill(self, task: int) -> None:
        """SIGKILL to the newest process of a task."""
        self._processes.signal(task, signal.SIGKILL, may_end=True)

    def terminate(self, task: int) -> None:
        """SIGTERM to the newest process of a task."""
        self._processes.signal(task, signal.SIGTERM, may_end=True)

    def freeze(self, task: int) -> None:
        """SIGSTOP to the newest process of a task."""
        self._processes.signal(task, signal.SIGSTOP, may_end=True)

    def thaw(self, task: int) -> None:
        """SIGCONT to the newest process of a task."""
        self._processes.signal(task, signal.SIGCONT, may_end=False)

    def wait(self, timeout: float = 120.0, *, tasks: Sequence[int] | None = None, check: bool = True) -> Results:
        """Waits until all processes, or those of some tasks, have ended; with `check` not longer once one failed.

        Raises:
            ClusterError: A worker failed (with `check`), or they did not end in time.
        """

        def waited_for() -> list[WorkerProcess]:
            return [process for process in self._processes.running() if tasks is None or process.task in tasks]

        def over() -> bool:
            return not waited_for() or (check and bool(self._processes.unexpected()))

        if not self._processes.wait_until(over, "the workers", timeout):
            left = ", ".join(map(str, waited_for()))
            self._processes.dump_stacks()
            raise ClusterError(f"waited {timeout:g} s for the end of {left}\n\n{self.results()}")
        failed = self._processes.unexpected() if check else []
        if failed:
            # The others may be about to say why: they get a moment, but not the whole timeout.
            self._processes.wait_until(lambda: not waited_for(), "the other workers", min(timeout, 3.0))
            raise ClusterError(f"{', '.join(map(str, failed))} failed\n\n{self.results()}")
        return self.results()

    def wait_until(self, true: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
        """Waits until a function returns true, looking every 50 ms.

        Raises:
            ClusterError: It did not in `timeout` seconds, or a worker failed; names `what` was waited for.
        """
        self._processes.wait_until(lambda: true() or bool(self._processes.unexpected()), what, timeout)
        if not true():
            raise ClusterError(f"waited at most {timeout:g} s until {what}\n\n{self.results()}")

    def running(self) -> bool:
        """Whether a process has not ended, or is about to be replaced."""
        return bool(self._processes.running())

    def wait_for_event(self, kind: str, timeout: float = 60.0, count: int = 1, **numbers: Any) -> list[dict[str, Any]]:
        """Waits until workers have told `count` events of a kind, with these numbers; returns them.

        Raises:
            ClusterError: They have not in `timeout` seconds, or a worker failed.
        """

        def found() -> list[dict[str, Any]]:
            return [
                event
                for event in self.events(kind)
                if all(event["numbers"].get(name) == value for name, value in numbers.items())
            ]

        self.wait_until(lambda: len(found()) >= count, f"{count} events {kind!r} {numbers or ''} are told", timeout)
        return found()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events so far, of one kind or all."""
        return [event for event in read_events(self._events)[0] if kind in (None, event["kind"])]

    def results(self) -> Results:
        """What the processes have left so far."""
        return Results(self._processes.results(self._events))

    def result(self, task: int) -> ProcessResult:
        """The same of the newest process of one task."""
        return self.results().last(task)

    def fired(self) -> list[Fault]:
        """The faults that happened."""
        happened = {line["fault"] for line in self._processes.fired()}
        return [fault for number, fault in enumerate(self._faults) if number in happened]

    def assert_all_fired(self) -> None:
        """Raises ClusterError naming each fault that did not happen: a test without its fault proves nothing."""
        happened = {line["fault"] for line in self._processes.fired()}
        missing = [fault for number, fault in enumerate(self._faults) if number not in happened]
        if missing:
            lines = "\n".join(f"    {fault}" for fault in missing)
            raise ClusterError(
                f"{len(missing)} of {len(self._faults)} faults never happened:\n{lines}\n\n{self.results()}"
            )

    def close(self) -> None:
        """Kills what still runs."""
        self._processes.end_all()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _work(target: Target, arguments: Sequence[Any]) -> Work:
    if isinstance(target, str) and ":" in target:
        name = target
    elif callable(target):
        name = _name_of(target)
    else:
        script = str(Path(target).resolve())
        return Work({"script": script}, [script, *map(str, arguments)])
    argv = ["call_worker", name, json.dumps(list(arguments)), json.dumps([entry for entry in sys.path if entry])]
    return Work({"module": "tfdist.testing.call_worker"}, argv, result_at=3)


def _name_of(function: Callable[..., Any]) -> str:
    source = inspect.getsourcefile(function)
    qualified = getattr(function, "__qualname__", "<unnamed>")
    if source is None or not qualified.isidentifier():
        raise errors.ConfigError("target", qualified, "must be a function at the top level of a file", "Move it there.")
    return f"{Path(source).resolve()}:{qualified}"
