"""One living process per task: the claim, and the lease that shows that its holder lives."""

import time
from collections.abc import Callable

from tfdist.errors import ClaimedError, StoreError
from tfdist.membership import keys
from tfdist.membership.peers import probe
from tfdist.membership.roster import Member, dump, load, member_from_json
from tfdist.membership.stores.base import Store

_TRIES = 20


def claim(store: Store, me: Member, token: str, patience: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Claims `me.task`, in place of a dead former holder.

    A holder lives if its peer port answers, or if its lease's counter changes within `patience`. One that is frozen
    does neither and is replaced; it finds out when it thaws.

    Args:
        store: the run's store.
        me: the claimant.
        token: the secret of the run.
        patience: seconds to watch a holder that does not answer; one whose port refuses is dead at once.
        sleep: replaced in tests.

    Raises:
        ClaimedError: a living process holds the task.
    """
    key = f"{keys.CLAIM}{me.task}"
    for _ in range(_TRIES):
        entry = store.get(key)
        if entry is not None:
            holder = member_from_json(load(key, entry.value), key)
            if _lives(store, holder, me, token, patience, sleep):
                raise ClaimedError(me.task, me.address, holder.address)
        if store.compare_and_set(key, entry.version if entry else 0, dump(me.to_json())) is not None:
            return
    raise StoreError(f"store key {key!r} was claimed by others in each of {_TRIES} tries")


def holder_of(store: Store, me: Member) -> Member | None:
    """Returns who claims this member's task."""
    key = f"{keys.CLAIM}{me.task}"
    entry = store.get(key)
    return member_from_json(load(key, entry.value), key) if entry else None


def renew_lease(store: Store, me: Member, counter: int) -> None:
    """Shows that `me` lives: the counter only has to change, nobody compares clocks."""
    store.put(f"{keys.LEASE}{me.task}", dump({"incarnation": me.incarnation, "counter": counter}))


def read_lease(store: Store, member: Member) -> int | None:
    """Returns the counter of a member's lease; None if it has none."""
    key = f"{keys.LEASE}{member.task}"
    entry = store.get(key)
    if entry is None:
        return None
    value = load(key, entry.value)
    return value.get("counter") if value.get("incarnation") == member.incarnation else None


def _lives(
    store: Store, holder: Member, me: Member, token: str, patience: float, sleep: Callable[[float], None]
) -> bool:
    before = read_lease(store, holder)
    tries = 10
    for _ in range(tries):
        started = time.monotonic()
        answer = probe(holder, me, token, patience / tries)
        if answer is not None:
            return answer == holder.incarnation
        took = time.monotonic() - started
        if read_lease(store, holder) != before:
            return True
        if took < patience / tries / 2 and _same_host(holder, me):
            return False  # refused at once by a host that is surely there
        sleep(max(0.0, patience / tries - took))
    return False


def _same_host(holder: Member, me: Member) -> bool:
    return holder.host == me.host
