"""Members and rosters: frozen values, and their JSON, checked when read."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.errors import ConfigError, StoreError
from tfdist.tf_config import Task

FORMAT = 1
MAX_MEMBERS = 4096
MAX_TEXT = 4000

_INCARNATION = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class Member:
    """A living task.

    Attributes:
        task: its (job, index), kept for life.
        incarnation: random hex of this process; a restarted one has another.
        host: name or address under which the others reach it.
        port: of the TensorFlow data plane.
        peer_port: of the links between members.
        devices: number of local devices.
    """

    task: Task
    incarnation: str
    host: str
    port: int
    peer_port: int
    devices: int = 1

    def __str__(self) -> str:
        return str(self.task)

    @property
    def address(self) -> str:
        """``host:port`` of the TensorFlow data plane."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object that `member_from_json` reads."""
        return {
            "task": str(self.task),
            "incarnation": self.incarnation,
            "host": self.host,
            "port": self.port,
            "peer_port": self.peer_port,
            "devices": self.devices,
        }


@dataclass(frozen=True)
class Roster:
    """The agreed members of one generation.

    Attributes:
        generation: +1 per roster.
        members: sorted by task, each task once.
        reason: why it differs from its predecessor, one sentence.
        lost: tasks of the predecessor that were removed because they were lost, not because they left.
    """

    generation: int
    members: tuple[Member, ...]
    reason: str
    lost: tuple[Task, ...] = ()

    def __post_init__(self) -> None:
        tasks = [member.task for member in self.members]
        if self.generation < 1 or not tasks or tasks != sorted(set(tasks)):
            raise ValueError(f"roster {self.generation}: members must be sorted, each task once, at least one: {tasks}")

    def __contains__(self, member: object) -> bool:
        return member in self.members

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks of the members, sorted."""
        return tuple(member.task for member in self.members)

    @property
    def chief(self) -> Task:
        """The lowest task."""
        return self.members[0].task

    def rank(self, task: Task) -> int:
        """Returns the position of `task` among the members; ValueError if it is none of them."""
        return self.tasks.index(task)

    def member(self, task: Task) -> Member | None:
        """Returns the member with `task`, or None."""
        return next((member for member in self.members if member.task == task), None)

    def has(self, incarnation: str) -> bool:
        """Says whether that very process is in it."""
        return any(member.incarnation == incarnation for member in self.members)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object that `roster_from_json` reads."""
        return {
            "format": FORMAT,
            "generation": self.generation,
            "members": [member.to_json() for member in self.members],
            "reason": self.reason[:MAX_TEXT],
            "lost": [str(task) for task in self.lost],
        }


def dump(value: Any) -> bytes:
    """Returns compact JSON as bytes; a loss may be NaN, which Python's JSON can say."""
    return json.dumps(value, separators=(",", ":")).encode()


def load(key: str, value: bytes) -> dict[str, Any]:
    """Returns the JSON object in `value`.

    Raises:
        StoreError: it is not a JSON object; the key is named.
    """
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        raise StoreError(f"store key {key!r} holds a malformed value: {value[:80]!r} is not JSON") from None
    if not isinstance(parsed, dict):
        raise StoreError(f"store key {key!r} holds a malformed value: {value[:80]!r} is not a JSON object")
    return parsed


def member_from_json(value: Any, where: str) -> Member:
    """Returns the member written by `Member.to_json`.

    Raises:
        StoreError: a field is missing or breaks its bounds; `where` (the key) and the field are named.
    """
    if not isinstance(value, Mapping):
        raise StoreError(f"{where} holds a malformed member: {str(value)[:80]!r} is not an object")
    incarnation, host = value.get("incarnation"), value.get("host")
    if not isinstance(incarnation, str) or not _INCARNATION.fullmatch(incarnation):
        raise _malformed(where, "incarnation", incarnation)
    if not isinstance(host, str) or not 0 < len(host) <= 255 or not host.isprintable():
        raise _malformed(where, "host", host)
    numbers = {}
    for name, low, high in (("port", 0, 65535), ("peer_port", 1, 65535), ("devices", 0, 1 << 20)):
        numbers[name] = bounded_int(value.get(name), low, high, where, name)
    return Member(task_from_json(value.get("task"), where), incarnation, host, **numbers)


def roster_from_json(value: Any, where: str) -> Roster:
    """Returns the roster written by `Roster.to_json`.

    Raises:
        StoreError: a field is missing or breaks its bounds, or the format is newer; `where` is named.
    """
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        got = value.get("format") if isinstance(value, Mapping) else value
        raise _malformed(where, f"format (must be {FORMAT})", got)
    generation = bounded_int(value.get("generation"), 1, 1 << 53, where, "generation")
    members, lost, reason = value.get("members"), value.get("lost", []), value.get("reason")
    if not isinstance(members, list) or not 0 < len(members) <= MAX_MEMBERS:
        raise _malformed(where, "members", members)
    if not isinstance(lost, list) or len(lost) > MAX_MEMBERS:
        raise _malformed(where, "lost", lost)
    if not isinstance(reason, str) or len(reason) > MAX_TEXT:
        raise _malformed(where, "reason", reason)
    parsed = tuple(member_from_json(member, where) for member in members)
    try:
        return Roster(generation, parsed, reason, tuple(task_from_json(task, where) for task in lost))
    except ValueError as error:
        raise StoreError(f"{where} holds a malformed roster: {error}") from None


def task_from_json(value: Any, where: str) -> Task:
    """Returns the task; StoreError naming `where` if it is none."""
    try:
        return Task.parse(value)
    except ConfigError:
        raise _malformed(where, "task", value) from None


def bounded_int(value: Any, low: int, high: int, where: str, field: str) -> int:
    """Returns `value`, an int from `low` to `high`; StoreError naming `where` and `field` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _malformed(where, field, value)
    return value


def _malformed(where: str, field: str, value: Any) -> StoreError:
    return StoreError(f"{where} holds a malformed value: {field} = {str(value)[:80]!r}")
