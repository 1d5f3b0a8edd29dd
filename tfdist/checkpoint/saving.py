"""The saves of one `fit`: at a step boundary, after all callbacks have had their turn."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

from tfdist.checkpoint.cost import CostOfSaves
from tfdist.checkpoint.layout import divide, step_name
from tfdist.checkpoint.manifest import Manifest
from tfdist.checkpoint.models import facts_of_model
from tfdist.checkpoint.options import CheckpointOptions
from tfdist.checkpoint.retention import RetentionPolicy
from tfdist.checkpoint.run import Run
from tfdist.checkpoint.saver import Job, Saver, Team
from tfdist.checkpoint.schedule import Schedule
from tfdist.checkpoint.snapshot import take
from tfdist.errors import CheckpointError
from tfdist.observe.events import emit
from tfdist.strategies.state import ModelState

END_SECONDS = 3600.0  # for the last save of a `fit`

_now: Saving | None = None


def saving_now() -> Saving | None:
    """The one of the `fit` that goes on in this process, if it has an `AsyncCheckpoint`."""
    return _now


class Host(Protocol):
    """The kind of `fit` that is saved: with a tfdist strategy, or without."""

    @property
    def state(self) -> ModelState: ...

    def team(self) -> Team: ...

    def agreed(self, due: bool, busy: bool, at: str) -> tuple[bool, bool]:
        """(whether all save now, whether somebody wanted to but another was busy); `at` is "step" or "epoch"."""

    def position_after_epoch(self) -> dict[str, int]:
        """Where a process goes on that starts from the end of this epoch: epoch, step, data_pass, data_step."""

    def epoch_is_over(self) -> bool:
        """Whether the present step was the last one of its epoch, as far as that is known."""

    def call_is_over(self) -> bool:
        """Whether the epoch that has ended is the last one."""


class Saving:
    """Made when a `fit` begins, closed when it ends.

    Args:
        call: number of the `fit` in its script.
    """

    def __init__(self, run: Run, options: CheckpointOptions, host: Host, call: int):
        global _now
        _now = self
        self._run, self._options, self._host, self._call = run, options, host, call
        self.saver = Saver(run.store, _versions(), self._prune)
        progress = host.state.progress
        self._cost = CostOfSaves(run.measured)
        run.measured = None
        self.schedule = Schedule(options.save_freq, time.monotonic(), progress.committed, self._cost)
        self._first_step = progress.committed
        self._of_model = facts_of_model(host.state.model)
        self._metric: float | None = None
        team = host.team()
        self.saver.prepare(divide(take(host.state).specs, team.parts)[team.part])

    # --- called at the boundaries ---

    def after_step(self) -> None:
        self._cost.step(time.monotonic(), self.saver.busy)
        if self._host.epoch_is_over():
            return  # its end follows at once, with the logs and the state that the next epoch begins with
        self._consider("step", {})

    def after_epoch(self, logs: Mapping[str, Any] | None) -> None:
        if self._options.monitor is not None and logs and self._options.monitor in logs:
            self._metric = float(logs[self._options.monitor])
        if not self._host.call_is_over():  # else its end is saved, at once
            self._consider("epoch", self._host.position_after_epoch())

    def _consider(self, at: str, position: dict[str, int]) -> None:
        state, now = self._host.state, time.monotonic()
        due = self.schedule.due(now, state.progress.committed, at == "epoch")
        waits = self._options.if_busy != "skip"
        save, vetoed = self._host.agreed(due, self.saver.busy and not waits, at)
        if vetoed:
            self.saver.stats.skipped += 1
            self.schedule.saved(now, state.progress.committed)
            first = self.saver.stats.skipped == 1
            emit(
                "save_skipped",
                f"step {state.progress.committed} is not saved: the save before is still going on"
                + ("; further ones are counted only" if first else ""),
                level=logging.WARNING if first else logging.DEBUG,
                step=state.progress.committed,
            )
        if save:
            self.save(position)

    def save(self, position: Mapping[str, int], *, ended: dict[str, Any] | None = None, at_commit: bool = False) -> Job:
        """Takes a snapshot and has it written.

        Args:
            position: what of the progress is another one for who starts from it.
            ended: the result of the call, if this is its end.
            at_commit: see `snapshot.take`.
        """
        began = time.monotonic()
        state = self._host.state
        if self._options.if_busy == "wait":
            self.saver.wait(END_SECONDS)
        snapshot = take(state, at_commit)
        snapshot.facts["progress"] |= {**position, "call": self._call}
        if ended is not None:
            self._run.remember(self._call, ended)
            snapshot.facts |= {"ended": self._call, "protected": True}
        snapshot.facts["results"] = dict(self._run.results)
        snapshot.facts |= {**self._of_model, "measured": self._cost.facts()}
        job = Job(snapshot, self._host.team(), self._metric)
        self.saver.submit(job)
        self.schedule.saved(began, snapshot.step)
        blocked = time.monotonic() - began
        self.saver.stats.blocked.append(blocked)
        self._cost.held_up(blocked)
        return job

    def emergency(self, at: str = "step") -> None:
        """The last committed step, durable before this returns: the whole job is about to end.

        Args:
            at: "step", "epoch" (at the end of one), or "validation".
        """
        self.saver.wait(END_SECONDS)
        if self._host.state.progress.committed == self.saver.stats.step:
            return  # it is durable already
        position = self._host.position_after_epoch() if at == "epoch" else {}
        self.save(position, at_commit=at == "validation").done.wait(END_SECONDS)

    def end(self, result: dict[str, Any]) -> None:
        """The `fit` is over: its end state is saved, and waited for.

        Raises:
            CheckpointError: no save has succeeded (or, if asked for, one has failed).
        """
        self.saver.wait(END_SECONDS)
        step = self._host.state.progress.committed
        if step == self.saver.stats.step:
            self._mark_as_end(step, result)
        elif step > self._first_step:
            self.save(self._host.position_after_epoch(), ended=result)
            self.saver.wait(END_SECONDS)
        stats = self.saver.stats
        emit(
            "saves",
            f"{stats.saved} checkpoints saved, {stats.failed} failed, {stats.skipped} skipped, {stats.replaced} "
            f"replaced; the training thread was held up for {1e3 * sum(stats.blocked):.1f} ms in all",
            saved=stats.saved,
            failed=stats.failed,
            skipped=stats.skipped,
            replaced=stats.replaced,
            blocked=round(sum(stats.blocked), 5),
        )
        if stats.failed and (not stats.saved or self._options.raise_on_failure):
            raise CheckpointError(
                f"{stats.failed} of {stats.failed + stats.saved} saves to {self._run.directory} failed: "
                f"{stats.last_error}. The training itself is complete"
            )

    def _mark_as_end(self, step: int, result: dict[str, Any]) -> None:
        """The last step is saved already: its checkpoint becomes that of the end of the call."""
        self._run.remember(self._call, result)
        if self._host.team().part != 0:
            return
        manifest = self._run.store.manifest(step_name(step))
        progress = {**manifest.facts["progress"], **self._host.position_after_epoch()}
        facts = {"progress": progress, "ended": self._call, "protected": True, "results": dict(self._run.results)}
        self._run.store.amend(dataclasses.replace(manifest, facts={**manifest.facts, **facts}))

    def close(self) -> None:
        global _now
        _now = None
        self.saver.close()

    def _prune(self, manifest: Manifest) -> None:
        """In the writing thread, after a commit."""
        policy = RetentionPolicy(
            max_to_keep=self._options.max_to_keep,
            keep_every=self._options.keep_every,
            mode=self._options.best_of,
        )
        # The end of the call before this one: a process that starts again installs it on the way.
        ends = [m.step for m in self._run.store.list() if m.facts.get("ended") == self._call - 1]
        self._run.store.prune(policy, protected=ends[-1:])


def _versions() -> dict[str, str]:
    found = {}
    for package in ("tfdist", "tensorflow", "tensorflow-cpu", "keras"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
