"""How the rows of a global batch are divided among the members: pure, exact, the same on every member."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache


def shares(rows: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Rows of each member, by the method of the largest remainder.

    Args:
        rows: rows of the global batch, at least 0.
        weights: one per member by rank, finite and at least 0, not all 0; only their ratios count.

    Returns:
        One count per member, together exactly `rows`; each within one row of its exact part. Equal remainders are
        served by rank. A member's share is 0 if its weight is 0, and may be 0 if there are fewer rows than members.

    Raises:
        ValueError: a negative row count, or weights outside the rule above.

    Example:
        >>> shares(16, (1.0, 1.0, 1.0))
        (6, 5, 5)
    """
    return _shares(rows, tuple(weights))


def bounds(rows: int, weights: Sequence[float], rank: int) -> tuple[int, int]:
    """The rows [start, stop) of the member `rank`: shares lie behind one another in the order of the ranks.

    Example:
        >>> bounds(16, (1.0, 1.0, 1.0), 1)
        (6, 11)
    """
    counts = shares(rows, weights)
    if not 0 <= rank < len(counts):
        raise ValueError(f"rank must be in [0, {len(counts)}), got {rank}")
    start = sum(counts[:rank])
    return start, start + counts[rank]


@lru_cache(maxsize=256)
def _shares(rows: int, weights: tuple[float, ...]) -> tuple[int, ...]:
    if rows < 0:
        raise ValueError(f"rows must be at least 0, got {rows}")
    if not weights:
        raise ValueError("weights must name at least one member, got none")
    for rank, weight in enumerate(weights):
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"weights must be finite and at least 0, got {weight} for rank {rank}")
    # Fractions, because a rounded quota could push the sum of the whole parts above the number of rows.
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    if not total:
        raise ValueError("weights must not all be 0: somebody has to compute the rows")
    quotas = [rows * weight / total for weight in exact]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(weights)), key=lambda rank: (counts[rank] - quotas[rank], rank))
    for rank in by_remainder[: rows - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)
