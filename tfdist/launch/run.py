"""`tfdist run`: a cluster of worker processes on this machine, looked after until the training is complete."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tfdist import errors
from tfdist.launch.environment import free_ports, shared_environment, task_environment
from tfdist.launch.fork_server import PRELOAD, ForkedProcess, ForkServer, ForkServerError
from tfdist.launch.output import LogFile, OutputPipe, prefixed
from tfdist.launch.store_status import StoreStatus
from tfdist.launch.supervise import RestartPolicy, TaskState, after_exit, run_end, started, stopped_code
from tfdist.launch.table import Display

TICK_SECONDS = 0.5  # how often the table is drawn anew while nothing happens
ECHO_SECONDS = (
    3.0  # how long the worker that really failed may take to say so, after another said "another worker failed"
)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What `tfdist run` was asked for.

    Args:
        script: Path of the training script.
        arguments: The script's own arguments.
        directory: Where the logs, the events and the default store go; must exist.
        workers: How many workers this machine runs.
        policy: How workers are replaced.
        max_workers: The most workers of the whole cluster; None sets no limit.
        store: URL of the store; None is a SQLite file in `directory`.
        run_id: Scope of the store's entries; None draws one.
        cluster: "host:port" of all workers of all machines; empty means only this machine's, on free ports.
        index_from: With `cluster`: the task index of this machine's first worker.
        heartbeat_timeout: Seconds without a heartbeat after which a worker counts as lost; None leaves the default.
        table: Whether a live table is shown on a terminal.
        grace: Seconds that workers get to leave in order before they are killed.
        preload: Modules that are imported once for all workers.
    """

    script: Path
    arguments: Sequence[str]
    directory: Path
    workers: int = 2
    policy: RestartPolicy = dataclasses.field(default_factory=RestartPolicy)
    max_workers: int | None = None
    store: str | None = None
    run_id: str | None = None
    cluster: Sequence[str] = ()
    index_from: int = 0
    heartbeat_timeout: float | None = None
    table: bool = True
    grace: float = 10.0
    preload: Sequence[str] = PRELOAD

    def __post_init__(self) -> None:
        refuse = errors.ConfigError
        last = self.index_from + self.workers - 1
        if self.workers < 1:
            raise refuse("workers", self.workers, "must be at least 1")
        if self.cluster and last >= len(self.cluster):
            rule = f"must list all workers of all machines; this one runs the tasks {self.index_from} to {last}"
            raise refuse(
                "cluster", ",".join(self.cluster), rule, "Lower index_from or workers, or list more addresses."
            )
        if self.cluster and self.store is None:
            raise refuse(
                "store", None, "must be named with cluster", "Name one that all machines reach: etcd://host:2379."
            )
        if self.index_from and not self.cluster:
            raise refuse(
                "index_from", self.index_from, "needs cluster", "List the addresses of all workers in cluster."
            )
        if self.policy.min_workers > (len(self.cluster) or self.workers):
            raise refuse("min_workers", self.policy.min_workers, f"must be at most workers, which is {self.workers}")
        if self.max_workers is not None and self.max_workers < max(self.workers, self.policy.min_workers):
            raise refuse("max_workers", self.max_workers, f"must be at least workers ({self.workers}) and min_workers")
        if self.heartbeat_timeout is not None and self.heartbeat_timeout <= 0:
            raise refuse("heartbeat_timeout", self.heartbeat_timeout, "must be above 0 s")


def run(options: RunOptions) -> int:
    """Runs the cluster until it is done, has failed or is stopped by SIGINT or SIGTERM. Call it on the main thread.

    Returns:
        The exit code: 0 if the training completed; a failing worker's own; else one of tfdist.errors; 128 + the signal.
    """
    events: queue.SimpleQueue[tuple[str, int, ForkedProcess | None]] = queue.SimpleQueue()
    with _signals_to(lambda number: events.put(("signal", number, None))), ForkServer(options.preload) as server:
        return _Run(options, server, events).until_end()


@contextlib.contextmanager
def _signals_to(handle: Callable[[int], None]) -> Iterator[None]:
    previous = {n: signal.signal(n, lambda number, _: handle(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Run:
    def __init__(
        self, options: RunOptions, server: ForkServer, events: queue.SimpleQueue[tuple[str, int, ForkedProcess | None]]
    ) -> None:
        self._options, self._server, self._events = options, server, events
        indices = range(options.index_from, options.index_from + options.workers)
        self._tasks = {index: TaskState(index) for index in indices}
        self._processes: dict[int, ForkedProcess] = {}  # task index -> process that runs
        self._pipes: list[OutputPipe] = []
        self._addresses = list(options.cluster) or [f"127.0.0.1:{port}" for port in free_ports(options.workers)]
        self._shared = shared_environment(
            options.directory,
            store=options.store,
            run_id=options.run_id,
            min_workers=options.policy.min_workers,
            max_workers=options.max_workers,
            heartbeat_timeout=options.heartbeat_timeout,
        )
        self._display = Display(
            Path(self._shared["TFDIST_EVENTS"]),
            StoreStatus(self._shared["TFDIST_STORE"], self._shared["TFDIST_RUN_ID"]),
            lambda: list(self._tasks.values()),
            table=options.table,
        )
        # Set when the run is to end: its code (None: decided when all have left, by the signal), and the two deadlines.
        self._ending = False
        self._code: int | None = None
        self._stop_signal = 0
        self._terminate_at = self._kill_at = float("inf")

    def until_end(self) -> int:
        with self._display:
            try:
                return self._loop()
            except ForkServerError as error:
                self._say(f"{error}; is TensorFlow installed? pip install 'tfdist[cpu]' or 'tfdist[gpu]'")
                return errors.EXIT_CONFIG
            finally:
                for pipe in self._pipes:
                    pipe.finish()

    def _loop(self) -> int:
        while True:
            now = time.monotonic()
            if not self._ending:
                for task in list(self._tasks.values()):
                    if task.phase == "waiting" and task.start_at <= now:
                        self._start(task)
                code, reason = run_end(list(self._tasks.values()), self._options.policy)
                if code is not None:
                    self._end(reason, code, echo=code == errors.EXIT_PEER_FAILED)
            if self._ending:
                self._press_on(now)
                if not self._processes:
                    return self._final_code()
            self._wait_for_event()
            self._display.refresh()

    def _wait_for_event(self) -> None:
        try:
            kind, number, process = self._events.get(timeout=TICK_SECONDS)
        except queue.Empty:
            return
        if kind == "signal":
            self._on_signal(number)
        elif self._processes.get(number) is process:
            self._on_exit(number, process)

    def _start(self, task: TaskState) -> None:
        if task.restarts and not self._options.cluster:
            # A port of its own: the old one may still be held, or have been taken by somebody else.
            self._addresses[task.index] = f"127.0.0.1:{free_ports(1)[0]}"
        label = f"[worker {task.index}] "
        pipe = OutputPipe(
            [prefixed(label, self._display.write), LogFile(self._options.directory / f"worker-{task.index}.log")]
        )
        try:
            process = self._server.spawn(
                {"script": str(self._options.script)},
                [str(self._options.script), *self._options.arguments],
                env=task_environment(self._shared, self._addresses, task.index, task.restarts),
                stdout=pipe.write_end,
                stderr=pipe.write_end,
                on_exit=lambda ended: self._events.put(("exit", task.index, ended)),
            )
        finally:
            pipe.started()
        self._pipes.append(pipe)
        self._processes[task.index] = process
        self._say(f"worker {task.index} is process {process.pid}")
        self._tasks[task.index] = started(time.monotonic(), task)

    def _on_exit(self, index: int, process: ForkedProcess | None) -> None:
        del self._processes[index]
        code = -signal.SIGKILL if process is None or process.returncode is None else process.returncode
        task, reason = after_exit(time.monotonic(), self._tasks[index], code, self._options.policy)
        self._tasks[index] = task
        if code != 0 and not (self._ending and task.phase == "waiting"):
            self._say(reason)

    def _on_signal(self, number: int) -> None:
        if self._stop_signal:
            self._say("stopped again: the workers are killed")
            self._kill_at = 0.0
            return
        self._stop_signal = number
        name = signal.Signals(number).name
        self._end(f"{name}: the workers get {self._options.grace:g} s to leave; a second one kills them", None)

    def _end(self, reason: str, code: int | None, *, echo: bool = False) -> None:
        self._ending, self._code = True, code
        self._terminate_at = time.monotonic() + (ECHO_SECONDS if echo else 0.0)
        self._kill_at = self._terminate_at + self._options.grace
        self._say(reason)

    def _press_on(self, now: float) -> None:
        """Asks those that still run to leave, and kills them when their time is over."""
        if now >= self._kill_at:
            self._signal_all(signal.SIGKILL, group=True)
            self._kill_at = now + 1.0
        elif now >= self._terminate_at:
            self._signal_all(signal.SIGTERM)
            self._terminate_at = float("inf")

    def _signal_all(self, number: int, *, group: bool = False) -> None:
        for process in self._processes.values():
            process.signal(number, group=group)

    def _final_code(self) -> int:
        tasks = list(self._tasks.values())
        if self._stop_signal:
            return stopped_code(self._stop_signal, [t.exit_code for t in tasks if t.exit_code is not None])
        later, _ = run_end(tasks, self._options.policy)  # the worker that really failed may have come after its echo
        return later if self._code == errors.EXIT_PEER_FAILED and later else self._code or 0

    def _say(self, sentence: str) -> None:
        self._display.write(f"[tfdist] {sentence}")
