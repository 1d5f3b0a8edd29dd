"""How a process ends its part in a run: the user's own error is told to the others, a finished script ends the run."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from typing import Any

from tfdist.errors import StepFailedError, TfdistError, exit_code
from tfdist.strategies.group import ElasticGroup


class Ending:
    """Watches the end of the process of one strategy.

    An exception leaves `fit` through `failed`; one of the script itself through `sys.excepthook` (or the threads').
    """

    def __init__(self, group: ElasticGroup):
        self._group = group
        self._told = self._left = self._interrupted = False
        self._code = 0
        if group.session is not None:
            self._hook(sys, "excepthook")
            atexit.register(self._at_exit)

    def _hook(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def excepthook(kind: Any, error: BaseException, trace: Any) -> None:
            self.failed(error)
            original(kind, error, trace)

        setattr(owner, name, excepthook)

    def failed(self, error: BaseException) -> None:
        """Tells the others, if this process is one of them and the error its own."""
        self._code = exit_code(error)
        session = self._group.session
        own = not isinstance(error, (TfdistError, KeyboardInterrupt, SystemExit)) or isinstance(error, StepFailedError)
        if session is None or self._told or not own or self._group.roster is None:
            return
        self._told = True
        session.report_error("".join(traceback.format_exception(error)))

    def interrupted(self) -> None:
        """The script's own `sys.exit` ends this process in the middle of a call: its decision, and for itself only."""
        self._interrupted = True

    def left(self) -> None:
        """This worker has left as asked: the run goes on without it."""
        self._left = True
        self._group.session.close("leaves")

    def _at_exit(self) -> None:
        session = self._group.session
        if not (self._code or self._left or self._interrupted) and self._group.progress.clock > 0:
            session.finish()
        session.close("its script has ended" if not self._code else "its script has failed", say_goodbye=True)
        if self._code and threading.current_thread() is threading.main_thread():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._code)  # the documented code, also where nothing but Python runs the script
