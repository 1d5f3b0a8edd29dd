"""What must be equal: the weights, logs and counts of a job with tfdist and of one without."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfdist.testing import Results

RELATIVE = 1e-9  # float64


def assert_same_training(results: Results, plain: dict[str, Any], *, uses: int | None = None) -> None:
    """All workers that came to the end hold what plain training gives, and the same bits.

    Args:
        results: Of a cluster that ran `jobs.train`.
        plain: What `jobs.train` returned without tfdist.
        uses: How often each sample must have been used; None: the model has no witness.
    """
    ended = ends(results)
    assert ended, f"no worker came to the end\n\n{results}"
    for worker, value in ended.items():
        for name, expected in plain["weights"].items():
            np.testing.assert_allclose(
                value["weights"][name], expected, rtol=RELATIVE, atol=1e-12, err_msg=f"{name} of worker {worker}"
            )
        assert value["iterations"] == plain["iterations"]
        assert len(value["calls"]) == len(plain["calls"])
        for mine, expected in zip(value["calls"], plain["calls"], strict=True):
            assert_same_logs(mine, expected, f"worker {worker}")
        assert_same_batches(value["batches"], plain["batches"])
        if uses is not None:
            assert_used(value, uses)
    assert_same_bits(results)


def ends(results: Results) -> dict[int, dict[str, Any]]:
    """What the workers returned that took part in the end (one that comes after it has nothing to do, and exits)."""
    return {worker: value for worker, value in results.values.items() if value is not None}


def assert_used(value: dict[str, Any], uses: int) -> None:
    """The witness: each sample was used exactly so often."""
    counts = value["weights"]["used/embeddings"].ravel()
    wrong = {int(sample): float(counts[sample]) for sample in np.flatnonzero(counts != uses)}
    assert not wrong, f"samples that were not used {uses} times: {wrong}"


def assert_same_bits(results: Results) -> None:
    """The members' states are copies of each other, not merely close."""
    ended = ends(results)
    first = next(iter(ended.values()))
    for worker, value in ended.items():
        for name, weight in first["weights"].items():
            assert value["weights"][name].tobytes() == weight.tobytes(), f"{name} of worker {worker} has other bits"


def assert_same_logs(mine: dict[str, Any], expected: dict[str, Any], where: str) -> None:
    assert mine.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(mine[name], value, rtol=RELATIVE, atol=1e-12, err_msg=f"{name} of {where}")


def assert_same_batches(mine: list[Any], expected: list[Any]) -> None:
    """A worker saw batches that plain training has, in their order and none twice (it may have been away for some)."""
    wanted = {(epoch, batch): logs for epoch, batch, logs in expected}
    seen = [(epoch, batch) for epoch, batch, _ in mine]
    assert seen == sorted(set(seen))
    for epoch, batch, logs in mine:
        assert_same_logs(logs, wanted[epoch, batch], f"batch {batch} of epoch {epoch}")
