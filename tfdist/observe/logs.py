"""How a worker process shows the log lines of tfdist: one sentence each, on its standard error."""

from __future__ import annotations

import logging
import sys
from typing import TextIO


class _Sentences(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        name = "tfdist" if record.levelno < logging.WARNING else f"tfdist {record.levelname.lower()}"
        text = f"{name}: {record.getMessage()}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class _CurrentStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever sys.stderr is when a line is written, as logging's own last resort does."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Nothing to keep: the base class sets it once."""


def show_log(level: int = logging.INFO) -> None:
    """Shows the lines of the logger "tfdist" from a level on. One that has a handler already is left as it is."""
    logger = logging.getLogger("tfdist")
    if logger.handlers:
        return
    handler = _CurrentStderr()
    handler.setFormatter(_Sentences())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # absl, which Keras and TensorFlow load, would print each line a second time
