"""The claim at a URL, where there are no locks: claim.json with a counter that the holder renews.

A newcomer of the same run takes over at once. One of another run watches the counter, and takes over when it stood
still for three intervals by the newcomer's own monotonic clock; clocks of two hosts are never compared. Object stores
without compare-and-set leave an instant in which two newcomers both write: the later one wins, and the other finds out
when it looks again.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from tfdist.checkpoint.files import Files
from tfdist.checkpoint.holder import FILE, Holder, read_holder, to_json, write_holder
from tfdist.errors import CheckpointClaimedError, CheckpointError, ConfigError
from tfdist.observe.events import emit

_SILENT_INTERVALS = 3


class CounterClaim:
    """See Claim."""

    def __init__(self, files: Files, me: Holder, interval: float, wait: Callable[[float], None] | None = None):
        if not 0 < interval <= 3600:
            raise ConfigError("interval", interval, "must be seconds in (0, 3600]")
        self.lost = ""
        self._files = files
        self._me = dataclasses.replace(me, interval=interval)
        self._interval = interval
        self._wait = wait or time.sleep
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """See Claim."""
        if self._thread is not None:
            return
        holder = read_holder(self._files)
        if holder is None and self._files.create(FILE, to_json(self._me)):
            self._confirm()
        else:
            holder = holder or read_holder(self._files)
            mine = holder is None or holder.run_id == self._me.run_id
            if holder is not None and not mine:
                self._watch(holder)
            self._write(holder)
            if not mine:
                self._confirm()
        self.lost = ""
        self._stop.clear()
        self._thread = threading.Thread(target=self._renew_for_ever, name="tfdist-claim", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """See Claim."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop.set()
        thread.join()
        holder = read_holder(self._files)
        # Where the last word is another process's, that one lives: it goes on renewing.
        if holder is not None and holder.token == self._me.token:
            self._write(holder, released=True)

    def renew(self) -> None:
        """Shows that this run lives, or finds that it has lost the claim."""
        holder = read_holder(self._files)
        if holder is None or holder.run_id == self._me.run_id:
            self._write(holder)
            return
        self.lost = f"run {holder.run_id!r} (host {holder.host}, pid {holder.pid}) has taken {self._files.root} over"
        emit("checkpoint_claim_lost", f"{self.lost}; no checkpoint can be written any more", level=logging.WARNING)

    def _write(self, former: Holder | None, released: bool = False) -> None:
        counter = former.counter + 1 if former else 1
        write_holder(self._files, dataclasses.replace(self._me, counter=counter, released=released))

    def _watch(self, holder: Holder) -> None:
        """Returns when nobody renews the claim of `holder`, and raises when somebody does."""
        intervals = 1 if holder.released else _SILENT_INTERVALS  # given back; another of that run may renew it yet
        patience = intervals * max(self._interval, holder.interval)
        begin = time.monotonic()
        while time.monotonic() - begin < patience:
            self._wait(min(self._interval, patience) / 4)
            now = read_holder(self._files)
            if now is not None and (now.counter, now.token) != (holder.counter, holder.token):
                if now.run_id == self._me.run_id:
                    return
                raise self._claimed(now, "has just renewed its claim")

    def _confirm(self) -> None:
        """Looks again whether another newcomer has written at the same time."""
        self._wait(min(self._interval, 1.0) / 4)
        now = read_holder(self._files)
        if now is not None and now.run_id != self._me.run_id:
            raise self._claimed(now, "came at the same time")

    def _claimed(self, holder: Holder, reason: str) -> CheckpointClaimedError:
        return CheckpointClaimedError(self._files.root, self._me.run_id, vars(holder), reason)

    def _renew_for_ever(self) -> None:
        while not self._stop.wait(self._interval) and not self.lost:
            try:
                self.renew()
            except CheckpointError as error:
                # Away for a moment, perhaps; another run waits for three intervals.
                emit("debug", f"the claim on {self._files.root} was not renewed: {error}")
