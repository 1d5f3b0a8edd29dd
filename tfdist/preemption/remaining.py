"""How many seconds are left until a time that a metadata server names. Pure, but for this machine's own clock.

The server names a time on its clock. Each of its answers carries its own "Date" as well, so that two times of one clock
are compared. Where that is missing, this machine's wall clock has to do, and the sentence says so.
"""

import datetime
import email.utils
from collections.abc import Callable

MOST_SECONDS = 3600.0


def wall_clock() -> datetime.datetime:
    """Returns the time of this machine."""
    return datetime.datetime.now(datetime.UTC)


def from_iso(text: object) -> datetime.datetime | None:
    """Returns the time of such as "2017-09-18T08:22:00Z" (no zone: UTC); None: it is none."""
    try:
        return _in_utc(datetime.datetime.fromisoformat(text)) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def from_http(text: object) -> datetime.datetime | None:
    """Returns the time of such as "Mon, 19 Sep 2016 18:29:47 GMT"; None: it is none."""
    try:
        return _in_utc(email.utils.parsedate_to_datetime(text)) if isinstance(text, str) else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def seconds_until(
    at: datetime.datetime | None, date: object, now: Callable[[], datetime.datetime] = wall_clock
) -> tuple[float | None, str]:
    """Returns (seconds from 0 to 3600 until `at`, how they were found, as a part of a sentence).

    Args:
        at: the time that the server names; None: none that can be read.
        date: the header "Date" of the same answer, or None.
        now: this machine's time, used where `date` says nothing.
    """
    if at is None:
        return None, "without a time"
    there = from_http(date)
    seconds = min(max((at - (there or now())).total_seconds(), 0.0), MOST_SECONDS)
    return seconds, f"in about {seconds:.0f} s by {'its' if there else 'the wall'} clock{'' if there else ' here'}"


def _in_utc(time: datetime.datetime) -> datetime.datetime:
    return time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time.astimezone(datetime.UTC)
