"""Figures of many events: median, 95th percentile, and whether a bound is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def summary(values: Sequence[float], digits: int = 3) -> dict[str, Any]:
    """Median, 95th percentile, extremes and number of `values`."""
    array = np.asarray(values, float)
    if not array.size:
        return {"events": 0}
    return {
        "events": int(array.size),
        "median": round(float(np.median(array)), digits),
        "p95": round(float(np.percentile(array, 95)), digits),
        "min": round(float(array.min()), digits),
        "max": round(float(array.max()), digits),
    }


def medians(rows: Sequence[Mapping[str, float]], digits: int = 3) -> dict[str, float]:
    """The median of each column."""
    return {name: round(float(np.median([row[name] for row in rows])), digits) for name in (rows[0] if rows else {})}


def bound(what: str, value: float | None, limit: float, unit: str) -> dict[str, Any]:
    """One line of the table: a figure and the bound that it has to keep."""
    met = value is not None and value <= limit
    return {"what": what, "value": value, "limit": limit, "unit": unit, "met": met}


def table(bounds: Sequence[Mapping[str, Any]]) -> str:
    """The bounds of all benchmarks as text."""
    lines = [f"{'what':<66} {'figure':>9} {'bound':>9}  unit"]
    for row in bounds:
        value = "none" if row["value"] is None else f"{row['value']:g}"
        met = "" if row["met"] else "  NOT MET"
        lines.append(f"{row['what']:<66} {value:>9} {row['limit']:>9g}  {row['unit']}{met}")
    return "\n".join(lines)
