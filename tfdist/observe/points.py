"""Named points in the code, at which a test may make something happen. Without a handler they cost one comparison.

Each gives facts by keyword; those of a step give worker, step, epoch, phase.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Handler = Callable[..., None]

POINTS = (
    "step_begin",
    "in_step",
    "step_end",
    "validation_step",
    "transfer_begin",
    "transfer_chunk",
    "transfer_serve",
    "roster_proposed",
    "formed",
    "settle",
    "call_begin",
    "call_end",
    "resume",
    "save_begin",
    "checkpoint_write",
    "checkpoint_commit",
    "checkpoint_prune",
)

_handlers: list[Handler] = []


def reach(point: str, **facts: Any) -> None:
    """Says that the code is at a point; calls the handlers, in the order they were added. What they raise goes on."""
    if _handlers:
        for handler in tuple(_handlers):
            handler(point, **facts)


def on_reach(handler: Handler) -> Callable[[], None]:
    """Has handler(point, **facts) called at every point, on the thread that reaches it.

    Returns:
        A function that takes the handler away again; calling it twice does no harm.
    """
    _handlers.append(handler)

    def remove() -> None:
        if handler in _handlers:
            _handlers.remove(handler)

    return remove
