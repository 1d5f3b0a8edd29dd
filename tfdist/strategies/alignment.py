"""All members of a new roster come to hold the state of the most advanced one: identities, transfer, comparison."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdist.errors import IncompatibleError, StateLostError, TransferError
from tfdist.membership.roster import Member, Roster
from tfdist.observe.events import emit
from tfdist.observe.points import reach
from tfdist.tf_config import Task

if TYPE_CHECKING:
    from tfdist.strategies.group import ElasticGroup

MEET_SECONDS = 24 * 3600.0  # a member in user code for long is waited for (and shown as such), not given up
TRANSFER_SECONDS = 3600.0


@dataclass(frozen=True)
class Decision:
    """Who sends its state to whom.

    Attributes:
        source: the most advanced member that holds the run's state; of several the lowest task.
        behind: members that take it over.
        diverged: those of them that should have had it: same clock, another digest.
    """

    source: Task
    behind: frozenset[Task]
    diverged: tuple[Task, ...]


def decide(identities: Mapping[Task, Mapping[str, Any]]) -> Decision:
    """From each member's {"clock", "digest", "fresh"}. A fresh member is a source only where all are (the founders)."""
    holders = {task: i for task, i in identities.items() if not i["fresh"]}
    candidates = holders or identities
    source = min(candidates, key=lambda task: (-candidates[task]["clock"], task))
    best = identities[source]

    def same(i: Mapping[str, Any]) -> bool:
        return (i["clock"], i["digest"], i["fresh"]) == (best["clock"], best["digest"], best["fresh"])

    behind = frozenset(task for task, i in identities.items() if not same(i))
    diverged = tuple(sorted(task for task in behind if task in holders and holders[task]["clock"] == best["clock"]))
    return Decision(source, behind, diverged)


def align(group: ElasticGroup, roster: Roster, restored: bool = False) -> int:
    """Brings this member's state in line with the others'; returns the number of bytes it has received.

    Raises:
        MemberLostError, TransferError: the formation has failed; the next roster is to be awaited.
        StateLostError: the run has progressed, but nobody holds its state.
        IncompatibleError: the states differ even now.
    """
    session, progress = group.session, group.progress
    mine = {
        "clock": progress.clock,
        "fresh": progress.fresh,
        "digest": _digest(group),
        "stop": group.wants_stop(),
        "restored": restored,
    }
    identities = session.meet(roster, "formed", mine, MEET_SECONDS)
    highest = session.highest_committed()
    if highest > 0 and all(i["fresh"] and not i["restored"] for i in identities.values()):
        raise StateLostError(
            f"the run had committed step {highest}, but no member of generation {roster.generation} holds its state; "
            "start again with another run id, or restore a checkpoint"
        )
    decision = decide(identities)
    me = session.me.task
    if decision.diverged and me == decision.source:
        _tell_divergence(decision)
    received = _fetch(group, roster.member(decision.source), roster.generation) if me in decision.behind else 0
    progress.fresh = False
    group.stop_agreed = any(i["stop"] for i in identities.values())
    digests = session.meet(roster, "aligned", {"digest": _digest(group)}, MEET_SECONDS)
    different = sorted({d["digest"] for d in digests.values()})
    if len(different) > 1:
        raise IncompatibleError("digest of the state after the transfer", digests[me]["digest"], different)
    return received


def _digest(group: ElasticGroup) -> int:
    return group.state.digest() if group.state is not None else 0


def _fetch(group: ElasticGroup, source: Member, generation: int) -> int:
    if group.state is None:
        raise TransferError(f"{source} holds a state, but this process has no model yet")
    reach("transfer_begin", source=str(source), generation=generation)
    header, data = group.session.fetch_state(
        source,
        generation,
        accept=group.state.expected_bytes,
        timeout=TRANSFER_SECONDS,
        on_chunk=lambda done: reach("transfer_chunk", source=str(source), bytes=done),
    )
    group.state.install(header, memoryview(data))
    return len(data)


def _tell_divergence(decision: Decision) -> None:
    emit(
        "diverged",
        f"the state of {', '.join(map(str, decision.diverged))} differed from that of {decision.source} after the same "
        "step; it is replaced. Does a callback change weights or the learning rate on some workers only?",
        level=logging.WARNING,
    )
