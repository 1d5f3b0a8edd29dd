"""The claim on a local directory: a lock of the system, which ends with the processes that hold it.

The first process of a run locks `.lock` for itself, writes its name into claim.json, and then shares the lock with the
other processes of its run. Who gets the lock for itself knows that nobody lives who holds the claim, after `kill -9`
just as after a good end; a process that is frozen still holds it. No clock and no pid decides anything.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable

from tfdist.checkpoint.files import Files
from tfdist.checkpoint.files.base import write_error
from tfdist.checkpoint.holder import FILE as CLAIM_FILE
from tfdist.checkpoint.holder import Holder, read_holder, write_holder
from tfdist.errors import CheckpointClaimedError

FILE = ".lock"
_PAUSE = 0.02  # seconds between two tries

_held: weakref.WeakSet[LockClaim] = weakref.WeakSet()


class LockClaim:
    """See Claim."""

    lost = ""

    def __init__(self, files: Files, me: Holder, patience: float, wait: Callable[[float], None] | None = None):
        self._files = files
        self._me = me
        self._patience = patience
        self._wait = wait or time.sleep
        self._descriptor: int | None = None

    def take(self) -> None:
        """See Claim."""
        if self._descriptor is not None:
            return
        tries = max(1, round(self._patience / _PAUSE))
        for number in range(tries):
            if number:
                self._wait(_PAUSE)
            # Also one who is about to be refused shares the lock for a moment: only who is there for long counts.
            if self._try():
                return
        holder = read_holder(self._files)
        if holder is None or holder.run_id == self._me.run_id:
            holder = Holder("unknown", "unknown")  # one who is just taking it, and is not finished
        raise CheckpointClaimedError(
            self._files.root, self._me.run_id, vars(holder), f"holds the lock {self._files.name(FILE)}"
        )

    def release(self) -> None:
        """See Claim."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _try(self) -> bool:
        path = self._files.name(FILE)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise write_error(error, "opened", path) from error
        try:
            if _lock(descriptor, fcntl.LOCK_EX):
                self._remove_rubbish()
                write_holder(self._files, self._me)
            # Sharing is not one step: another run may lock in between and write its name, which is looked at next.
            if _lock(descriptor, fcntl.LOCK_SH):
                holder = read_holder(self._files)
                if holder is not None and holder.run_id == self._me.run_id and _is_there(descriptor, path):
                    self._descriptor = descriptor
                    _held.add(self)
        finally:
            if self._descriptor is None:
                os.close(descriptor)
        return self._descriptor is not None

    def _remove_rubbish(self) -> None:
        # Who was killed while it wrote claim.json has left a file. Nobody else writes one while the lock is ours alone.
        for name in self._files.list(""):
            if name.startswith(f".{CLAIM_FILE}.") and name.endswith(".tmp"):
                self._files.remove_tree(name)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(descriptor: int, path: str) -> bool:
    """Says whether the locked file is still the one at `path`: who removes the directory removes the lock, too."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _after_fork_in_child() -> None:
    # A lock lasts until the last copy of its descriptor is closed: a child must not hold it when its parent is gone.
    for claim in tuple(_held):
        claim.release()


os.register_at_fork(after_in_child=_after_fork_in_child)
