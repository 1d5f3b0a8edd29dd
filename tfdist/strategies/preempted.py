"""This process has been told to go: how it leaves a `fit`, with or without a tfdist strategy."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from tfdist.checkpoint.saving import saving_now
from tfdist.errors import EXIT_PREEMPTED
from tfdist.observe.events import emit
from tfdist.preemption.notice import Notice, Source
from tfdist.preemption.watcher import Watcher
from tfdist.strategies.leaving import leave_on_sigterm

_AT = {"on_train_batch_end": "step", "on_test_batch_end": "validation", "on_epoch_end": "epoch"}


class Preempted:
    """For one `fit`; made when it begins.

    Args:
        model: under training.
        grace: seconds from the notice to the end of the process, where the notice does not say less.
        sources: of notices, besides SIGTERM.
    """

    def __init__(self, model: Any, grace: float, sources: Sequence[Source]):
        self._grace = grace
        self._notice: Notice | None = None
        self._deadline: threading.Timer | None = None
        self._stack = contextlib.ExitStack()
        calls = getattr(getattr(model, "_distribute_strategy", None), "keras_calls", None)
        self._agreements = calls.agreements if calls is not None and calls.group.session is not None else None
        if self._agreements is not None:
            self._agreements.on_asked_to_leave = self._start_deadline
        else:
            self._stack.enter_context(leave_on_sigterm(lambda code: self._told(Notice("SIGTERM", "SIGTERM", None))))
        if sources:
            watcher = Watcher(sources, self._told)
            self._stack.callback(watcher.close)

    @property
    def told(self) -> bool:
        return self._notice is not None

    def _told(self, notice: Notice) -> None:
        """From a thread: once."""
        emit("preempted", f"{notice.source}: {notice.reason}: this process leaves at its next step boundary")
        self._notice = notice
        if self._agreements is not None:
            self._agreements.ask_to_leave(EXIT_PREEMPTED)
        else:
            self._start_deadline()

    def _start_deadline(self) -> None:
        seconds = self._notice.seconds if self._notice is not None else None
        seconds = self._grace if seconds is None else min(self._grace, max(seconds, 0.0))
        self._deadline = threading.Timer(seconds, self._give_up, [seconds])
        self._deadline.daemon = True
        self._deadline.start()

    def _give_up(self, seconds: float) -> None:
        emit(
            "preempted",
            f"no step boundary, or no end of the save, within {seconds:g} s: the process ends now, and the last "
            "complete checkpoint is what is left",
            level=logging.WARNING,
        )
        sys.stderr.flush()
        os._exit(EXIT_PREEMPTED)

    def at_boundary(self, hook: str) -> None:
        """Between two steps of training or validation. With a strategy the members agree on it (see `Agreements`).

        Raises:
            SystemExit: this process leaves.
        """
        if self._notice is None or self._agreements is not None:
            return
        saving = saving_now()
        if saving is not None:
            saving.emergency(_AT[hook])
        emit("left", "the process ends, to be started again")
        sys.exit(EXIT_PREEMPTED)

    def close(self) -> None:
        """The `fit` is over, or has failed."""
        self._stack.close()
        if self._agreements is not None:
            self._agreements.on_asked_to_leave = None
        if self._deadline is not None and self._notice is None:
            self._deadline.cancel()
