"""`AsyncCheckpoint`: saves training in the background, and goes on from the newest save when the job starts again."""

from __future__ import annotations

import os
from typing import Any

import keras

from tfdist import keras_hooks, keras_internals
from tfdist.checkpoint.options import CheckpointOptions, SaveFrequency
from tfdist.checkpoint.run import run_of
from tfdist.strategies.plain_fit import PlainFit


class AsyncCheckpoint(keras.callbacks.Callback):
    """Saves the whole state of `fit` (weights, optimizer, random state, metrics, callbacks, data position, History).

    The training is not held up: a snapshot takes milliseconds, a thread writes it. A script that is started again goes
    on from the newest complete checkpoint, at the right epoch and batch, also in the middle of an epoch, with any
    number of workers, with or without a tfdist strategy. `epochs=N` means N in all. It does not matter where in the
    list of callbacks it stands.

    Args:
        directory: a path, or a URL such as "gs://bucket/job" (needs the extra `checkpoint`). One job at a time.
        save_freq: "epoch"; a number of steps; a `datetime.timedelta`; or "auto": from the measured cost of a save
            and the time between failures.
        max_to_keep: how many of the newest checkpoints stay; None: all.
        keep_every: checkpoints of steps that this divides stay for ever.
        monitor: a log such as "val_loss"; the best checkpoint by it stays, too.
        mode: "min" or "max" of `monitor`; None: guessed from its name.
        resume: True (or "latest"), False to start from scratch, or a step.
        if_busy: when a save is due while another one is being written: "skip" it, "wait", or "replace" one that waits.
        raise_on_failure: whether a failed save is an error at the end of `fit`, though others succeeded.

    Raises:
        ConfigError: an argument breaks its rule.

    Example:
        >>> # model.fit(x, y, epochs=10, callbacks=[tfdist.callbacks.AsyncCheckpoint("/ckpt")])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        save_freq: SaveFrequency = "epoch",
        max_to_keep: int | None = 3,
        resume: bool | str | int = True,
        *,
        keep_every: int | None = None,
        monitor: str | None = None,
        mode: str | None = None,
        if_busy: str = "skip",
        raise_on_failure: bool = False,
    ) -> None:
        super().__init__()
        self.options = CheckpointOptions(
            save_freq, max_to_keep, keep_every, monitor, mode, resume, if_busy, raise_on_failure
        )
        self.run = run_of(directory)
        keras_internals.install()
        keras_hooks.install()
        self.owner: Any = None  # who runs the present `fit`

    def guest_calls(self) -> PlainFit:
        """Asked for by a `fit` without a tfdist strategy: what takes part in it."""
        self.owner = PlainFit(self.run, self.options)
        return self.owner

    def after_all(self, hook: str, *args: Any) -> None:
        """Called by `keras_hooks`, after all callbacks have had their turn."""
        if self.owner is not None:
            self.owner.after_all(hook, *args)
