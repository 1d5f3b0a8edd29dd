"""Writes snapshots in a thread of its own, one after the other; a save that fails stops nobody, and is said aloud."""

from __future__ import annotations

import datetime
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tfdist.checkpoint import pieces
from tfdist.checkpoint.layout import Slice, divide, part_name, step_name
from tfdist.checkpoint.manifest import Manifest, Piece, assemble
from tfdist.checkpoint.parts import write_part
from tfdist.checkpoint.snapshot import Snapshot, WarmBuffer, lay_down, touch
from tfdist.errors import CheckpointError
from tfdist.observe.events import emit
from tfdist.observe.points import reach

PIECES_SECONDS = 600.0  # for the parts of the other members


class Team(Protocol):
    """Who writes a checkpoint together."""

    parts: int
    part: int  # which one is this process's; the process of part 0 commits
    run_id: str
    generation: int

    def may_commit(self, step: int) -> str:
        """Why this process may not commit that step (it was removed, say); empty where it may."""

    def broken(self) -> str:
        """Why the other parts will not come, empty as long as they may."""


@dataclass
class Stats:
    """What has become of the saves so far; `blocked`: seconds for which each held the training thread up."""

    saved: int = 0
    failed: int = 0
    skipped: int = 0
    replaced: int = 0
    blocked: list[float] = field(default_factory=list)
    last_error: str = ""
    step: int = -1  # that was saved last


@dataclass
class Job:
    """One save.

    Attributes:
        metric: the monitored value, or None.
    """

    snapshot: Snapshot
    team: Team
    metric: float | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        """Of the checkpoint's directory."""
        return step_name(self.snapshot.step)


class Saver:
    """Takes jobs; `busy` while one is under way.

    Args:
        store: the directory (store.CheckpointStore).
        versions: of what wrote it, for the manifest.
        after_commit: called in the writing thread with the manifest of each checkpoint that this process committed.
    """

    def __init__(self, store: Any, versions: dict[str, str], after_commit: Callable[[Manifest], None]):
        self._store, self._versions, self._after_commit = store, versions, after_commit
        self._queue: queue.SimpleQueue[Job | list[Slice] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: Job | None = None
        self._waiting: Job | None = None
        self._buffer = WarmBuffer()
        self._thread: threading.Thread | None = None
        self.stats = Stats()

    @property
    def busy(self) -> bool:
        return self._running is not None

    def prepare(self, slices: list[Slice]) -> None:
        """Gets the memory for such a part ready, in the writing thread, before the first save needs it."""
        self._start()
        self._queue.put(slices)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tfdist-checkpoint", daemon=True)
            self._thread.start()

    def submit(self, job: Job) -> None:
        """Starts a save; one that waits already is replaced by it."""
        with self._lock:
            if self._running is not None:
                if self._waiting is not None:
                    self.stats.replaced += 1
                    self._waiting.done.set()
                self._waiting = job
                return
            self._running = job
        self._start()
        self._queue.put(job)

    def wait(self, timeout: float) -> bool:
        """Waits until nothing is under way; False if that took longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (job := self._running) is not None:
            if not job.done.wait(max(0.0, deadline - time.monotonic())):
                return False
            if self._running is job:  # between its end and the next one's beginning
                time.sleep(0.001)
        return True

    def close(self) -> None:
        """Ends the thread after what is under way."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(60.0)
            self._thread = None

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if isinstance(job, list):
                touch(self._buffer.reserve(job))
                continue
            while job is not None:
                self._save(job)
                with self._lock:
                    self._running = job_after = self._waiting
                    self._waiting = None
                job.done.set()
                job = job_after

    def _save(self, job: Job) -> None:
        began = time.monotonic()
        try:
            nbytes = self._write(job)
        except Exception as error:  # noqa: BLE001 - whatever a file system does, the training goes on
            self.stats.failed += 1
            self.stats.last_error = str(error)
            job.snapshot.values.clear()
            self._remove_own_part(job)
            emit(
                "save_failed",
                f"the checkpoint of step {job.snapshot.step} was not written: {error}; training goes on",
                level=logging.WARNING,
                step=job.snapshot.step,
            )
            return
        seconds = time.monotonic() - began
        self.stats.saved += 1
        self.stats.step = job.snapshot.step
        emit(
            "saved",
            f"checkpoint of step {job.snapshot.step}: {nbytes / 1e6:.1f} MB in {seconds:.2f} s ({job.name})",
            step=job.snapshot.step,
            bytes=nbytes,
            seconds=round(seconds, 4),
        )

    def _write(self, job: Job) -> int:
        snapshot, team = job.snapshot, job.team
        reach("save_begin", step=snapshot.step)
        slices = divide(snapshot.specs, team.parts)[team.part]
        room = self._buffer.reserve(slices)
        lay_down(snapshot, slices, room)
        written = write_part(self._store.files, job.name, team.part, slices, room)
        if team.parts > 1:
            written = self._together(job, written)
        if team.part == 0:
            refused = team.may_commit(snapshot.step)
            if refused:
                raise CheckpointError(f"{job.name} is not committed: {refused}")
            manifest = self._manifest(job, written)
            self._store.commit(manifest, job.name)
            self._after_commit(manifest)
        return sum(piece.nbytes for piece in slices)

    def _together(self, job: Job, mine: list[tuple[str, Piece]]) -> list[tuple[str, Piece]]:
        """Tells the committer what this part has; the committer waits for all of them."""
        pieces.tell(self._store.files, job.name, job.team.part, job.team.generation, mine)
        if job.team.part != 0:
            return mine
        all_pieces, deadline = list(mine), time.monotonic() + PIECES_SECONDS
        for part in range(1, job.team.parts):
            while (theirs := pieces.told(self._store.files, job.name, part, job.team.generation)) is None:
                reason = job.team.broken()
                if reason or time.monotonic() > deadline:
                    raise CheckpointError(f"part {part} of {job.name} has not come: {reason or 'for 600 s'}")
                time.sleep(0.02)  # a file of another process: there is nothing to be woken by
            all_pieces += theirs
        return all_pieces

    def _manifest(self, job: Job, written: list[tuple[str, Piece]]) -> Manifest:
        return Manifest(
            step=job.snapshot.step,
            run_id=job.team.run_id,
            generation=job.team.generation,
            parts=job.team.parts,
            leaves=assemble(job.snapshot.specs, written),
            facts=job.snapshot.facts,
            metric=job.metric,
            versions=self._versions,
            saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )

    def _remove_own_part(self, job: Job) -> None:
        try:
            self._store.files.remove_tree(f"{job.name}/{part_name(job.team.part)}")
        except Exception as error:  # noqa: BLE001 - said as a detail of the failure that is told anyway
            emit("debug", f"what was written of {job.name} could not be removed: {error}")
