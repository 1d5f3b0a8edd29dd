"""Events: what happened, in one sentence with numbers.

An event goes to the logger "tfdist" and, where the environment variable TFDIST_EVENTS names a file, to that file as one
JSON line. Several processes may append to one file: each line is a single write to a descriptor opened with O_APPEND.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

EVENTS_VARIABLE = "TFDIST_EVENTS"
MAX_LINE_BYTES = 4096  # Linux writes this much to a file without mixing it with another process's line
MAX_FILE_BYTES = 256 << 20  # what read_events is willing to read
FORMAT = 1

_logger = logging.getLogger("tfdist")
_QUIET_KINDS = frozenset({"debug", "step", "progress"})  # in the file only: too many for a log


def emit(kind: str, message: str, *, level: int = logging.INFO, **numbers: Any) -> None:
    """Tells one event. Never raises: an event that can't be written must not stop a training.

    Args:
        kind: A short name to find the event by, such as "member_lost". "debug", "step" and "progress" are not logged.
        message: One sentence for people.
        level: Of the log line, such as logging.WARNING for what the user should look at.
        **numbers: Facts for programs; what JSON can't hold is written as its text.
    """
    if kind not in _QUIET_KINDS:
        _logger.log(level, "%s", message)
    path = os.environ.get(EVENTS_VARIABLE)
    if path:
        try:
            _append(path, _line(kind, message, numbers))
        except OSError as error:
            _logger.warning("could not write the event %r to %s (%s): %s", kind, path, EVENTS_VARIABLE, error)


def _line(kind: str, message: str, numbers: dict[str, Any]) -> bytes:
    record = {
        "v": FORMAT,
        "kind": kind,
        "message": message,
        "wall_time": time.time(),  # for people; hosts' clocks differ, so nothing is decided by it
        "monotonic": time.monotonic(),  # seconds, comparable within this host only
        "pid": os.getpid(),
        "task": _own_task(),
        "numbers": numbers,
    }
    line = json.dumps(record, default=str).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        record["numbers"] = {"left_out": f"{len(line)} bytes were too many"}
        record["message"] = message[:500]
        line = json.dumps(record, default=str).encode() + b"\n"
    return line


def _own_task() -> str | None:
    """Such as "worker/2", from TF_CONFIG; None where that is missing or says nothing usable."""
    try:
        task = json.loads(os.environ.get("TF_CONFIG", ""))["task"]
        return f"{task['type']}/{int(task['index'])}"
    except (ValueError, KeyError, TypeError):
        return None


def _append(path: str, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read_events(path: str | os.PathLike[str], offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Reads the complete lines from a byte offset on.

    Args:
        path: An events file; one that does not exist yet has no events.
        offset: In bytes: 0, or what an earlier call returned.

    Returns:
        The events (dictionaries with "kind", "message", "wall_time", "monotonic", "pid", "task", "numbers"), and the
        offset to go on from. Lines that are not events are passed over.
    """
    try:
        with Path(path).open("rb") as file:
            file.seek(offset)
            data = file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return [], offset
    complete = data[: data.rfind(b"\n") + 1]
    events = []
    for line in complete.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("v") == FORMAT and isinstance(event.get("kind"), str):
            events.append(event)
    return events, offset + len(complete)
