"""What a worker that joins costs the others, and how soon it computes with them."""

from __future__ import annotations

import dataclasses
from typing import Any

from cycles import MEDIAN_OF, Join, Training
from figures import bound, medians, summary

EVENTS = 10
MEMBERS = 3
LAYERS = 6  # of width 256: with Adam's two slots 4.1 MB of state


def run(events: int | None = None) -> dict[str, Any]:
    """Kills one worker of three and has it replaced when the others have recovered, again and again."""
    joins: list[Join] = []
    with Training(MEMBERS, layers=LAYERS) as training:
        for _ in range(events or EVENTS):
            _, replacement = training.lose(max(training.pids))
            joins.append(training.join(replacement))
            training.wait_steps(MEDIAN_OF)
    stall = summary([join.stall - join.step for join in joins])
    first = summary([join.first_step for join in joins])
    return {
        "stall of the survivors, seconds": stall,
        "fork to the first common step, seconds": first,
        "medians": medians([dataclasses.asdict(join) for join in joins]),
        "bounds": [
            bound("join: stall of the survivors with 4 MB of state, median", stall.get("median"), 0.5, "s"),
            bound("join: fork to the joiner's first common step, median", first.get("median"), 4.0, "s"),
        ],
    }
