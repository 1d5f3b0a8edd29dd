"""The callback that a strategy adds behind the user's: it enters calls, and holds the meetings between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from tfdist.strategies.calls import KerasCalls


class CallHooks(keras.callbacks.Callback):
    """Runs after all callbacks of the user's, so that what they decided is known when members meet."""

    def __init__(self, calls: KerasCalls, call: str):
        super().__init__()
        self._calls, self._call = calls, call

    def on_train_begin(self, logs: Any = None) -> None:
        self._calls.entering.fit()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        progress = self._calls.group.progress
        if progress.epoch != epoch:
            progress.epoch, progress.step = epoch, 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._calls.agreements.after_batch(False)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._calls.agreements.end_epoch(epoch)

    def on_test_begin(self, logs: Any = None) -> None:
        self._calls.agreements.after_batch(False)
        if self._call == "evaluate":
            self._calls.entering.evaluate()
        else:
            self._calls.entering.validation("validation" if self._call == "fit" else self._call)
