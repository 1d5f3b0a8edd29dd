"""The live table of `tfdist run`: members, generation, step, samples a second, phase, last incident.

Its sources are the run's store and the workers' events (tfdist/observe/events.py): whatever event carries one of the
numbers "generation", "members", "step", "epoch", "samples_per_second" or "phase" updates it.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tfdist.launch.store_status import StoreStatus
from tfdist.launch.supervise import TaskState, describe_exit
from tfdist.observe.events import read_events

_INCIDENT_KINDS_LEFT_OUT = frozenset({"debug", "step", "progress"})


@dataclasses.dataclass(frozen=True)
class WorkerView:
    """What one worker last told."""

    step: int | None = None
    epoch: int | None = None
    samples_per_second: float | None = None
    phase: str = ""


@dataclasses.dataclass(frozen=True)
class RunView:
    """What all workers together last told."""

    generation: int | None = None
    members: str = ""
    incident: str = ""
    workers: Mapping[str, WorkerView] = dataclasses.field(default_factory=dict)  # by task, such as "worker/1"


def fold(view: RunView, event: Mapping[str, Any]) -> RunView:
    """The view after one more event. A generation older than the one known is a late message and is passed over."""
    numbers = event.get("numbers")
    numbers = numbers if isinstance(numbers, dict) else {}
    changes: dict[str, Any] = {}
    generation = numbers.get("generation")
    if isinstance(generation, int) and generation >= (view.generation or 0):
        changes["generation"] = generation
        if "members" in numbers:
            members = numbers["members"]
            changes["members"] = ", ".join(map(str, members)) if isinstance(members, list) else str(members)
    if event["kind"] not in _INCIDENT_KINDS_LEFT_OUT:
        changes["incident"] = str(event.get("message", ""))
    task = event.get("task")
    told = {
        field.name: numbers[field.name]
        for field in dataclasses.fields(WorkerView)
        if numbers.get(field.name) is not None
    }
    if isinstance(task, str) and told:
        worker = dataclasses.replace(view.workers.get(task, WorkerView()), **told)
        changes["workers"] = {**view.workers, task: worker}
    return dataclasses.replace(view, **changes)


def summary(view: RunView) -> str:
    """The view as one line of text."""
    steps = [worker.step for worker in view.workers.values() if isinstance(worker.step, int)]
    return f"generation {view.generation}, members {view.members or '?'}" + (f", step {max(steps)}" if steps else "")


def render(view: RunView, tasks: Sequence[TaskState]) -> Table:
    """The table for a terminal."""
    table = Table(title=Text(f"generation {view.generation or '-'}   members {view.members or '-'}"))
    for heading in ("worker", "state", "phase"):
        table.add_column(heading)
    for heading in ("epoch", "step", "samples/s", "replaced"):
        table.add_column(heading, justify="right")
    for task in tasks:
        worker = view.workers.get(f"worker/{task.index}", WorkerView())
        state = task.phase if task.exit_code in (None, 0) else f"{task.phase} ({describe_exit(task.exit_code or 0)})"
        speed = worker.samples_per_second
        table.add_row(
            str(task.index),
            Text(state),
            Text(str(worker.phase)),
            _number(worker.epoch),
            _number(worker.step),
            f"{speed:,.0f}" if isinstance(speed, int | float) else "",
            str(task.restarts or ""),
        )
    if view.incident:
        table.caption = Text(view.incident)
    return table


def _number(value: object) -> str:
    return "" if value is None else str(value)


class Display:
    """Shows the workers' lines, with the live table below them if standard output is a terminal.

    Args:
        events: The file that the workers' events go to.
        status: What the store says.
        tasks: Returns the present states of the tasks.
        table: Whether a table may be shown; without it, and without a terminal, there are only lines.
    """

    def __init__(
        self, events: Path, status: StoreStatus, tasks: Callable[[], Sequence[TaskState]], *, table: bool
    ) -> None:
        self._events, self._status, self._tasks = events, status, tasks
        self._offset = 0
        self._view = RunView()
        self._live: Live | None = None
        if table and sys.stdout.isatty():
            self._live = Live(console=Console(), auto_refresh=False, transient=False)

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.refresh()
        self._status.close()
        if self._live is not None:
            self._live.stop()

    def write(self, line: str) -> None:
        """Shows one line. May be called from any thread."""
        if self._live is not None:
            self._live.console.print(Text.from_ansi(line), soft_wrap=True)
        else:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def refresh(self) -> None:
        """Reads the new events and the store; shows what changed."""
        events, self._offset = read_events(self._events, self._offset)
        known = self._view.generation
        for event in [*events, *self._status.read(time.monotonic())]:
            self._view = fold(self._view, event)
        if self._live is not None:
            self._live.update(render(self._view, self._tasks()), refresh=True)
        elif self._view.generation != known:
            self.write(f"[tfdist] {summary(self._view)}")
