"""What a source of preemption notices is, and what it says."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

from tfdist.errors import ConfigError, TfdistError

SHORTEST_INTERVAL = 0.01


@dataclass(frozen=True)
class Notice:
    """This machine is about to go.

    Attributes:
        source: name of the source, such as "aws".
        reason: one sentence for people.
        seconds: until it goes, as far as the source says; None: it does not say. A hint and no promise: it counts from
            the look that found the notice, and a process that starts late sees an old notice. 0: now.
    """

    source: str
    reason: str
    seconds: float | None


class SourceUnavailable(TfdistError):
    """A source can't be asked at present, or its answer can't be understood. The text names it and says why."""


class Source(Protocol):
    """Something that can be asked whether this machine is about to go.

    Attributes:
        name: for people and logs, such as "gce" or "file:/tmp/leave".
        interval: seconds between the beginnings of two looks.
    """

    @property
    def name(self) -> str: ...

    @property
    def interval(self) -> float: ...

    def look(self) -> Notice | None:
        """Returns the notice, or None while there is none. Always called from one thread; should take at most 1 s.

        Raises:
            SourceUnavailable: it can't be asked (no metadata server here, an answer that is none).
        """
        ...


def require_source(value: Any, field: str) -> Source:
    """Returns `value` if it is a Source; else raises ConfigError about `field`."""
    if isinstance(value, type):
        raise ConfigError(field, value, "must be a Source, not its class", f"Write {value.__name__}().")
    if not isinstance(getattr(value, "name", None), str) or not callable(getattr(value, "look", None)):
        raise ConfigError(field, value, "must be a Source: with a name, an interval and look()")
    require_interval(getattr(value, "interval", None), f"interval of the source {value.name}")
    return value


def require_interval(value: Any, field: str) -> float:
    """Returns `value` if it can be a number of seconds between two looks; else raises ConfigError about `field`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < SHORTEST_INTERVAL:
        raise ConfigError(field, value, f"must be seconds, a finite number of at least {SHORTEST_INTERVAL}")
    return float(value)


def plain(text: str, most: int) -> str:
    """Returns the first `most` characters of foreign text in a form that is safe to log: one line, no control codes."""
    return "".join(c if c.isprintable() else " " for c in text[:most]).strip()
