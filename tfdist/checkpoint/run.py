"""What one process knows of a checkpoint directory: which `fit` of the script it is in, and what it started from."""

from __future__ import annotations

import logging
import os
import uuid
from typing import Any

import numpy as np

from tfdist.checkpoint import quarantine
from tfdist.checkpoint.claim import Claim
from tfdist.checkpoint.layout import step_name
from tfdist.checkpoint.manifest import Manifest
from tfdist.checkpoint.options import CheckpointOptions
from tfdist.checkpoint.store import CheckpointStore
from tfdist.observe.events import emit
from tfdist.observe.points import reach

_runs: dict[str, Run] = {}


def run_of(directory: Any) -> Run:
    """The one of this process for a directory, or URL."""
    key = os.fspath(directory)
    if "://" not in key:
        key = os.path.abspath(key)
    if key not in _runs:
        _runs[key] = Run(key)
    return _runs[key]


class Run:
    """A directory in use by this process.

    Attributes:
        fits: how many `fit` calls of the script have begun with it (where no strategy numbers the calls).
        committed: steps that those have done.
        found: the checkpoint from which the process started, with its directory's name; None: there was none.
        results: {number: History} of calls that are over, kept in every checkpoint.
        measured: what the checkpoint has about the cost of saves, until it is used.
    """

    MANY_RESULTS = 256

    def __init__(self, directory: str):
        self.directory = directory
        self.store = CheckpointStore(directory)
        self.fits = self.committed = 0
        self.found: Manifest | None = None
        self.results: dict[str, Any] = {}
        self.measured: dict[str, Any] | None = None
        self._arrays: dict[str, np.ndarray] | None = None
        self._claim: Claim | None = None
        self.run_id = uuid.uuid4().hex[:16]  # where no strategy gives one: of this process alone
        self._looked = False
        self._first = True

    def claim(self, run_id: str | None, first: bool = True) -> None:
        """This run writes here.

        Args:
            run_id: of the run; None: of this process alone.
            first: whether this process is the one that tidies up what an earlier job has left.

        Raises:
            CheckpointError: another living job does; it is named.
        """
        if self._claim is None:
            self.run_id = run_id or self.run_id
            claim = Claim(self.store.files, self.run_id, owner=f"process {os.getpid()}")
            claim.take()
            self._claim, self._first = claim, first

    def look(self, options: CheckpointOptions) -> Manifest | None:
        """Once per process: the newest valid checkpoint (or the one that `resume` names), or None.

        Raises:
            CheckpointError: there are checkpoints, but none of them is valid; or the step is not there.
        """
        if self._looked:
            return self.found
        self._looked = True
        reach("resume")
        step = options.resume if not isinstance(options.resume, (bool, str)) else None
        if options.resume is False or step is not None:
            self._set_aside(-1 if step is None else step)
        if options.resume is False:
            return None
        if step is not None:
            self.found = self.store.manifest(step_name(step))
            self._arrays = self.read(self.found)
        elif (newest := self.store.restore_newest(mine=self._first)) is not None:
            self.found, self._arrays = newest
        if self.found is not None:
            self.results = dict(self.found.facts.get("results", {}))
            self.measured = self.found.facts.get("measured")
            progress = self.found.facts["progress"]
            emit(
                "resumed",
                f"goes on from the checkpoint of step {self.found.step} in {self.directory}: call {progress['call']}, "
                f"epoch {progress['epoch']}, batch {progress['step']}",
                level=logging.INFO,
                step=self.found.step,
            )
        return self.found

    def _set_aside(self, after: int) -> None:
        """Moves checkpoints of later steps out of the way: this run saves those steps anew."""
        for manifest in self.store.list():
            if manifest.step > after and self._first:
                quarantine.set_aside(self.store.files, step_name(manifest.step), "asked to go on without it")

    def read(self, manifest: Manifest) -> dict[str, np.ndarray]:
        return self.store.read(manifest, step_name(manifest.step))

    def take_arrays(self) -> dict[str, np.ndarray]:
        """The arrays of `found`, which are then given away."""
        if self._arrays is None:
            return self.read(self.found) if self.found is not None else {}
        arrays, self._arrays = self._arrays, None
        return arrays

    def end_of(self, call: int) -> Manifest | None:
        """The checkpoint of the end of a call that is over, if it is still there."""
        return next((m for m in reversed(self.store.list()) if m.facts.get("ended") == call), None)

    def remember(self, call: int, result: dict[str, Any]) -> None:
        """Keeps what a call has given, for a process that starts again and comes to it."""
        self.results[str(call)] = result
        for number in sorted(map(int, self.results))[: -self.MANY_RESULTS]:
            del self.results[str(number)]
