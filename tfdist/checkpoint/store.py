"""The checkpoints of a directory: committing, finding, reading and removing them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import numpy as np

from tfdist.checkpoint import quarantine
from tfdist.checkpoint.arrays import read_arrays
from tfdist.checkpoint.files import Files, open_files
from tfdist.checkpoint.inspection import problems_of, wrong_sizes
from tfdist.checkpoint.layout import MANIFEST, REMOVED_MANIFEST, part_name, step_name, step_of
from tfdist.checkpoint.manifest import MAX_BYTES, Manifest, from_json, to_json
from tfdist.checkpoint.removal import prune, remove_rubbish
from tfdist.checkpoint.retention import RetentionPolicy
from tfdist.errors import CheckpointError, DamagedCheckpointError
from tfdist.observe.points import reach

Arrays = dict[str, np.ndarray]
Texts = list[str]  # under names of their own, because the class has a method `list`
Steps = list[int]
T = TypeVar("T")


class CheckpointStore:
    """The checkpoints of a directory.

    `newest`, `restore_newest` and `prune` move and remove things only for those who hold the claim (see `Claim`): to
    everybody else a checkpoint without a manifest may be one that is just being written.

    Args:
        directory: path or URL.
        files: the files of that directory, where they are open already.
    """

    def __init__(self, directory: str | os.PathLike[str], *, files: Files | None = None):
        self.files = open_files(directory) if files is None else files

    def commit(self, manifest: Manifest, step_dir: str) -> None:
        """Makes a checkpoint valid, when all of its parts are written. Doing it twice does no harm.

        Raises:
            CheckpointError: another manifest is there already, or a part is missing or of a wrong size.
            CheckpointWriteError: the system refuses.
        """
        if step_dir != step_name(manifest.step):
            raise ValueError(f"step {manifest.step} belongs into {step_name(manifest.step)}, not {step_dir}")
        path, text = f"{step_dir}/{MANIFEST}", to_json(manifest)
        problem = wrong_sizes(self.files, manifest, step_dir)
        if problem:
            raise CheckpointError(f"{self.files.name(step_dir)} cannot be committed: {problem}.")
        parts = {part_name(part) for part in range(manifest.parts)}
        for name in self.files.list(step_dir):
            if name not in parts and name != MANIFEST:
                self.files.remove_tree(f"{step_dir}/{name}")  # of an earlier save of this step, by more writers
        reach("checkpoint_commit", step=manifest.step, step_dir=step_dir, phase="begin")
        if not self.files.create(path, text) and self.files.read(path, MAX_BYTES) != text:
            raise CheckpointError(
                f"{self.files.name(path)} exists and is another one: this step was committed by someone else. "
                "Was this worker removed from its run, or do two jobs write here?"
            )
        reach("checkpoint_commit", step=manifest.step, step_dir=step_dir, phase="end")

    def amend(self, manifest: Manifest) -> None:
        """Replaces the manifest of a complete checkpoint by one with other facts, whole or not at all.

        Raises:
            CheckpointWriteError: the system refuses.
        """
        self.files.replace(f"{step_name(manifest.step)}/{MANIFEST}", to_json(manifest))

    def list(self) -> list[Manifest]:
        """Returns the manifests of the complete checkpoints, oldest first. Damaged ones are left out."""
        found = []
        for step_dir in self._step_dirs():
            try:
                found.append(self.manifest(step_dir))
            except DamagedCheckpointError:
                continue
        return found

    def manifest(self, step_dir: str) -> Manifest:
        """Returns the manifest in a folder.

        Raises:
            DamagedCheckpointError: it is missing, or damaged.
        """
        path = f"{step_dir}/{MANIFEST}"
        manifest = from_json(self.files.read(path, MAX_BYTES), self.files.name(path))
        if step_name(manifest.step) != step_dir:
            raise DamagedCheckpointError(self.files.name(path), f"it is that of step {manifest.step}")
        return manifest

    def newest(self, verify: bool = True, *, mine: bool = False) -> tuple[Manifest, str] | None:
        """Returns the newest complete checkpoint and its folder; None if none was ever completed.

        Args:
            verify: look at the sizes of all files; checksums are checked while reading.
            mine: this job holds the claim: damaged and partial ones are moved to quarantine/. Without it they are
                passed over.

        Raises:
            DamagedCheckpointError: there are checkpoints, and all are damaged.
            CheckpointError: the directory cannot be read.
        """

        def use(manifest: Manifest, step_dir: str) -> tuple[Manifest, str]:
            if verify:
                self._check_sizes(manifest, step_dir)
            return manifest, step_dir

        return self._first_good(use, mine)

    def read(
        self,
        manifest: Manifest,
        step_dir: str,
        names: Iterable[str] | None = None,
        into: Mapping[str, np.ndarray] | None = None,
    ) -> Arrays:
        """Reads arrays, and checks every checksum; see `arrays.read_arrays`."""
        return read_arrays(self.files, manifest, step_dir, names, into)

    def restore_newest(self, *, mine: bool = False) -> tuple[Manifest, Arrays] | None:
        """Reads the newest checkpoint whose every byte is right; see `newest`, whose errors it has."""

        def use(manifest: Manifest, step_dir: str) -> tuple[Manifest, Arrays]:
            self._check_sizes(manifest, step_dir)
            return manifest, self.read(manifest, step_dir)

        return self._first_good(use, mine)

    def verify(self, step: int | None = None) -> Texts:
        """Reads every byte of the checkpoint of a step, or of all; returns what is wrong, one sentence each.

        Raises:
            CheckpointError: there is no checkpoint of that step.
        """
        step_dirs = self._step_dirs() if step is None else [step_name(step)]
        found = []
        for step_dir in step_dirs:
            if step is not None and not self.files.exists(f"{step_dir}/{MANIFEST}"):
                raise CheckpointError(f"{self.files.name(step_dir)} is no complete checkpoint.")
            try:
                found += problems_of(self.files, self.manifest(step_dir), step_dir)
            except CheckpointError as error:
                found.append(str(error))
        return found

    def prune(self, policy: RetentionPolicy, protected: Collection[int] = ()) -> Steps:
        """Removes what `retention.removable` names, and what crashed saves have left; see `removal.prune`."""
        return prune(self.files, self.list(), policy, protected)

    def _step_dirs(self) -> Texts:
        """Folders of checkpoints that have a manifest, oldest first."""
        names = [name for name in self.files.list("") if step_of(name) is not None]
        names.sort(key=lambda name: step_of(name) or 0)
        return [name for name in names if self.files.exists(f"{name}/{MANIFEST}")]

    def _check_sizes(self, manifest: Manifest, step_dir: str) -> None:
        problem = wrong_sizes(self.files, manifest, step_dir)
        if problem:
            raise DamagedCheckpointError(self.files.name(step_dir), problem)

    def _first_good(self, use: Callable[[Manifest, str], T], mine: bool) -> T | None:
        """Returns use(manifest, folder) of the newest checkpoint that it does not find damaged; None: there is none."""
        if mine:
            self._move_partial_ones()
        damaged = []
        for step_dir in reversed(self._step_dirs()):
            try:
                return use(self.manifest(step_dir), step_dir)
            except DamagedCheckpointError as error:
                if not mine and not self.files.exists(f"{step_dir}/{MANIFEST}"):
                    continue  # its writer has removed it since
                damaged.append(step_dir)
                if mine:
                    quarantine.put(self.files, step_dir, str(error))
                else:
                    quarantine.tell(self.files, step_dir, str(error))
        quarantine.refuse_to_start_anew(self.files, damaged)
        return None

    def _move_partial_ones(self) -> None:
        newest = max((step_of(name) or 0 for name in self._step_dirs()), default=-1)
        for name in self.files.list(""):
            step = step_of(name)
            if step is None or self.files.exists(f"{name}/{MANIFEST}"):
                continue
            if step < newest or self.files.exists(f"{name}/{REMOVED_MANIFEST}"):
                remove_rubbish(self.files, name)  # what a removal that did not end has left, or an old save
            else:
                quarantine.put(self.files, name, "its save did not end, so it has no manifest")
