"""Callbacks of the jobs: what each batch gave, a place to wait for a member, a worker that wants to stop."""

from __future__ import annotations

import time
from typing import Any

import keras

PATIENCE = 60.0  # seconds; for a process to start, build its model and compile its step


class LogBatches(keras.callbacks.Callback):
    """Rows [epoch, batch, {name: value}] of all training batches that this process saw the end of."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[Any]] = []
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rows.append([self._epoch, batch, {name: float(value) for name, value in logs.items()}])


class WaitForMembers(keras.callbacks.Callback):
    """From a committed step on, waits before each batch until so many members are in, or one more asks to be."""

    def __init__(self, strategy: Any, step: int, members: int) -> None:
        super().__init__()
        self._group, self._step, self._members = strategy.group, step, members
        self._passed = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        group = self._group
        if self._passed or group.progress.committed < self._step:
            return
        deadline = time.monotonic() + PATIENCE
        while group.size < self._members:
            session = group.session
            if session.requests().join_waiting or session.lost or session.newest_generation > group.generation:
                return  # the coming step brings the change; this is asked again before the one after
            if time.monotonic() > deadline:
                raise TimeoutError(f"step {group.progress.committed}: {group.size} members after {PATIENCE:g} s")
            time.sleep(0.01)
        self._passed = True


class StopAt(keras.callbacks.Callback):
    """Sets `stop_training` after so many batches of this process."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self._left = batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            self.model.stop_training = True
