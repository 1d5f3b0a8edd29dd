"""Facts of a run in its store that outlive its processes: the token, agreements, finished calls, progress, the end."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.errors import ConfigError, IncompatibleError, StoreError
from tfdist.membership import keys
from tfdist.membership.keys import JobError, job_error_from_json
from tfdist.membership.roster import Member, bounded_int, dump, load
from tfdist.membership.stores.base import Store
from tfdist.tf_config import Task

_TRIES = 100


def run_token(store: Store) -> str:
    """Returns the secret of the run, made by whoever comes first."""
    for _ in range(_TRIES):
        entry = store.get(keys.TOKEN)
        if entry is not None:
            token = load(keys.TOKEN, entry.value).get("token")
            if not isinstance(token, str) or not 16 <= len(token) <= 256:
                raise StoreError(f"store key {keys.TOKEN!r} holds a malformed token")
            return token
        store.compare_and_set(keys.TOKEN, 0, dump({"token": secrets.token_hex(32)}))
    raise StoreError(f"store key {keys.TOKEN!r} vanishes again and again")


def agree(store: Store, key: str, facts: Sequence[Sequence[Any]]) -> None:
    """Compares `facts` with those of whoever agreed on `key` first; the first writer's facts stand.

    Args:
        store: the run's store.
        key: names the agreement.
        facts: [name, value] pairs, the value any JSON.

    Raises:
        IncompatibleError: names the first fact that differs.
    """
    mine = load(key, dump({"facts": [list(fact) for fact in facts]}))["facts"]  # as JSON would bring it back
    name = keys.AGREE + key
    store.compare_and_set(name, 0, dump({"facts": mine}))
    entry = store.get(name)
    theirs = load(name, entry.value).get("facts") if entry else None
    if not isinstance(theirs, list) or not all(isinstance(f, list) and len(f) == 2 for f in theirs):
        raise StoreError(f"store key {name!r} holds malformed facts")
    for index in range(max(len(mine), len(theirs))):
        one = mine[index] if index < len(mine) else None
        other = theirs[index] if index < len(theirs) else None
        if one == other:
            continue
        if one is None or other is None or one[0] != other[0]:
            raise IncompatibleError(f"{key}: fact {index}", one, other)
        raise IncompatibleError(str(one[0]), one[1], other[1])


def record(store: Store, key: str, value: dict[str, Any]) -> bool:
    """Records `value` once; returns False if `key` was recorded before, whose value stands."""
    return store.compare_and_set(keys.RECORDS + key, 0, dump(value)) is not None


def recorded(store: Store, key: str) -> dict[str, Any] | None:
    """Returns what was recorded under `key`, or None."""
    entry = store.get(keys.RECORDS + key)
    return load(keys.RECORDS + key, entry.value) if entry else None


def highest_committed(store: Store) -> int:
    """Returns the highest committed step of the run that the store knows; 0 at first."""
    entry = store.get(keys.COMMITTED)
    if entry is None:
        return 0
    return bounded_int(load(keys.COMMITTED, entry.value).get("step"), 0, 1 << 62, keys.COMMITTED, "step")


def raise_committed(store: Store, step: int) -> int:
    """Makes the highest committed step at least `step`; returns it."""

    def higher(value: dict[str, Any] | None) -> dict[str, Any] | None:
        present = bounded_int((value or {"step": 0}).get("step"), 0, 1 << 62, keys.COMMITTED, "step")
        return {"step": step} if step > present else None

    _update(store, keys.COMMITTED, higher)
    return highest_committed(store)


def report_error(store: Store, error: JobError) -> JobError:
    """Reports an error that stops the job; returns the first that was reported, which stands."""
    store.compare_and_set(keys.ERROR, 0, dump(error.to_json()))
    entry = store.get(keys.ERROR)
    return job_error_from_json(load(keys.ERROR, entry.value), keys.ERROR) if entry else error


def forget_error_of(store: Store, task: Task) -> None:
    """Deletes the error that a former process of `task` reported: whoever starts it again means to go on."""
    entry = store.get(keys.ERROR)
    if entry is not None and load(keys.ERROR, entry.value).get("task") == str(task):
        store.delete(keys.ERROR, entry.version)


def ask_to_drain(store: Store, task: Task) -> None:
    """Asks the present process of `task` to hand over at its next step boundary and to exit with 0.

    Raises:
        ConfigError: no such member; the message has those there are.
    """
    roster = keys.read_view(store).roster
    member = roster.member(task) if roster is not None else None
    if member is None:
        members = ", ".join(map(str, roster.tasks)) if roster is not None else "none yet"
        raise ConfigError("task", str(task), f"is not a member of the run ({members})")
    store.put(f"{keys.DRAIN}{task}", dump({"incarnation": member.incarnation}))


def drain_asked(store: Store, me: Member) -> bool:
    """Says whether `ask_to_drain` meant this process."""
    key = f"{keys.DRAIN}{me.task}"
    entry = store.get(key)
    return entry is not None and load(key, entry.value).get("incarnation") == me.incarnation


def may_commit_checkpoint(store: Store, me: Member, generation: int, step: int) -> str:
    """Takes the right to commit the checkpoint of a step: one compare-and-set with the generation that took it.

    Returns:
        Why this process may not (it was removed, or a later generation has committed); empty if it may.
    """
    for _ in range(_TRIES):
        roster = keys.read_view(store).roster
        if roster is None or not roster.has(me.incarnation):
            return f"{me.task} is no member of generation {roster.generation if roster else 0} any more"
        entry = store.get(keys.CHECKPOINT)
        last = load(keys.CHECKPOINT, entry.value) if entry else {"generation": 0, "step": -1}
        of = bounded_int(last.get("generation"), 0, 1 << 62, keys.CHECKPOINT, "generation")
        if of > generation:
            return f"generation {of} has committed step {last.get('step')} already, this is of generation {generation}"
        value = dump({"generation": generation, "step": step, "incarnation": me.incarnation})
        if store.compare_and_set(keys.CHECKPOINT, entry.version if entry else 0, value) is not None:
            return ""
    raise StoreError(f"store key {keys.CHECKPOINT!r} was changed by others in each of {_TRIES} tries")


def finish(store: Store, me: Member) -> None:
    """Notes that this member's script is complete; the run is over when that is so for all members of the roster.

    One whose script ends early (``sys.exit`` after the first of two ``fit`` calls) does not end it for the others.
    """
    store.put(f"{keys.DONE}{me.task}", dump({"incarnation": me.incarnation}))
    roster = keys.read_view(store).roster
    done = {str(load(key, entry.value).get("incarnation")) for key, entry in store.list(keys.DONE).items()}
    if roster is None or all(member.incarnation in done for member in roster.members):
        end_run(store)


def end_run(store: Store) -> None:
    """Marks the run as over, for good."""
    store.compare_and_set(keys.END, 0, dump({"ended": True}))


def _update(store: Store, key: str, change: Callable[[dict[str, Any] | None], dict[str, Any] | None]) -> None:
    for _ in range(_TRIES):
        entry = store.get(key)
        changed = change(load(key, entry.value) if entry else None)
        if changed is None or store.compare_and_set(key, entry.version if entry else 0, dump(changed)) is not None:
            return
    raise StoreError(f"store key {key!r} was changed by others in each of {_TRIES} tries")
