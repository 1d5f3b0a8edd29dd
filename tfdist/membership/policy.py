"""Decides the next roster. Pure: no clock, no store, no network."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tfdist.errors import ConfigError
from tfdist.membership.backoff import BackOff
from tfdist.membership.roster import Member, Roster
from tfdist.tf_config import Task

__all__ = ["BackOff", "RosterPolicy", "View", "admissible", "decide_next", "remaining"]


@dataclass(frozen=True)
class RosterPolicy:
    """The bounds of a roster, checked when built.

    Attributes:
        min_workers: a roster with fewer is never made.
        max_workers: a roster with more is never made; None: no bound.
        start_timeout: seconds for which the first roster waits for all expected tasks.
        settle: seconds after which a roster that was asked for is made with the same members if nothing changed.
        settle_when_all_ask: the same, if all living members ask for it.
    """

    min_workers: int = 1
    max_workers: int | None = None
    start_timeout: float = 300.0
    settle: float = 5.0
    settle_when_all_ask: float = 0.2

    def __post_init__(self) -> None:
        if isinstance(self.min_workers, bool) or not isinstance(self.min_workers, int) or self.min_workers < 1:
            raise ConfigError("min_workers", self.min_workers, "must be a whole number of at least 1")
        if self.max_workers is None:
            return
        good = isinstance(self.max_workers, int) and not isinstance(self.max_workers, bool)
        if not good or self.max_workers < self.min_workers:
            rule = f"must be None or a whole number of at least min_workers ({self.min_workers})"
            raise ConfigError("max_workers", self.max_workers, rule)


@dataclass(frozen=True)
class View:
    """What one member knows when it decides.

    Attributes:
        current: the roster in the store, or None before the first.
        expected: tasks that the first roster waits for.
        ready: living members that ask for admission.
        lost: tasks of the current roster that are lost, and why.
        leaving: tasks of the current roster that leave on purpose.
        held: tasks that may not join yet, and why (back-off).
        waiting_since: when the first roster was first waited for, on the clock of `now`.
        asked_at: when this member asked for a new roster, or None.
        asked_by: tasks that ask for one, as far as known.
        gone: all members of the current roster are gone for good, so the next one is founded like the first.
    """

    current: Roster | None
    expected: tuple[Task, ...] = ()
    ready: tuple[Member, ...] = ()
    lost: Mapping[Task, str] = field(default_factory=dict)
    leaving: frozenset[Task] = frozenset()
    held: Mapping[Task, str] = field(default_factory=dict)
    waiting_since: float = 0.0
    asked_at: float | None = None
    asked_by: frozenset[Task] = frozenset()
    gone: bool = False


def admissible(view: View, policy: RosterPolicy) -> tuple[tuple[Member, ...], str]:
    """Returns (the ready members that the next roster takes in, why others wait)."""
    current = view.current if not view.gone else None
    members = current.members if current else ()
    stay = {m.task: m for m in members if m.task not in view.lost and m.task not in view.leaving}
    incarnations = {m.incarnation for m in members}
    joiners: dict[Task, Member] = {}
    waiting: list[str] = []
    for member in sorted(view.ready, key=lambda m: (m.task, m.incarnation)):
        if member.incarnation in incarnations:
            continue  # it is in already, or was and is lost: never taken in a second time
        if member.task in stay:
            waiting.append(f"{member.task} waits: its former incarnation still lives")
        elif member.task in view.held:
            waiting.append(view.held[member.task])
        elif policy.max_workers is not None and len(stay) + len(joiners) >= policy.max_workers:
            waiting.append(f"{member.task} waits: {policy.max_workers} members are the most")
        else:
            joiners.setdefault(member.task, member)
    return tuple(joiners.values()), "; ".join(waiting)


def remaining(view: View, policy: RosterPolicy) -> tuple[Member, ...]:
    """Returns the members that the next roster would have: those who stay, and the joiners; sorted."""
    members = view.current.members if view.current and not view.gone else ()
    stay = [m for m in members if m.task not in view.lost and m.task not in view.leaving]
    return tuple(sorted((*stay, *admissible(view, policy)[0]), key=lambda m: m.task))


def among_ourselves(view: View, policy: RosterPolicy) -> tuple[View, RosterPolicy]:
    """(view, policy) as if nobody asked for admission and any number of members were enough.

    Members that recover from a loss between two training steps (in a meeting, in validation) take nobody in: a joiner
    could not follow them there. They end it, however few they are, and wait for more before the next training step.
    """
    if view.current is None or view.gone:
        return view, policy
    return replace(view, ready=()), replace(policy, min_workers=1)


def decide_next(now: float, view: View, policy: RosterPolicy) -> tuple[Roster | None, str]:
    """Returns (the next roster, its reason), or (None, why there is none yet)."""
    if view.current is None or view.gone:
        return _found(now, view, policy)
    current = view.current
    stay = [m for m in current.members if m.task not in view.lost and m.task not in view.leaving]
    joiners, waiting = admissible(view, policy)
    if not stay:
        return None, f"no member of generation {current.generation} stays: {_changes(view, ())}"
    members = remaining(view, policy)
    counts = f"{len(current.members)} -> {len(members)} members"
    if len(members) < policy.min_workers:
        return None, f"{_changes(view, joiners)}; {len(members)} members, below min_workers = {policy.min_workers}"
    changes = _changes(view, joiners)
    if not changes:
        settled, why = _settled(now, view, policy, frozenset(m.task for m in stay))
        if not settled:
            return None, "; ".join(part for part in (why, waiting) if part)
        changes = why
    lost = tuple(m.task for m in current.members if m.task in view.lost)
    reason = f"{changes}; {counts}"
    return Roster(current.generation + 1, members, reason, lost), reason


def _found(now: float, view: View, policy: RosterPolicy) -> tuple[Roster | None, str]:
    """Decides the first roster, or the first one after all members of the last are gone."""
    joiners, _ = admissible(view, policy)
    have = {m.task for m in joiners}
    wanted = view.expected if policy.max_workers is None else sorted(view.expected)[: policy.max_workers]
    missing = [str(task) for task in wanted if task not in have]
    waited = now - view.waiting_since
    generation = view.current.generation + 1 if view.current else 1
    if missing and waited < policy.start_timeout:
        return None, f"{', '.join(missing)} missing, {len(joiners)} of {len(wanted)} ready after {waited:.0f} s"
    if len(joiners) < policy.min_workers:
        tail = f"after {waited:.0f} s; {', '.join(missing) or 'nobody expected'} missing"
        return None, f"{len(joiners)} ready, below min_workers = {policy.min_workers}, {tail}"
    reason = f"{'starts anew' if generation > 1 else 'start'} with {len(joiners)} members"
    if missing:
        reason += f", without {', '.join(missing)} after {waited:.0f} s"
    return Roster(generation, joiners, reason), reason


def _changes(view: View, joiners: tuple[Member, ...]) -> str:
    members = view.current.members if view.current else ()
    parts = [f"{m.task} lost ({view.lost[m.task]})" for m in members if m.task in view.lost]
    parts += [f"{m.task} leaves" for m in members if m.task in view.leaving and m.task not in view.lost]
    parts += [f"{m.task} joins" for m in joiners]
    return "; ".join(parts)


def _settled(now: float, view: View, policy: RosterPolicy, living: frozenset[Task]) -> tuple[bool, str]:
    """A step can fail although nobody is lost (a link that broke once): then the same members form a new group."""
    if view.asked_at is None:
        return False, "nothing changes"
    asked = now - view.asked_at
    limit = policy.settle_when_all_ask if living <= view.asked_by else policy.settle
    if asked < limit:
        return False, f"nothing changes yet, {asked:.1f} of {limit:.1f} s after a new roster was asked for"
    return True, f"nobody lost or joining {asked:.1f} s after a new roster was asked for, the same members again"
