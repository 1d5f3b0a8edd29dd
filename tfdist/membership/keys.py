"""The keys of a run in its store, and the view of it that members read again and again."""

import logging
from dataclasses import dataclass, field
from typing import Any

from tfdist.errors import StoreError
from tfdist.membership.roster import Member, Roster, dump, load, member_from_json, roster_from_json, task_from_json
from tfdist.membership.stores.base import Store
from tfdist.tf_config import Task

TOKEN = "token"
ROSTER = "roster"
ERROR = "error"
END = "end"
COMMITTED = "committed"
CHECKPOINT = "checkpoint"
READY = "ready/"
LEAVE = "leave/"
DRAIN = "drain/"
DONE = "done/"
CLAIM = "claim/"
LEASE = "lease/"
STATUS = "status/"
AGREE = "agree/"
RECORDS = "records/"

MAX_TRACEBACK_CHARACTERS = 16 << 10

_log = logging.getLogger(__name__)


def run_prefix(run_id: str) -> str:
    """Returns what goes in front of all keys of a run."""
    return f"tfdist/{run_id}/"


@dataclass(frozen=True)
class JobError:
    """An error that one worker reported and that stops the job.

    Attributes:
        task: who failed.
        traceback: its text, at most 16 KiB.
    """

    task: Task
    traceback: str

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object that `job_error_from_json` reads."""
        return {"task": str(self.task), "traceback": self.traceback[-MAX_TRACEBACK_CHARACTERS:]}


def job_error_from_json(value: dict[str, Any], where: str) -> JobError:
    """Returns the job error; StoreError naming `where` if it is malformed."""
    text = value.get("traceback")
    if not isinstance(text, str) or len(text) > MAX_TRACEBACK_CHARACTERS:
        raise StoreError(f"{where} holds a malformed traceback")
    return JobError(task_from_json(value.get("task"), where), text)


@dataclass(frozen=True)
class StoreView:
    """What the store says about the run at one moment.

    Attributes:
        roster: newest roster, or None.
        roster_version: its version for compare-and-set; 0 if there is none.
        ready: members that ask for admission, with the version of their key.
        leaving: incarnations that want to leave.
        error: what stops the job, or None.
        ended: the run is over.
    """

    roster: Roster | None = None
    roster_version: int = 0
    ready: dict[Member, int] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    error: JobError | None = None
    ended: bool = False


def read_view(store: Store) -> StoreView:
    """Reads the view.

    Raises:
        StoreUnavailableError: the store is away.
        StoreError: the roster or the error is malformed. A malformed request of one member is logged and ignored.
    """
    roster = store.get(ROSTER)
    error = store.get(ERROR)
    ready: dict[Member, int] = {}
    for key, entry in store.list(READY).items():
        try:
            ready[member_from_json(load(key, entry.value), key)] = entry.version
        except StoreError as problem:
            _log.warning("ignored: %s", problem)
    leaving = set()
    for key, entry in store.list(LEAVE).items():
        try:
            leaving.add(str(load(key, entry.value).get("incarnation")))
        except StoreError as problem:
            _log.warning("ignored: %s", problem)
    return StoreView(
        roster_from_json(load(ROSTER, roster.value), ROSTER) if roster else None,
        roster.version if roster else 0,
        ready,
        frozenset(leaving),
        job_error_from_json(load(ERROR, error.value), ERROR) if error else None,
        store.get(END) is not None,
    )


def write_member(store: Store, prefix: str, member: Member) -> int:
    """Writes a member under prefix/<task>; returns the version."""
    return store.put(f"{prefix}{member.task}", dump(member.to_json()))


def delete_of(store: Store, prefix: str, member: Member) -> None:
    """Deletes prefix/<task>, if it is this incarnation's."""
    key = f"{prefix}{member.task}"
    entry = store.get(key)
    if entry is not None and load(key, entry.value).get("incarnation") == member.incarnation:
        store.delete(key, entry.version)


def delete_of_others(store: Store, me: Member) -> None:
    """Deletes what a former process of this task left behind: its requests, and those to it."""
    for prefix in (READY, LEAVE, DRAIN):
        store.delete(f"{prefix}{me.task}")
