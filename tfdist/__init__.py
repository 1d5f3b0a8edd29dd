"""tfdist: Keras 3 and TensorFlow training over many workers that survives lost, frozen, joining and leaving ones.

Importing tfdist imports neither TensorFlow nor Keras: each public name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tfdist.versions import __version__

# Public name -> the module that defines it.
_LAZY_NAMES = {
    "ElasticMultiWorkerMirroredStrategy": "tfdist.strategies.elastic_mirrored",
    "MembershipOptions": "tfdist.membership.options",
}
_LAZY_MODULES = ("callbacks", "checkpoint", "data", "errors", "testing")

__all__ = [*_LAZY_NAMES, *_LAZY_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _LAZY_NAMES:
        value = getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    elif name in _LAZY_MODULES:
        value = importlib.import_module(f"tfdist.{name}")
    else:
        raise AttributeError(f"module 'tfdist' has no attribute {name!r}")
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallbacksInSourceTree:
    """Finds tfdist.callbacks in the top-level directory callbacks/ when tfdist is used from its source tree.

    An installation maps that directory into the package (pyproject.toml, package-dir). The source tree has no such
    mapping, and putting its root on `__path__` would make every directory there importable as tfdist.something.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "tfdist.callbacks":
            return None
        init = Path(__file__).resolve().parent.parent / "callbacks" / "__init__.py"
        if not init.is_file():
            return None
        return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(init.parent)])


if not (Path(__file__).parent / "callbacks").is_dir():
    sys.meta_path.append(_CallbacksInSourceTree)
