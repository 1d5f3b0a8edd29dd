"""Samples, their order, and who computes which: importing this does not import TensorFlow."""

from __future__ import annotations

import importlib
from typing import Any

from tfdist.data.plan import Plan
from tfdist.data.shares import bounds, shares
from tfdist.data.sources import ArraySource, RandomAccessSource, Source

# These need TensorFlow, whose import takes seconds.
_LAZY = {"ElasticDataset": "tfdist.data.elastic", "elastic_dataset": "tfdist.data.elastic"}

__all__ = [
    "ArraySource",
    "ElasticDataset",
    "Plan",
    "RandomAccessSource",
    "Source",
    "bounds",
    "elastic_dataset",
    "shares",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
