"""The versions: tfdist's own, and those of TensorFlow and Keras that it was tested with. Their one place.

tfdist stands on details of both (tfdist/runtime.py, tfdist/keras_internals.py), so an older version is refused and a
newer one is warned about.
"""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Literal

__version__ = "0.1.0"

TESTED_TENSORFLOW = ">=2.21,<2.22"
TESTED_KERAS = ">=3.15,<3.16"

Verdict = Literal["tested", "too old", "untested"]


def judge_version(name: str, version: str, tested: str) -> tuple[Verdict, str]:
    """Compares a version with a range such as ">=2.21,<2.22".

    Args:
        name: What the version is of, for the reason.
        version: Such as "2.21.0" or "3.16.0.dev2026"; only the first two numbers count.
        tested: A range of the form ">=A.B,<C.D".

    Returns:
        The verdict, and a sentence that gives the version, the range and the remedy.
    """
    bounds = re.fullmatch(r">=(\d+)\.(\d+),<(\d+)\.(\d+)", tested)
    if bounds is None:
        raise ValueError(f"tested = {tested!r} is not of the form '>=A.B,<C.D'")
    low, high = (int(bounds[1]), int(bounds[2])), (int(bounds[3]), int(bounds[4]))
    found = re.match(r"(\d+)\.(\d+)", version)
    remedy = f"install one that tfdist {__version__} was tested with: pip install '{name}{tested}'"
    if found is None:
        return "untested", f"{name} {version!r} has no version number that could be compared with {tested}; {remedy}"
    numbers = (int(found[1]), int(found[2]))
    if numbers < low:
        return "too old", f"{name} {version} is older than {tested}; {remedy}"
    if numbers >= high:
        return "untested", f"{name} {version} is newer than {tested}; it may work; if it does not, {remedy}"
    return "tested", f"{name} {version} is within {tested}"


def check_versions(tensorflow: str | None = None, keras: str | None = None) -> None:
    """Refuses versions that are too old and warns about those that were not tested.

    Args:
        tensorflow: TensorFlow's version; None imports TensorFlow and asks it.
        keras: Keras's version; None imports Keras and asks it.

    Raises:
        ImportError: One of them is older than the oldest tested version.
    """
    for name, version, tested in (("tensorflow", tensorflow, TESTED_TENSORFLOW), ("keras", keras, TESTED_KERAS)):
        if version is None:
            version = importlib.import_module(name).__version__
        verdict, reason = judge_version(name, version, tested)
        if verdict == "too old":
            raise ImportError(reason)
        if verdict == "untested":
            warnings.warn(reason, stacklevel=2)
