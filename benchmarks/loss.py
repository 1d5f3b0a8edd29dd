"""What the loss of a worker costs: from the signal to the next committed step, less one median step."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from cycles import MEDIAN_OF, Loss, Training
from figures import bound, medians, summary

EVENTS = 14
FREEZES = 10
MEMBERS = 3
HEARTBEAT_TIMEOUT = 2.0  # seconds (the default is 5): silence is found after it, whatever its length


def run(events: int | None = None) -> dict[str, Any]:
    """Kills a random worker of three, the chief included, and has it replaced; then the same with freezes.

    A worker on another machine does not compete with the survivors for their cores while it starts; one that
    `tfdist run` starts on the same machine does. Both are measured, in turn.
    """
    draw = random.Random(7)
    later: list[Loss] = []
    at_once: list[Loss] = []
    frozen: list[Loss] = []
    with Training(MEMBERS, heartbeat_timeout=HEARTBEAT_TIMEOUT) as training:
        for number in range(events or EVENTS):
            kind = at_once if number % 2 else later
            loss, replacement = training.lose(draw.choice(list(training.pids)), replace_at_once=kind is at_once)
            kind.append(loss)
            training.join(replacement)
            training.wait_steps(MEDIAN_OF)
        for _ in range(min(events or FREEZES, FREEZES)):
            loss, replacement = training.lose(draw.choice(list(training.pids)), "freeze")
            frozen.append(loss)
            training.join(replacement)
            training.wait_steps(MEDIAN_OF)
    kills = _report(later + at_once, 0.0)
    freezes = _report(frozen, HEARTBEAT_TIMEOUT)
    return {
        "kill": kills,
        "kill, replaced after the recovery": _report(later, 0.0),
        "kill, replaced at once on the same cores": _report(at_once, 0.0),
        "freeze, less heartbeat_timeout": {"heartbeat_timeout": HEARTBEAT_TIMEOUT, **freezes},
        "bounds": [
            bound("kill -9 to the next committed step, median", kills["seconds"].get("median"), 0.5, "s"),
            bound("kill -9 to the next committed step, p95", kills["seconds"].get("p95"), 1.0, "s"),
            bound("freeze, beyond heartbeat_timeout, median", freezes["seconds"].get("median"), 0.5, "s"),
        ],
    }


def _report(losses: list[Loss], expected: float) -> dict[str, Any]:
    return {
        "seconds": summary([loss.gap - loss.step - expected for loss in losses]),
        "medians": medians([dataclasses.asdict(loss) for loss in losses]),
    }
