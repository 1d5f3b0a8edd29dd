"""tfdist.callbacks: the Keras callbacks of tfdist. They work in any order, alone, and with plain one-process `fit`."""

from __future__ import annotations

import importlib
from typing import Any

if __name__ == "callbacks":
    raise ImportError(
        "'callbacks' is the source directory of tfdist.callbacks and not a package of its own; "
        "write 'import tfdist.callbacks'"
    )

# Public name -> the module that defines it; loaded when first used, because each imports Keras.
_LAZY_NAMES = {
    "AsyncCheckpoint": "tfdist.callbacks.async_checkpoint",
    "ElasticTraining": "tfdist.callbacks.elastic_training",
    "PreemptionHandler": "tfdist.callbacks.preemption_handler",
}

__all__ = [*_LAZY_NAMES]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module 'tfdist.callbacks' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
