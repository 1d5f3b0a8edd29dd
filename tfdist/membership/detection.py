"""Judges from what was heard of a peer whether it lives. Pure."""

from dataclasses import dataclass

LIVING = "living"
WAITING = "waiting"  # not reached yet: neither known to live nor lost
LOST = "lost"


@dataclass(frozen=True)
class Contact:
    """What one process knows of a peer; times on its own monotonic clock, in seconds.

    Attributes:
        since: when it began to look for the peer.
        opened_at: when the link was first open; None: never.
        heard_at: when anything was last heard of the peer; None: never.
        closed: why the link is closed for good, or None.
        trouble: why it is not open at present, for the log.
        unresolved: the trouble is that its host name does not resolve (yet).
    """

    since: float
    opened_at: float | None = None
    heard_at: float | None = None
    closed: str | None = None
    trouble: str = ""
    unresolved: bool = False


@dataclass(frozen=True)
class Verdict:
    """One of living, waiting, lost; and why, as a part of a sentence.

    Attributes:
        silent: it is lost because nothing is heard, which may be the network's fault; else it is surely dead.
    """

    state: str
    reason: str
    silent: bool = False


def judge(
    now: float, contact: Contact, timeout: float, needed_since: float | None = None, resolve_timeout: float = 0.0
) -> Verdict:
    """Returns the verdict for a peer.

    Silence counts from the last thing heard. A peer that was never heard gets twice the time from the first contact,
    because it has to learn of us first.

    Args:
        now: seconds, same clock as in `contact`.
        contact: what is known.
        timeout: heartbeat_timeout in seconds.
        needed_since: since when it is in the roster: then it must be reached within twice the timeout; else None.
        resolve_timeout: seconds for which a host name that does not resolve is waited for instead, if that is longer:
            names of new pods appear late.
    """
    if contact.closed is not None:
        return Verdict(LOST, contact.closed)
    if contact.heard_at is not None:
        silence = now - contact.heard_at
        if silence > timeout:
            return Verdict(LOST, f"no heartbeat for {silence:.1f} s", silent=True)
        if contact.opened_at is not None:
            return Verdict(LIVING, f"heard {silence:.1f} s ago")
    if contact.opened_at is not None:
        silence = now - contact.opened_at
        if silence > 2 * timeout:
            return Verdict(LOST, f"no heartbeat for {silence:.1f} s since the first contact", silent=True)
        return Verdict(LIVING, "connected")
    limit = max(2 * timeout, resolve_timeout) if contact.unresolved else 2 * timeout
    if needed_since is not None and now - needed_since > limit:
        return Verdict(LOST, f"not reached for {now - needed_since:.1f} s {contact.trouble}".strip(), silent=True)
    return Verdict(WAITING, contact.trouble or f"not reached for {now - contact.since:.1f} s")
