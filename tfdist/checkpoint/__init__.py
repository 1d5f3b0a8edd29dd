"""Checkpoints: arrays and progress of a committed step, in a directory that survives the job.

Importing this imports neither TensorFlow nor numpy: each public name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "export": "tfdist.checkpoint.models",
    "list_checkpoints": "tfdist.checkpoint.access",
    "load": "tfdist.checkpoint.access",
    "restore": "tfdist.checkpoint.models",
    "verify": "tfdist.checkpoint.access",
}

__all__ = ["export", "list_checkpoints", "load", "restore", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
