"""What must be equal after an interruption."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same_bits(mine: dict[str, Any], expected: dict[str, Any]) -> None:
    """Weights, optimizer, History and callbacks of a training that was interrupted are those of one that was not."""
    assert mine["iterations"] == expected["iterations"], (mine["iterations"], mine["batches"], mine["calls"])
    assert mine["calls"] == expected["calls"]
    assert mine["wait"] == expected["wait"]
    for name, weight in expected["weights"].items():
        np.testing.assert_array_equal(mine["weights"][name], weight, err_msg=name)
    for number, (value, wanted) in enumerate(zip(mine["optimizer"], expected["optimizer"], strict=True)):
        np.testing.assert_array_equal(value, wanted, err_msg=f"optimizer variable {number}")


def assert_close(mine: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same up to the order of sums (float64)."""
    assert mine["iterations"] == expected["iterations"], (mine["iterations"], mine["batches"], mine["calls"])
    for one, other in zip(mine["calls"], expected["calls"], strict=True):
        assert one["epoch"] == other["epoch"]
        assert one["history"].keys() == other["history"].keys()
        for name, values in other["history"].items():
            np.testing.assert_allclose(one["history"][name], values, rtol=1e-9, err_msg=name)
    for name, weight in expected["weights"].items():
        np.testing.assert_allclose(mine["weights"][name], weight, rtol=1e-9, atol=1e-12, err_msg=name)
