"""A worker process of a LocalCluster: calls one function and leaves what it returns in a file.

Arguments: "module:function" or "/path/file.py:function"; the function's arguments as a JSON list; the result's file;
the test's sys.path as a JSON list: what it can import, this process can.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.testing.results import save_value


def main() -> None:
    name, arguments, result, paths = sys.argv[1:]
    sys.path += [entry for entry in json.loads(paths) if entry not in sys.path]
    function = find_function(name)
    save_value(function(*json.loads(arguments)), Path(result))


def find_function(name: str) -> Callable[..., Any]:
    """Imports "module:function", or loads the file of "/path/file.py:function"."""
    source, _, function = name.rpartition(":")
    if not source.endswith(".py"):
        return getattr(importlib.import_module(source), function)
    sys.path.insert(0, str(Path(source).parent))
    spec = importlib.util.spec_from_file_location(Path(source).stem, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source} can't be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, function)


if __name__ == "__main__":
    main()
