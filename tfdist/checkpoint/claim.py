"""One job at a time writes to a directory of checkpoints.

The processes of one run share the claim; another run is refused while one of them lives. How that is known depends on
the directory: by a lock of the system (`lock_claim`) or by a counter that the holder renews (`counter_claim`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from tfdist.checkpoint.counter_claim import CounterClaim
from tfdist.checkpoint.files import Files
from tfdist.checkpoint.holder import Holder, this_process
from tfdist.checkpoint.lock_claim import LockClaim


class _Way(Protocol):
    lost: str

    def take(self) -> None:
        """Takes the claim."""

    def release(self) -> None:
        """Gives it back."""


class Claim:
    """The right to write to a directory.

    Args:
        files: of the directory, which is created if it is missing.
        run_id: of this job; all of its processes give the same.
        owner: who this is within the run, such as "worker/1"; for people.
        patience: seconds to try again before another job is found to hold a local directory.
        interval: seconds between two renewals, at URLs. A holder that is silent for three of them has lost its claim.
        wait: sleeping, replaced in tests.

    Example:
        with Claim(files, "run-7", "worker/0"):
            store.restore_newest(mine=True)
    """

    def __init__(
        self,
        files: Files,
        run_id: str,
        owner: str,
        *,
        patience: float = 2.0,
        interval: float = 10.0,
        wait: Callable[[float], None] | None = None,
    ):
        holder: Holder = this_process(run_id, owner)
        self._files = files
        self._way: _Way
        if files.local is not None:
            self._way = LockClaim(files, holder, patience, wait)
        else:
            self._way = CounterClaim(files, holder, interval, wait)

    @property
    def lost(self) -> str:
        """Why this process has the claim no longer; nothing while it has it. Never at a local directory."""
        return self._way.lost

    def take(self) -> None:
        """Takes the claim, and creates the directory.

        Raises:
            CheckpointClaimedError: another run holds it; run id, host and pid are named.
            CheckpointError: the directory cannot be created, written or read.
        """
        self._files.make_root()
        self._way.take()

    def release(self) -> None:
        """Gives the claim back, as the end of the process does. Doing it twice does no harm."""
        self._way.release()

    def __enter__(self) -> Claim:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
