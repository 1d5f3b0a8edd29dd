"""What tfdist tells about itself: events (one sentence each), named points in the code, log lines."""

from tfdist.observe.events import emit, read_events
from tfdist.observe.points import on_reach, reach

__all__ = ["emit", "on_reach", "reach", "read_events"]
